/* What both fuzz targets of plans do with a plan that was accepted. */
#ifndef PS_FUZZ_PLAN_ROUNDTRIP_H
#define PS_FUZZ_PLAN_ROUNDTRIP_H

#include <stdlib.h>
#include <string.h>

#include "schemas/plan.h"
#include "tests/model_builder.h"

/* YAML -> binary -> YAML must be the identity; the checker must come to an answer for every level. */
static inline void plan_roundtrip(const ps_plan *p) {
    char *yaml, *yaml2;
    uint8_t *binary;
    uint64_t n, n2, n_binary;
    ps_plan *a, *b;
    ps_error err;
    if (ps_plan_to_yaml(p, &yaml, &n, &err) != PS_OK || ps_plan_parse(yaml, n, "yaml", &a, &err) != PS_OK ||
        ps_plan_to_binary(a, &binary, &n_binary, &err) != PS_OK ||
        ps_plan_parse(binary, n_binary, "binary", &b, &err) != PS_OK ||
        ps_plan_to_yaml(b, &yaml2, &n2, &err) != PS_OK || n != n2 || memcmp(yaml, yaml2, n) != 0)
        abort();
    free(yaml);
    free(yaml2);
    free(binary);
    ps_plan_free(a);
    ps_plan_free(b);

    mb file;
    uint64_t size;
    ps_gguf *gguf;
    ps_model *model;
    mb_model(&file, &mb_llama_small);
    const uint8_t *data = mb_finish(&file, &size);
    if (ps_gguf_open_memory(data, size, "model", &gguf, &err) != PS_OK ||
        ps_model_open(gguf, &model, &err) != PS_OK)
        abort();
    (void)ps_plan_match_model(p, model, &err);
    for (uint32_t i = 0; i < p->n_levels && i < 4; i++)
        (void)ps_plan_check(p, &p->levels[i], model, &err);
    ps_model_close(model);
    ps_gguf_close(gguf);
    mb_free(&file);
}

#endif
