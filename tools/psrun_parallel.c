/* psrun --prompts: the lines of a file are prompts, --parallel of them at once. A sequence takes part from the step after
 * another one ended; steps mix new prompts with the next tokens of the others. Answers come out in the order of the file. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/text.h"
#include "psrun_internal.h"

/* One line of the file. */
typedef struct request {
    const char *text;
    uint64_t len;
    uint32_t line;
    uint64_t n_prompt, n_generated;
    ps_text *collected; /* while it runs */
    int32_t *prompt;    /* [n_prompt], until it is evaluated */
    char *answer;       /* once it has ended, from malloc */
    uint64_t n_answer;  /* bytes of it: any may be NUL */
    const char *stop;
} request;

/* A sequence that runs. */
typedef struct lane {
    request *of; /* NULL: free */
    ps_session *session;
    int32_t token, sampled;
} lane;

typedef struct batch {
    const psrun *r;
    request *requests;
    uint32_t n_requests, n_started, n_shown, n_lanes;
    lane *lanes;
    ps_eval_item *items;
} batch;

/* Lines to requests, each ended by a NUL; empty ones are none. Text stays in `data`, which a NUL follows. */
static ps_status split_lines(char *data, uint64_t size, batch *b, const char *path, ps_error *err) {
    uint64_t n = 0, at = 0;
    uint32_t line = 0;
    for (uint64_t i = 0; i < size; i++)
        n += data[i] == '\n';
    b->requests = calloc(n + 1, sizeof *b->requests);
    if (b->requests == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory for %" PRIu64 " prompts", n + 1);
    while (at < size) {
        char *end = memchr(data + at, '\n', (size_t)(size - at));
        uint64_t len = end != NULL ? (uint64_t)(end - data) - at : size - at, text = len;
        if (text != 0 && data[at + text - 1] == '\r')
            text--;
        line++;
        if (text != 0)
            b->requests[b->n_requests++] = (request){.text = data + at, .len = text, .line = line};
        data[at + text] = '\0';
        at += len + 1;
    }
    return b->n_requests != 0 ? PS_OK : ps_error_set(err, PS_E_DATA, path, "holds no prompt");
}

/* A line's token ids, or why it cannot be answered. */
static ps_status encode(const batch *b, request *q, ps_error *err) {
    ps_status status = psrun_encode(b->r, q->text, q->len, &q->prompt, &q->n_prompt, err);
    uint64_t most = ps_engine_get_info(b->r->engine)->context;
    if (status == PS_OK && q->n_prompt > most)
        status = ps_error_set(err, PS_E_USAGE, "prompt",
                              "%" PRIu64 " tokens, but the plan's level holds %" PRIu64, q->n_prompt, most);
    if (status != PS_OK) {
        char line[32];
        snprintf(line, sizeof line, "line %u", q->line);
        ps_error_prefix(err, line);
        ps_error_prefix(err, psrun_option(b->r, "prompts")->text);
    }
    return status;
}

/* All of them, so that a line that cannot be answered is refused before time goes into the others. */
static ps_status encode_lines(const batch *b, ps_error *err) {
    ps_status status = PS_OK;
    for (uint32_t i = 0; i < b->n_requests && status == PS_OK; i++)
        status = encode(b, &b->requests[i], err);
    return status;
}

static ps_status start(batch *b, lane *l, ps_error *err) {
    request *q = &b->requests[b->n_started];
    ps_sampler_params sampling = psrun_sampling(b->r);
    sampling.seed += b->n_started++; /* each sequence draws for itself, the same in any company */
    l->of = q;
    q->collected = ps_text_new();
    q->stop = "length";
    return ps_session_new(b->r->engine, &sampling, &l->session, err);
}

static ps_status finish(lane *l, ps_error *err) {
    request *q = l->of;
    q->answer = ps_text_end(q->collected, &q->n_answer);
    q->collected = NULL;
    ps_session_free(l->session);
    *l = (lane){0};
    return q->answer != NULL ? PS_OK : ps_error_set(err, PS_E_NOMEM, "answer", "no memory");
}

/* Take the token that a lane sampled; true if its sequence goes on. */
static bool take_token(batch *b, lane *l) {
    request *q = l->of;
    char piece[4096];
    if (ps_engine_is_end(b->r->engine, l->sampled)) {
        q->stop = "end";
        return false;
    }
    uint32_t n = ps_engine_piece(b->r->engine, l->sampled, piece, sizeof piece);
    ps_text_put(q->collected, piece, n < sizeof piece ? n : sizeof piece);
    q->n_generated++;
    if (ps_session_length(l->session) == ps_engine_get_info(b->r->engine)->context) {
        q->stop = "context";
        return false;
    }
    return q->n_generated < psrun_option(b->r, "tokens")->u64;
}

static ps_status step(batch *b, ps_error *err) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_lanes; i++) {
        lane *l = &b->lanes[i];
        if (l->of == NULL && b->n_started < b->n_requests) {
            ps_status status = start(b, l, err);
            if (status != PS_OK)
                return status;
        }
        if (l->of == NULL)
            continue;
        l->token = l->sampled;
        b->items[n++] = (ps_eval_item){.session = l->session,
                                       .tokens = l->of->prompt != NULL ? l->of->prompt : &l->token,
                                       .n_tokens = l->of->prompt != NULL ? (uint32_t)l->of->n_prompt : 1,
                                       .sampled = &l->sampled};
    }
    ps_status status = psrun_eval(b->r, b->items, n, err);
    for (uint32_t i = 0; i < b->n_lanes && status == PS_OK; i++) {
        lane *l = &b->lanes[i];
        if (l->of == NULL)
            continue;
        free(l->of->prompt);
        l->of->prompt = NULL;
        if (!take_token(b, l))
            status = finish(l, err);
    }
    return status;
}

