/* Pre-tokenizers against llama.cpp: each splits the strings of tests/golden/tokenizer as it does. */
#include "../tokenizer_golden.h"

/* Rows of the table that treat text alike share the numbers of one of them. */
static const struct twin {
    const char *pre, *golden;
} twins[] = {
    {"default", NULL},
    {"falcon", NULL},
    {"gpt-2", NULL},
    {"trillion", NULL},
    {"smollm", NULL},
    {"starcoder", NULL},
    {"llama-bpe", NULL},
    {"glm4", NULL},
    {"dbrx", NULL},
    {"qwen2", NULL},
    {"stablelm2", NULL},
    {"laguna", NULL},
    {"qwen35", NULL},
    {"phi-2", "gpt-2"},
    {"mpt", "gpt-2"},
    {"olmo", "gpt-2"},
    {"jais", "gpt-2"},
    {"exaone4", "gpt-2"},
    {"gigachat", "gpt-2"},
    {"a.x-4.0", "gpt-2"},
    {"mellum", "gpt-2"},
    {"command-r", "smollm"},
    {"refact", "starcoder"},
    {"codeshell", "starcoder"},
    {"exaone", "starcoder"},
    {"minerva-7b", "starcoder"},
    {"mellum2", "starcoder"},
    {"llama3", "llama-bpe"},
    {"llama-v3", "llama-bpe"},
    {"falcon3", "llama-bpe"},
    {"falcon-h1", "llama-bpe"},
    {"pixtral", "llama-bpe"},
    {"midm-2.0", "llama-bpe"},
    {"lfm2", "llama-bpe"},
    {"glm5", "glm4"},
    {"chatglm-bpe", "dbrx"},
    {"smaug-bpe", "dbrx"},
    {"deepseek-r1-qwen", "qwen2"},
    {"kormo", "qwen2"},
    {"f2llmv2", "qwen2"},
    {"hunyuan", "qwen2"},
    {"solar-open", "qwen2"},
    {"grok-2", "qwen2"},
    {"megrez", "stablelm2"},
    {"granite-docling", "trillion"},
};
enum { N_TWINS = sizeof twins / sizeof twins[0] };

static unsigned check_pre(const char *pre, const char *golden, unsigned *out_n) {
    gguf_build b = {0};
    ps_gguf *gguf = NULL;
    ps_tokenizer *t = NULL;
    ps_error err = {0};
    unsigned wrong = 0;
    tg_build_vocab(&b, pre);
    if (ps_gguf_open_memory(b.data, b.n, pre, &gguf, &err) != PS_OK ||
        ps_tokenizer_open(gguf, &t, &err) != PS_OK) {
        fprintf(stderr, "FAIL: %s: %s: %s\n", pre, err.subject, err.message);
        wrong++;
    } else {
        wrong += tg_check(t, golden, out_n);
    }
    ps_tokenizer_close(t);
    ps_gguf_close(gguf);
    gb_free(&b);
    return wrong;
}

int main(void) {
    unsigned wrong = 0, n_rows = 0;
    for (const char *name; (name = ps_tokenizer_pre_name(n_rows)) != NULL; n_rows++) {
        const struct twin *twin = NULL;
        for (unsigned i = 0; i < N_TWINS; i++)
            if (strcmp(twins[i].pre, name) == 0)
                twin = &twins[i];
        if (twin == NULL) {
            fprintf(stderr, "FAIL: no golden numbers for pre-tokenizer %s\n", name);
            wrong++;
            continue;
        }
        unsigned n = 0, bad = check_pre(name, twin->golden == NULL ? name : twin->golden, &n);
        if (n < 500) {
            fprintf(stderr, "FAIL: %s: only %u strings\n", name, n);
            bad++;
        }
        if (bad != 0)
            fprintf(stderr, "%s: %u differences\n", name, bad);
        wrong += bad;
    }
    if (n_rows != N_TWINS) {
        fprintf(stderr, "FAIL: %u rows in the table, %d in this test\n", n_rows, N_TWINS);
        wrong++;
    }
    printf("%u pre-tokenizers, %u differences\n", n_rows, wrong);
    return wrong != 0;
}
