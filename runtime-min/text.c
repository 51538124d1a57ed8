/* Text in and out of an engine: tokenizer and chat template of its model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime-min/engine_internal.h"

/* Hand a token list to the caller; an empty one is a pointer too. */
static ps_status give_tokens(ps_tokens *tokens, int32_t **out_tokens, uint64_t *out_n, ps_error *err) {
    if (tokens->ids == NULL)
        tokens->ids = malloc(sizeof *tokens->ids);
    if (tokens->ids == NULL)
        return ps_error_set(err, PS_E_NOMEM, "encode", "no memory");
    *out_tokens = tokens->ids;
    *out_n = tokens->n;
    return PS_OK;
}

ps_status ps_engine_encode(const ps_engine *e, const char *text, uint64_t len, bool add_special,
                           bool parse_special, int32_t **out_tokens, uint64_t *out_n, ps_error *err) {
    ps_tokens tokens = {0};
    uint32_t flags =
        (add_special ? PS_ENCODE_ADD_SPECIAL : 0u) | (parse_special ? PS_ENCODE_PARSE_SPECIAL : 0u);
    ps_status status = ps_tokenizer_encode(e->tokenizer, text, len, flags, &tokens, err);
    if (status == PS_OK)
        status = give_tokens(&tokens, out_tokens, out_n, err);
    if (status != PS_OK)
        ps_tokens_free(&tokens);
    return status;
}

/* Today as templates that ask the clock print it, "26 Jul 2024". */
static void date_text(char *out, size_t size) {
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = time(NULL);
    struct tm day;
    out[0] = '\0';
    if (localtime_r(&now, &day) != NULL)
        snprintf(out, size, "%02d %s %d", day.tm_mday, months[day.tm_mon], day.tm_year + 1900);
}

ps_status ps_engine_encode_chat(const ps_engine *e, const char *const *roles, const char *const *contents,
                                uint32_t n_messages, int32_t **out_tokens, uint64_t *out_n, ps_error *err) {
    if (e->chat == NULL) {
        if (err != NULL)
            *err = e->chat_error;
        return e->chat_error.status;
    }
    ps_tokens tokens = {0};
    ps_chat_message *messages = calloc((size_t)n_messages + 1, sizeof *messages);
    if (messages == NULL)
        return ps_error_set(err, PS_E_NOMEM, "conversation", "no memory for %u messages", n_messages);
    for (uint32_t i = 0; i < n_messages; i++)
        messages[i] = (ps_chat_message){roles[i], {contents[i], strlen(contents[i])}};
    char date[32];
    date_text(date, sizeof date);
    ps_chat_options options = {.add_generation_prompt = true, .date = {date, strlen(date)}};
    ps_status status = ps_chat_encode(e->chat, e->tokenizer, messages, n_messages, &options, &tokens, err);
    if (status == PS_OK)
        status = give_tokens(&tokens, out_tokens, out_n, err);
    if (status != PS_OK)
        ps_tokens_free(&tokens);
    free(messages);
    return status;
}

uint32_t ps_engine_piece(const ps_engine *e, int32_t token, char *out, uint32_t capacity) {
    return (uint32_t)ps_tokenizer_piece(e->tokenizer, token, false, out, capacity);
}

bool ps_engine_is_end(const ps_engine *e, int32_t token) {
    return ps_tokenizer_is_eog(e->tokenizer, token);
}
