/* A recognised chat template and the text it is rendered into; private to lib/model. */
#ifndef PS_MODEL_CHAT_INTERNAL_H
#define PS_MODEL_CHAT_INTERNAL_H

#include "model/chat.h"
#include "model/chat_canonical.h"

typedef struct ps_chat_out ps_chat_out;

typedef struct ps_chat_format {
    const char *name;
    /* Mark that every template of the format has; if it is there, `recognise` decides, and a false of it is a
     * variant that is not supported. */
    const char *mark;
    bool (*recognise)(const ps_chat_buf *canonical, ps_chat *chat);
    ps_status (*render)(const ps_chat *chat, const ps_chat_message *m, uint64_t n,
                        const ps_chat_options *options, ps_chat_out *out, ps_error *err);
} ps_chat_format;

/* Rows of the format table. */
const ps_chat_format *ps_chat_formats(uint32_t *out_n);

/* What the template says beyond its format. Spans point into `text`. */
struct ps_chat {
    const ps_chat_format *format;
    char *text;            /* the canonical template, owned */
    bool bos;              /* begins with BOS */
    bool trim;             /* contents are stripped of white space at both ends */
    bool think;            /* Qwen3: thoughts of earlier answers are left out */
    bool prefix;           /* Gemma 3: the system message stands before the first user's */
    bool clock;            /* asks for today's date */
    bool system_last;      /* Mistral: the system message goes into the last user's message, not the first */
    bool system_any;       /* Mistral: system messages are allowed */
    bool answer_trim;      /* Mistral: answers are stripped */
    ps_str default_system; /* ChatML: system message where none is given */
    ps_str date;           /* Llama 3.1: the date without a clock */
    const char *open, *close, *answer,
        *answer_end; /* Mistral: around "[INST]", "[/INST]", an answer, its EOS */
};

/* Bytes and segments under construction. */
struct ps_chat_out {
    ps_chat_buf bytes, segments; /* segments: ps_chat_segment with offsets for pointers, see ps_chat_render */
};
void ps_chat_put(ps_chat_out *out, ps_chat_kind kind, ps_str s);
void ps_chat_puts(ps_chat_out *out, ps_chat_kind kind, const char *s);

/* As str.strip() of Python. */
ps_str ps_chat_strip(ps_str s);
bool ps_chat_has(const ps_chat_buf *canonical, const char *snippet);

#endif
