/* psrun --bench: prefill of a prompt of random tokens and decode after it, in turn, medians with quartiles,
 * beside what the plan predicted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/json.h"
#include "psrun_internal.h"

typedef struct bench_row {
    const char *name;
    uint64_t n_tokens; /* of one sample */
    uint32_t n;
    double *seconds; /* [n] samples of one sample's time */
    double predicted_s;
    uint64_t n_steps, copied_bytes,
        direct_bytes; /* of the last sample; bytes that the GPU took from the host */
} bench_row;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantile q of sorted samples, linear between neighbours. */
static double quantile(const double *sorted, uint32_t n, double q) {
    double at = q * (n - 1);
    uint32_t i = (uint32_t)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

/* xorshift64*: tokens only need to be spread over the vocabulary. */
static uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}

/* The sequences of a run: each with its own prompt, all in step. */
typedef struct bench_run {
    const psrun *r;
    uint32_t n_seqs;
    ps_session **sessions;
    int32_t *prompts; /* [n_seqs x tokens of a prompt] */
    int32_t *tokens;  /* [n_seqs] last sampled, [n_seqs] to evaluate next */
    ps_eval_item *items;
} bench_run;

/* What a row counts, up to now. */
typedef struct bench_count {
    uint64_t n_steps, copied_bytes, direct_bytes;
    double predicted_s;
} bench_count;

static bench_count count(const bench_run *b) {
    ps_engine_stats s;
    ps_engine_get_stats(b->r->engine, &s);
    return (bench_count){s.n_steps, s.copied_bytes, s.direct_bytes, s.predicted_s};
}

static void add_sample(bench_row *row, double seconds, const bench_count *from, const bench_count *to) {
    row->seconds[row->n++] = seconds;
    row->predicted_s = to->predicted_s - from->predicted_s;
    row->n_steps = to->n_steps - from->n_steps;
    row->copied_bytes = to->copied_bytes - from->copied_bytes;
    row->direct_bytes = to->direct_bytes - from->direct_bytes;
}

static ps_status timed_eval(const bench_run *b, double *seconds, ps_error *err) {
    uint64_t start_ns = ps_clock_ns();
    ps_status status = ps_engine_eval(b->r->engine, b->items, b->n_seqs, err);
    *seconds += (double)(ps_clock_ns() - start_ns) * 1e-9;
    if (status == PS_OK)
        psrun_vram_note(b->r);
    return status;
}

static ps_status one_round(const bench_run *b, bench_row *prefill, bench_row *decode, ps_error *err) {
    double prefill_s = 0, decode_s = 0;
    uint32_t n_prompt = (uint32_t)(prefill->n_tokens / b->n_seqs);
    for (uint32_t k = 0; k < b->n_seqs; k++) {
        ps_session_reset(b->sessions[k]);
        b->items[k] = (ps_eval_item){.session = b->sessions[k],
                                     .tokens = b->prompts + (uint64_t)k * n_prompt,
                                     .n_tokens = n_prompt,
                                     .sampled = &b->tokens[k]};
    }
    bench_count start = count(b), middle, end;
    ps_status status = timed_eval(b, &prefill_s, err);
    middle = count(b);
    add_sample(prefill, prefill_s, &start, &middle);
    for (uint64_t i = 0; i < decode->n_tokens / b->n_seqs && status == PS_OK; i++) {
        for (uint32_t k = 0; k < b->n_seqs; k++) {
            b->tokens[b->n_seqs + k] = b->tokens[k];
            b->items[k].tokens = &b->tokens[b->n_seqs + k];
            b->items[k].n_tokens = 1;
        }
        status = timed_eval(b, &decode_s, err);
    }
    end = count(b);
    add_sample(decode, decode_s, &middle, &end);
    return status;
}

