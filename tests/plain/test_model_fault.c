/* Opening and surveying a model when memory runs out: an error, and nothing left behind. */
#include <stdio.h>

#include "../model_builder.h"
#include "fault.h"
#include "model/model.h"

static const char *judge(ps_status status, const ps_error *err, bool injected) {
    if (status == PS_OK)
        return injected && ps_fault_hit() ? "went well although a call had failed" : NULL;
    if (!injected)
        return err->message;
    if (status != PS_E_NOMEM)
        return ps_status_name(status);
    return err->status == status && err->message[0] != '\0' ? NULL : "no message";
}

static const char *open_model(void *ctx, bool injected) {
    ps_model *m = NULL;
    ps_error err = {.status = PS_OK};
    ps_status status = ps_model_open(ctx, &m, &err);
    if (status != PS_OK && m != NULL)
        return "an object on failure";
    ps_model_close(m);
    return judge(status, &err, injected);
}

static const char *survey_model(void *ctx, bool injected) {
    ps_survey *s = NULL;
    ps_error err = {.status = PS_OK};
    ps_status status = ps_model_survey(ctx, &s, &err);
    if (status != PS_OK && s != NULL)
        return "an object on failure";
    ps_survey_close(s);
    return judge(status, &err, injected);
}

int main(void) {
    unsigned wrong = 0;
    mb_shape shapes[4] = {mb_llama_small, mb_qwen3_small, mb_qwen3moe_small, mb_gemma3_small};
    for (unsigned i = 0; i < 8; i++) {
        mb_shape s = shapes[i % 4];
        mb b;
        ps_gguf *g;
        ps_error err;
        uint64_t size, n_calls;
        s.n_layers = 80; /* so that the arena needs more than its first block */
        if (i >= 4)
            s.type = PS_DTYPE_Q2_K, s.n_embd = 256, s.n_ff = 256, s.head_dim = 256, s.n_ff_expert = 256;
        mb_model(&b, &s);
        const uint8_t *data = mb_finish(&b, &size);
        if (ps_gguf_open_memory(data, size, "test.gguf", &g, &err) != PS_OK) {
            fprintf(stderr, "FAIL: %s\n", err.message);
            return 1;
        }
        if (i < 4) {
            wrong += ps_fault_sweep(s.arch, open_model, g, &n_calls);
            wrong += n_calls < 2;
        }
        wrong += ps_fault_sweep(i < 4 ? "survey" : "survey with refusals", survey_model, g, &n_calls);
        wrong += n_calls < 2;
        ps_gguf_close(g);
        mb_free(&b);
    }
    return wrong != 0;
}
