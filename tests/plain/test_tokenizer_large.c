/* Long texts: time grows as n log n, whatever the text, and what comes back is what went in. */
#include <time.h>

#include "../tokenizer_build.h"
#include "../tokenizer_golden.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double slack = 30.0; /* sanitized code is slow; only a blow-up matters there */
#else
static const double slack = 1.0;
#endif

/* Processor time: other work on the machine does not count. */
static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static unsigned round_trip(const ps_tokenizer *t, const char *what, const char *text, uint64_t len,
                           double limit_s) {
    ps_tokens ids = {0};
    ps_error err = {0};
    char *back = NULL;
    uint64_t n = 0;
    double start = cpu_s();
    ps_status status = ps_tokenizer_encode(t, text, len, PS_ENCODE_PARSE_SPECIAL, &ids, &err);
    double took = cpu_s() - start;
    if (status == PS_OK)
        status = ps_tokenizer_decode(t, ids.ids, ids.n, PS_DECODE_SHOW_SPECIAL, &back, &n, &err);
    printf("%s: %.0f MB, %llu tokens, %.3f s\n", what, (double)len / 1e6, (unsigned long long)ids.n, took);
    unsigned wrong = 0;
    if (status != PS_OK || n != len || memcmp(back, text, len) != 0) {
        fprintf(stderr, "FAIL: %s: the text did not come back (%s)\n", what, err.message);
        wrong++;
    }
    if (took > limit_s * slack) {
        fprintf(stderr, "FAIL: %s: over %.1f s\n", what, limit_s * slack);
        wrong++;
    }
    free(back);
    ps_tokens_free(&ids);
    return wrong;
}

/* Texts of n bytes that have hurt tokenizers: one letter, one space, one newline, special tokens that nest. */
static unsigned all_texts(const ps_tokenizer *t, const char *model, uint64_t n) {
    static const char *const units[] = {"a",  " ",     "\n", "ab", "a ",           "<",
                                        "--", "<|x|>", "1",  "'s", "\xE4\xB8\xAD", "ab\n\n  c1.5"};
    unsigned wrong = 0;
    char *text = malloc(n), name[64];
    if (text == NULL)
        return 1;
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        uint64_t unit = strlen(units[u]), whole = n - n % unit;
        for (uint64_t i = 0; i < whole; i++)
            text[i] = units[u][i % unit];
        snprintf(name, sizeof name, "%s unit %zu", model, u);
        wrong += round_trip(t, name, text, whole, 1.0);
    }
    free(text);
    return wrong;
}

int main(void) {
    static char runs[40][64];
    tb_spec bpe = {.model = "gpt2", .pre = "smollm", .bos = TB(0), .eos = TB(0)};
    tb_spec spm = {.model = "llama", .unk = TB(0), .bos = TB(0), .eos = TB(0), .add_space_prefix = TB(0)};
    /* Runs of a letter up to 32, as tokens; runs of a dash up to 33, as special ones. */
    unsigned n = 0, n_merges = 0;
    static char merges[8][80];
    for (unsigned len = 2; len <= 32; len *= 2, n++) {
        memset(runs[n], 'a', len);
        snprintf(merges[n_merges], sizeof merges[0], "%.*s %.*s", (int)len / 2, runs[n], (int)len / 2,
                 runs[n]);
        bpe.merges[n_merges] = merges[n_merges];
        n_merges++;
        spm.scores[n] = -(float)len;
        bpe.tokens[n] = spm.tokens[n] = runs[n];
    }
    for (unsigned len = 2; len <= 33; len++, n++) {
        memset(runs[n], '-', len);
        bpe.tokens[n] = spm.tokens[n] = runs[n];
        bpe.types[n] = spm.types[n] = 4;
    }
    bpe.tokens[n] = spm.tokens[n] = "<|x|>";
    bpe.types[n] = spm.types[n] = 3;
    spm.tokens[++n] = "\xE2\x96\x81";
    unsigned wrong = 0;
    const tb_spec *specs[2] = {&bpe, &spm};
    for (int i = 0; i < 2; i++) {
        tb_opened o = tb_open(specs[i]);
        if (o.status != PS_OK) {
            fprintf(stderr, "FAIL: %s: %s\n", o.err.subject, o.err.message);
            return 1;
        }
        wrong += all_texts(o.t, specs[i]->model, 1000000);
        tb_close(&o);
    }
    return wrong != 0;
}
