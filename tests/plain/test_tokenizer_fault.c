/* The tokenizer when memory runs out, at every allocation in turn, and how much memory it takes. */
#include "../tokenizer_build.h"
#include "../tokenizer_golden.h"
#include "fault.h"

typedef struct source {
    ps_gguf *gguf;
    const ps_tokenizer *t;
    const char *text;
    uint64_t len;
} source;

static const char *open_and_close(void *ctx, bool injected) {
    ps_tokenizer *t = NULL;
    ps_error err = {0};
    ps_status status = ps_tokenizer_open(((source *)ctx)->gguf, &t, &err);
    if (status == PS_OK) {
        ps_tokenizer_close(t);
        return injected && ps_fault_hit() ? "opened although a call had failed" : NULL;
    }
    if (!injected)
        return "did not open";
    if (t != NULL)
        return "an object on failure";
    return status == PS_E_NOMEM && err.message[0] != '\0' ? NULL : ps_status_name(status);
}

static const char *encode_and_decode(void *ctx, bool injected) {
    const source *s = ctx;
    ps_tokens ids = {0};
    ps_error err = {0};
    char *text = NULL;
    uint64_t len;
    ps_status status = ps_tokenizer_encode(s->t, s->text, s->len, 3, &ids, &err);
    const char *wrong = status != PS_OK && ids.n != 0 ? "tokens left by a call that failed" : NULL;
    if (status == PS_OK)
        status = ps_tokenizer_decode(s->t, ids.ids, ids.n, 3, &text, &len, &err);
    if (status == PS_OK && injected && ps_fault_hit())
        wrong = "worked although a call had failed";
    if (status != PS_OK && (!injected || status != PS_E_NOMEM))
        wrong = ps_status_name(status);
    free(text);
    ps_tokens_free(&ids);
    return wrong;
}

static unsigned sweep(const char *name, const tb_spec *spec, const char *text, uint64_t len) {
    tb_opened o = tb_open(spec);
    uint64_t n_open, n_encode;
    if (o.status != PS_OK) {
        fprintf(stderr, "FAIL: %s: %s: %s\n", name, o.err.subject, o.err.message);
        tb_close(&o);
        return 1;
    }
    source s = {o.gguf, o.t, text, len};
    unsigned wrong = ps_fault_sweep(name, open_and_close, &s, &n_open);
    wrong += ps_fault_sweep(name, encode_and_decode, &s, &n_encode);
    printf("%s: %llu calls when opening, %llu when encoding\n", name, (unsigned long long)n_open,
           (unsigned long long)n_encode);
    if (n_open < 5 || n_encode < 4) {
        fprintf(stderr, "FAIL: %s: the calls are not seen\n", name);
        wrong++;
    }
    tb_close(&o);
    return wrong;
}

/* Opening takes a constant times the bytes of the file; 16 for the smallest tokens, 12 bytes each. */
static unsigned check_memory(void) {
    gguf_build b = {0};
    ps_gguf *gguf = NULL;
    ps_tokenizer *t = NULL;
    ps_error err = {0};
    unsigned wrong = 0;
    tg_build_vocab(&b, "smollm");
    if (ps_gguf_open_memory(b.data, b.n, "memory", &gguf, &err) != PS_OK)
        return 1;
    ps_fault_reset_peak();
    int64_t before = ps_fault_now().heap_bytes;
    if (ps_tokenizer_open(gguf, &t, &err) != PS_OK)
        return 1;
    int64_t peak = ps_fault_now().peak_bytes - before;
    printf("vocabulary of %zu bytes: %lld bytes at most while opening\n", b.n, (long long)peak);
    if (peak > (int64_t)b.n * 16) {
        fprintf(stderr, "FAIL: too much memory\n");
        wrong++;
    }
    ps_tokenizer_close(t);
    ps_gguf_close(gguf);
    gb_free(&b);
    return wrong;
}

int main(void) {
    static const tb_spec bpe = {.model = "gpt2",
                                .pre = "llama-bpe",
                                .tokens = {"ab", "<|im_end|>", "<t>", "", "zz"},
                                .types = {1, 3, 4, 1, 3},
                                .merges = {"a b", "b a", "q r", "qr s"},
                                .bos = TB(257),
                                .eos = TB(257),
                                .add_eos = TB(1)};
    static const tb_spec spm = {.model = "llama",
                                .tokens = {"<unk>", "<s>", "</s>", "ab", "a", "b",
                                           "\xE2\x96\x81"
                                           "a",
                                           "<t>"},
                                .types = {2, 3, 3, 1, 1, 1, 1, 4},
                                .bos = TB(257),
                                .eos = TB(258),
                                .unk = TB(256)};
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "ab <t>qrs!"[i % 10];
    memset(text + 500, 'a', 700);
    unsigned wrong =
        sweep("gpt2", &bpe, text, sizeof text) + sweep("llama", &spm, text, sizeof text) + check_memory();
    return wrong != 0;
}