/* Answers that are there and whose turn it is. */
static ps_status show_ready(batch *b, ps_error *err) {
    for (; b->n_shown < b->n_requests && b->requests[b->n_shown].answer != NULL; b->n_shown++) {
        request *q = &b->requests[b->n_shown];
        if (psrun_option(b->r, "json")->set)
            continue;
        printf("[%u] ", q->line);
        fwrite(q->answer, 1, q->n_answer, stdout);
        putchar('\n');
    }
    return fflush(stdout) == 0 && !ferror(stdout)
               ? PS_OK
               : ps_error_errno(err, PS_E_IO, "standard output", errno, "cannot write");
}

static void report(const batch *b, double seconds) {
    uint64_t n_prompt = 0, n_generated = 0;
    for (uint32_t i = 0; i < b->n_requests; i++) {
        n_prompt += b->requests[i].n_prompt;
        n_generated += b->requests[i].n_generated;
    }
    if (!psrun_option(b->r, "json")->set) {
        if (!psrun_option(b->r, "quiet")->set)
            fprintf(stderr,
                    "%u prompts, %" PRIu64 " tokens in and %" PRIu64 " out in %.2f s: %.1f tokens/s\n",
                    b->n_requests, n_prompt, n_generated, seconds, (double)n_generated / seconds);
        return;
    }
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_f64(j, "seconds", seconds);
    ps_json_u64(j, "prompt_tokens", n_prompt);
    ps_json_u64(j, "generated_tokens", n_generated);
    psrun_vram_json(b->r, j);
    ps_json_array(j, "answers");
    for (uint32_t i = 0; i < b->n_requests; i++) {
        const request *q = &b->requests[i];
        ps_json_object(j, NULL);
        ps_json_u64(j, "line", q->line);
        ps_json_strn(j, "text", q->answer, q->n_answer);
        ps_json_str(j, "stop", q->stop);
        ps_json_u64(j, "prompt_tokens", q->n_prompt);
        ps_json_u64(j, "generated_tokens", q->n_generated);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
    char *text = ps_json_end(j, NULL);
    fputs(text != NULL ? text : "", stdout);
    free(text);
}

ps_status psrun_parallel(const psrun *r, ps_error *err) {
    const char *path = psrun_option(r, "prompts")->text;
    batch b = {.r = r, .n_lanes = (uint32_t)psrun_option(r, "parallel")->u64};
    uint64_t start_ns = ps_clock_ns();
    ps_status status = split_lines(r->input, r->input_bytes, &b, path, err);
    b.lanes = calloc(b.n_lanes, sizeof *b.lanes);
    b.items = calloc(b.n_lanes, sizeof *b.items);
    if (status == PS_OK && (b.lanes == NULL || b.items == NULL))
        status = ps_error_set(err, PS_E_NOMEM, path, "no memory for %u sequences", b.n_lanes);
    if (status == PS_OK)
        status = encode_lines(&b, err);
    while (status == PS_OK && b.n_shown < b.n_requests) {
        status = step(&b, err);
        if (status == PS_OK)
            status = show_ready(&b, err);
    }
    if (status == PS_OK)
        report(&b, (double)(ps_clock_ns() - start_ns) * 1e-9);
    for (uint32_t i = 0; b.lanes != NULL && i < b.n_lanes; i++)
        ps_session_free(b.lanes[i].session);
    for (uint32_t i = 0; b.requests != NULL && i < b.n_requests; i++) {
        free(ps_text_end(b.requests[i].collected, NULL));
        free(b.requests[i].prompt);
        free(b.requests[i].answer);
    }
    free(b.requests);
    free(b.lanes);
    free(b.items);
    return status;
}
