/* Chat templates: recognises the one a GGUF carries and renders messages as it would.
 *
 * A template is a Jinja program. It is not run: it is brought to a canonical form (white-space control applied,
 * quotes, spaces and adjacent literals made uniform) and the expressions that decide its output are looked up
 * in the table of formats. A template that lacks one of them is refused, so what is rendered is what the program
 * would print for messages without tools.
 *
 *   chatml    <|im_start|>role\ncontent<|im_end|>\n      with the default system message the template states;
 *             for Qwen3 without the thoughts of earlier answers
 *   llama3    <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
 *   llama3.1  the same after a system message that states the knowledge and today's date (3.1, 3.2, 3.3)
 *   gemma     <start_of_turn>role\ncontent<end_of_turn>\n
 *   mistral   [INST] content [/INST] answer</s>          v1 and v3 with their differences in spaces and in
 *             where the system message goes
 *
 * Only the template's own marks become special tokens: the text of messages never does, whatever it holds. */
#ifndef PS_MODEL_CHAT_H
#define PS_MODEL_CHAT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_chat ps_chat;

/* role: "system", "user" or "assistant"; content: any bytes. */
typedef struct ps_chat_message {
    const char *role;
    ps_str content;
} ps_chat_message;

typedef struct ps_chat_options {
    bool add_generation_prompt; /* end with the opening of the assistant's answer */
    ps_str date;                /* today as "26 Jul 2024", for templates that ask the clock; empty: as they do
                                   without one */
} ps_chat_options;

/* TEXT is text; SPECIAL a mark of the template that is one token where the vocabulary has it; BOS and EOS
 * stand for the vocabulary's own. Two TEXTs never follow each other. */
typedef enum ps_chat_kind { PS_CHAT_TEXT, PS_CHAT_SPECIAL, PS_CHAT_BOS, PS_CHAT_EOS } ps_chat_kind;
typedef struct ps_chat_segment {
    ps_chat_kind kind;
    ps_str text; /* empty for BOS and EOS */
} ps_chat_segment;

/* Owned by itself: free it with ps_chat_text_free. */
typedef struct ps_chat_text {
    uint64_t n_segments;
    ps_chat_segment *segments;
    char *bytes; /* what the segments point into */
} ps_chat_text;

/* Recognise tokenizer.chat_template of a file, or a template given as text. Nothing is borrowed afterwards.
 * Errors: PS_E_UNSUPPORTED (no template in the file; not recognised: says what it looks like), PS_E_DATA (not a
 * string, unbalanced tags, larger than 1 MB), PS_E_NOMEM. The result is immutable: any thread. */
ps_status ps_chat_open(const ps_gguf *gguf, ps_chat **out, ps_error *err);
ps_status ps_chat_open_template(ps_str text, ps_chat **out, ps_error *err);
void ps_chat_close(ps_chat *chat); /* NULL is allowed */
/* "chatml", "llama3", ... */
const char *ps_chat_name(const ps_chat *chat);

/* Errors: PS_E_USAGE where the template raises an exception (roles that must alternate, a system message where
 * there is none, no messages), naming the message by number; PS_E_NOMEM. */
ps_status ps_chat_render(const ps_chat *chat, const ps_chat_message *messages, uint64_t n,
                         const ps_chat_options *options, ps_chat_text *out, ps_error *err);
void ps_chat_text_free(ps_chat_text *text);

/* Render and append the tokens: marks as their tokens, neighbouring text encoded as one piece with special
 * tokens off. Begins with one BOS if the template or the vocabulary wants one. Errors: as ps_chat_render and
 * ps_tokenizer_encode; on an error *out keeps what it held. */
ps_status ps_chat_encode(const ps_chat *chat, const ps_tokenizer *tokenizer, const ps_chat_message *messages,
                         uint64_t n, const ps_chat_options *options, ps_tokens *out, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
