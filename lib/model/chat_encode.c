/* From a rendered chat to tokens: marks by their ids, everything else as plain text. */
#include <stdlib.h>

#include "model/chat_internal.h"

static ps_status push(ps_tokens *out, int32_t id, ps_error *err) {
    if (out->n == out->cap) {
        uint64_t cap = out->cap * 2 + 64;
        int32_t *ids = realloc(out->ids, cap * sizeof *ids);
        if (ids == NULL)
            return ps_error_set(err, PS_E_NOMEM, "chat", "out of memory");
        out->ids = ids;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return PS_OK;
}

/* The token a mark is, or PS_TOKEN_NONE where the vocabulary has it only as text (Mistral v1). */
static int32_t mark_token(const ps_tokenizer *t, ps_str mark) {
    int32_t id = ps_tokenizer_find(t, mark.data, mark.len);
    const uint32_t special = PS_TOKEN_CONTROL | PS_TOKEN_USER_DEFINED | PS_TOKEN_UNKNOWN;
    return id != PS_TOKEN_NONE && (ps_tokenizer_attr(t, id) & special) != 0 ? id : PS_TOKEN_NONE;
}

/* Encode what has gathered in *plain. Encoded without special tokens, so that no text becomes a mark. */
static ps_status flush(const ps_tokenizer *t, ps_chat_buf *plain, ps_tokens *out, ps_error *err) {
    if (plain->failed)
        return ps_error_set(err, PS_E_NOMEM, "chat", "out of memory");
    ps_status st = plain->n != 0 ? ps_tokenizer_encode(t, plain->data, plain->n, 0, out, err) : PS_OK;
    plain->n = 0;
    return st;
}

ps_status ps_chat_encode(const ps_chat *chat, const ps_tokenizer *tokenizer, const ps_chat_message *messages,
                         uint64_t n, const ps_chat_options *options, ps_tokens *out, ps_error *err) {
    const ps_tokenizer_info *info = ps_tokenizer_get_info(tokenizer);
    ps_chat_buf plain = {.data = NULL};
    ps_chat_text text;
    uint64_t held = out->n;
    ps_status st = ps_chat_render(chat, messages, n, options, &text, err);
    if (st != PS_OK)
        return st;
    bool bos = info->add_bos || (text.n_segments > 0 && text.segments[0].kind == PS_CHAT_BOS);
    if (bos && info->bos != PS_TOKEN_NONE)
        st = push(out, info->bos, err);
    for (uint64_t i = 0; i < text.n_segments && st == PS_OK; i++) {
        const ps_chat_segment *s = &text.segments[i];
        int32_t id = PS_TOKEN_NONE;
        if (s->kind == PS_CHAT_BOS)
            continue;
        if (s->kind == PS_CHAT_EOS)
            id = info->eos;
        else if (s->kind == PS_CHAT_SPECIAL)
            id = mark_token(tokenizer, s->text);
        if (id != PS_TOKEN_NONE) {
            st = flush(tokenizer, &plain, out, err);
            if (st == PS_OK)
                st = push(out, id, err);
        } else
            ps_chat_buf_add(&plain, s->text.data, s->text.len);
    }
    if (st == PS_OK)
        st = flush(tokenizer, &plain, out, err);
    if (st != PS_OK)
        out->n = held;
    free(plain.data);
    ps_chat_text_free(&text);
    return st;
}