static void print_row(const bench_row *row, ps_json *j) {
    double median = quantile(row->seconds, row->n, 0.5), q1 = quantile(row->seconds, row->n, 0.25),
           q3 = quantile(row->seconds, row->n, 0.75), tokens = (double)row->n_tokens;
    if (j == NULL) {
        printf("%-8s %6" PRIu64
               " tokens  %9.1f tokens/s  (%.1f to %.1f)  %8.2f ms  predicted %8.2f ms  %+.1f%%\n",
               row->name, row->n_tokens, tokens / median, tokens / q3, tokens / q1, median * 1e3,
               row->predicted_s * 1e3, 100 * (row->predicted_s / median - 1));
        return;
    }
    ps_json_object(j, row->name);
    ps_json_u64(j, "tokens", row->n_tokens);
    ps_json_u64(j, "n", row->n);
    ps_json_f64(j, "tokens_per_s", tokens / median);
    ps_json_f64(j, "median_s", median);
    ps_json_f64(j, "q1_s", q1);
    ps_json_f64(j, "q3_s", q3);
    ps_json_f64(j, "predicted_s", row->predicted_s);
    ps_json_u64(j, "steps", row->n_steps);
    ps_json_f64(j, "copied_bytes_per_step",
                row->n_steps == 0 ? 0 : (double)row->copied_bytes / (double)row->n_steps);
    ps_json_f64(j, "direct_bytes_per_step",
                row->n_steps == 0 ? 0 : (double)row->direct_bytes / (double)row->n_steps);
    ps_json_close(j);
}

static void print_result(const psrun *r, const bench_row *rows) {
    if (!psrun_option(r, "json")->set) {
        print_row(&rows[0], NULL);
        print_row(&rows[1], NULL);
        return;
    }
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_str(j, "model", info->model_name);
    ps_json_str(j, "predictions_of", psrun_predictions_of(info));
    ps_json_str(j, "budget", info->budget);
    ps_json_str(j, "cpu_level", info->cpu_level);
    ps_json_u64(j, "threads", info->n_threads);
    ps_json_f64(j, "load_s", (double)info->load_ns * 1e-9);
    psrun_vram_json(r, j);
    print_row(&rows[0], j);
    print_row(&rows[1], j);
    ps_json_close(j);
    char *text = ps_json_end(j, NULL);
    fputs(text != NULL ? text : "", stdout);
    free(text);
}

ps_status psrun_bench(const psrun *r, ps_error *err) {
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    uint64_t n_prompt = psrun_option(r, "bench-prompt")->u64, n_decode = psrun_option(r, "bench-decode")->u64;
    uint32_t n_rounds = (uint32_t)psrun_option(r, "repeat")->u64;
    if (n_prompt + n_decode > info->context)
        return ps_error_set(err, PS_E_USAGE, "--bench-prompt",
                            "%" PRIu64 " and %" PRIu64 " tokens do not fit in a context of %" PRIu64,
                            n_prompt, n_decode, info->context);
    bench_run b = {.r = r, .n_seqs = (uint32_t)psrun_option(r, "parallel")->u64};
    ps_status status = PS_OK;
    b.sessions = calloc(b.n_seqs, sizeof *b.sessions);
    b.prompts = calloc(b.n_seqs, n_prompt * sizeof *b.prompts);
    b.tokens = calloc(b.n_seqs, 2 * sizeof *b.tokens);
    b.items = calloc(b.n_seqs, sizeof *b.items);
    double *samples = malloc(2 * ((size_t)n_rounds + 1) * sizeof *samples);
    if (b.sessions == NULL || b.prompts == NULL || b.tokens == NULL || b.items == NULL || samples == NULL) {
        status = ps_error_set(err, PS_E_NOMEM, "bench", "no memory");
        goto done;
    }
    uint64_t state = 0x9E3779B97F4A7C15u;
    for (uint64_t i = 0; i < n_prompt * b.n_seqs; i++)
        b.prompts[i] = (int32_t)(next_random(&state) % info->n_vocab);
    ps_sampler_params greedy = {.top_p = 1};
    for (uint32_t k = 0; k < b.n_seqs && status == PS_OK; k++)
        status = ps_session_new(r->engine, &greedy, &b.sessions[k], err);
    bench_row rows[2] = {
        {.name = "prefill", .n_tokens = n_prompt * b.n_seqs, .seconds = samples},
        {.name = "decode", .n_tokens = n_decode * b.n_seqs, .seconds = samples + n_rounds + 1}};
    for (uint32_t i = 0; i <= n_rounds && status == PS_OK; i++) {
        status = one_round(&b, &rows[0], &rows[1], err);
        if (i == 0) { /* the first warms up, and shows what memory it takes */
            rows[0].n = rows[1].n = 0;
            psrun_vram_calm(r);
        }
    }
    if (status != PS_OK)
        goto done;
    for (int i = 0; i < 2; i++)
        qsort(rows[i].seconds, rows[i].n, sizeof(double), by_value);
    print_result(r, rows);
done:
    for (uint32_t k = 0; b.sessions != NULL && k < b.n_seqs; k++)
        ps_session_free(b.sessions[k]);
    free(b.sessions);
    free(b.prompts);
    free(b.tokens);
    free(b.items);
    free(samples);
    return status;
}
