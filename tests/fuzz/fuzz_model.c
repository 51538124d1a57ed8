/* Any bytes as a GGUF file whose model is opened, surveyed and asked for its costs. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const ps_model *m) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_shards; i++) {
        const ps_shard *s = &m->shards[i];
        sum += s->weight_bytes;
        for (uint32_t k = 0; k < s->n_ops; k++)
            if (!(ps_op_flops(m, s->layer, &s->ops[k], 7, 9) >= 0) ||
                !(ps_op_weight_bytes(m, s->layer, &s->ops[k], 7) >= 0))
                abort();
        if (ps_model_kv_bytes(m, s->layer, ps_model_kv_rows(m, s->layer, UINT64_MAX, 512)) == 0)
            abort();
    }
    if (sum != m->weight_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ps_gguf *g;
    ps_model *m;
    ps_survey *s;
    ps_error err;
    if (ps_gguf_open_memory(data, size, "fuzz", &g, &err) != PS_OK)
        return 0;
    ps_status st = ps_model_open(g, &m, &err);
    if (ps_model_survey(g, &s, &err) == PS_OK) {
        if ((st == PS_OK) != (s->n_refused == 0))
            abort(); /* the survey and the opening must agree */
        if (s->model != NULL)
            walk(s->model);
        ps_survey_close(s);
    }
    if (st == PS_OK) {
        walk(m);
        ps_model_close(m);
    }
    ps_gguf_close(g);
    return 0;
}
