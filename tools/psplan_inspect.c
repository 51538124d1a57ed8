/* psplan inspect: what a GGUF file holds and whether it would run. */
#include <string.h>

#include "core/checked.h"
#include "psplan.h"

static const ps_option options[] = {{"json", 'j', PS_OPT_FLAG, NULL, NULL, 0, 0, "Print JSON."}, PS_CLI_ROWS};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static const ps_command command = {
    .name = "psplan inspect",
    .synopsis = "[OPTIONS] FILE.gguf",
    .summary =
        "Show architecture, shards, tensor types and KV cache of a model file, and what would be refused.",
    .details = "Exit code 0 if the model would run, 1 if not. Weights are never read.",
    .examples = "  psplan inspect model.gguf\n"
                "  psplan inspect --json model-00001-of-00003.gguf",
    .options = options,
    .n_options = N_OPTIONS,
    .min_args = 1,
    .max_args = 1,
};

static const uint64_t contexts[] = {1024, 4096, 16384, 65536, 131072};
enum { N_CONTEXTS = sizeof contexts / sizeof contexts[0] };

/* KV bytes of one sequence; UINT64_MAX on overflow. */
static uint64_t kv_bytes(const ps_model *m, uint64_t n_ctx) {
    uint64_t sum = 0;
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (!ps_add_u64(sum, ps_model_kv_bytes(m, l, ps_model_kv_rows(m, l, n_ctx, PS_TILE_TOKENS)), &sum))
            return UINT64_MAX;
    return sum;
}

static bool context_fits(const ps_model *m, uint64_t n_ctx) {
    return m->n_ctx_train == 0 || n_ctx <= m->n_ctx_train;
}

/* Totals of the shards of one kind. */
typedef struct kind_total {
    uint64_t n, bytes, largest;
} kind_total;

static kind_total total_of(const ps_model *m, ps_shard_kind kind) {
    kind_total t = {0};
    for (uint32_t s = 0; s < m->n_shards; s++)
        if (m->shards[s].kind == kind) {
            t.n++;
            t.bytes += m->shards[s].weight_bytes;
            t.largest = m->shards[s].weight_bytes > t.largest ? m->shards[s].weight_bytes : t.largest;
        }
    return t;
}

static const char *type_name(ps_dtype type) {
    const ps_dtype_info *info = ps_dtype_find((uint32_t)type);
    return info ? info->name : "?";
}

static void model_text(const ps_model *m, ps_text *t) {
    char a[32], b[32];
    const ps_layer *l = &m->layers[0];
    ps_text_printf(t, "model         %s\nparameters    %llu, weights %s\n", m->name,
                   (unsigned long long)m->n_params, ps_format_bytes((double)m->weight_bytes, a));
    ps_text_printf(
        t, "shape         %u layers, width %u, %u heads / %u KV heads x %u, vocabulary %u, context %u%s\n",
        m->n_layers, m->n_embd, l->n_head, l->n_head_kv, l->head_dim_k, m->n_vocab, m->n_ctx_train,
        m->tied_output ? ", output tied to the embedding" : "");
    if (l->n_expert)
        ps_text_printf(t, "experts       %u, %u used, width %u\n", l->n_expert, l->n_expert_used,
                       l->n_ff_expert);
    ps_text_printf(t, "shards       ");
    const char *separator = "";
    for (int k = 0; k < PS_SHARD_KIND_COUNT; k++) {
        kind_total s = total_of(m, (ps_shard_kind)k);
        if (s.n == 0)
            continue;
        ps_text_printf(t, "%s %llu %s %s", separator, (unsigned long long)s.n,
                       ps_shard_kind_name((ps_shard_kind)k), ps_format_bytes((double)s.bytes, a));
        if (s.n > 1)
            ps_text_printf(t, " (largest %s)", ps_format_bytes((double)s.largest, b));
        separator = ",";
    }
    ps_text_printf(t, "\nKV cache      f16, per sequence:");
    separator = "";
    for (int i = 0; i < N_CONTEXTS; i++)
        if (context_fits(m, contexts[i])) {
            ps_text_printf(t, "%s %s for %lluK tokens", separator,
                           ps_format_bytes((double)kv_bytes(m, contexts[i]), a),
                           (unsigned long long)contexts[i] / 1024);
            separator = ",";
        }
    ps_text_printf(t, "\n");
}

static ps_status show_text(const char *path, const ps_gguf *g, const ps_survey *s, ps_error *err) {
    char a[32];
    ps_text *t = ps_text_new();
    ps_text_printf(t, "file          ");
    ps_text_put_plain(t, path);
    ps_text_printf(t, ": GGUF v%u, %u file%s, %llu tensors, %s\n", g->version, g->n_files,
                   g->n_files == 1 ? "" : "s", (unsigned long long)g->n_tensors,
                   ps_format_bytes((double)g->data_bytes, a));
    ps_text_printf(t, "architecture  %s%s\n", s->arch_name[0] ? s->arch_name : "(none given)",
                   s->arch_known ? "" : ", not supported");
    if (s->model)
        model_text(s->model, t);
    ps_text_printf(t, "tensor types ");
    for (uint32_t i = 0; i < s->n_types; i++)
        ps_text_printf(t, "%s %s x %llu (%s%s)", i ? "," : "", type_name(s->types[i].type),
                       (unsigned long long)s->types[i].n_tensors,
                       ps_format_bytes((double)s->types[i].bytes, a),
                       s->types[i].computable ? "" : ", not computable");
    ps_text_printf(t, "\n");
    if (s->n_refused == 0)
        ps_text_printf(t, "refused       nothing: this model runs\n");
    for (uint32_t i = 0; i < s->n_refusals; i++)
        ps_text_printf(t, "%s %s: %s\n", i == 0 ? "refused      " : "             ", s->refusals[i].subject,
                       s->refusals[i].message);
    if (s->n_refused > s->n_refusals)
        ps_text_printf(t, "              and %llu more\n",
                       (unsigned long long)(s->n_refused - s->n_refusals));
    return psplan_print(ps_text_end(t, NULL), err);
}

static void layer_json(const ps_model *m, uint32_t i, ps_json *j) {
    const ps_layer *l = &m->layers[i];
    ps_json_object(j, NULL);
    ps_json_u64(j, "n_head", l->n_head);
    ps_json_u64(j, "n_head_kv", l->n_head_kv);
    ps_json_u64(j, "head_dim_k", l->head_dim_k);
    ps_json_u64(j, "head_dim_v", l->head_dim_v);
    ps_json_u64(j, "n_ff", l->n_ff);
    ps_json_u64(j, "window", l->window);
    if (l->n_expert) {
        ps_json_u64(j, "n_expert", l->n_expert);
        ps_json_u64(j, "n_expert_used", l->n_expert_used);
        ps_json_u64(j, "n_ff_expert", l->n_ff_expert);
    }
    ps_json_close(j);
}

static void model_json(const ps_model *m, ps_json *j) {
    ps_json_object(j, "model");
    ps_json_str(j, "name", m->name);
    ps_json_u64(j, "n_params", m->n_params);
    ps_json_u64(j, "weight_bytes", m->weight_bytes);
    ps_json_u64(j, "n_layers", m->n_layers);
    ps_json_u64(j, "n_embd", m->n_embd);
    ps_json_u64(j, "n_vocab", m->n_vocab);
    ps_json_u64(j, "n_ctx_train", m->n_ctx_train);
    ps_json_bool(j, "tied_output", m->tied_output);
    ps_json_array(j, "layers");
    for (uint32_t i = 0; i < m->n_layers; i++)
        layer_json(m, i, j);
    ps_json_close(j);
    ps_json_array(j, "shards");
    for (uint32_t s = 0; s < m->n_shards; s++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "kind", ps_shard_kind_name(m->shards[s].kind));
        ps_json_u64(j, "layer", m->shards[s].layer);
        ps_json_u64(j, "weight_bytes", m->shards[s].weight_bytes);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_array(j, "kv");
    for (int i = 0; i < N_CONTEXTS; i++)
        if (context_fits(m, contexts[i])) {
            ps_json_object(j, NULL);
            ps_json_u64(j, "context_tokens", contexts[i]);
            ps_json_u64(j, "bytes_per_sequence", kv_bytes(m, contexts[i]));
            ps_json_close(j);
        }
    ps_json_close(j);
    ps_json_close(j);
}

static ps_status show_json(const char *path, const ps_gguf *g, const ps_survey *s, ps_error *err) {
    char hex[PS_HASH_HEX];
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_str(j, "file", path);
    ps_json_u64(j, "gguf_version", g->version);
    ps_json_u64(j, "n_files", g->n_files);
    ps_json_u64(j, "n_tensors", g->n_tensors);
    ps_json_u64(j, "tensor_bytes", g->data_bytes);
    ps_json_str(j, "hash", ps_hash_hex(g->hash, hex));
    ps_json_str(j, "architecture", s->arch_name);
    ps_json_bool(j, "runs", s->n_refused == 0);
    ps_json_array(j, "types");
    for (uint32_t i = 0; i < s->n_types; i++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "type", type_name(s->types[i].type));
        ps_json_bool(j, "computable", s->types[i].computable);
        ps_json_u64(j, "n_tensors", s->types[i].n_tensors);
        ps_json_u64(j, "bytes", s->types[i].bytes);
        ps_json_close(j);
    }
    ps_json_close(j);
    if (s->model)
        model_json(s->model, j);
    ps_json_u64(j, "n_refused", s->n_refused);
    ps_json_array(j, "refused");
    for (uint32_t i = 0; i < s->n_refusals; i++) {
        ps_json_object(j, NULL);
        ps_json_str(j, "subject", s->refusals[i].subject);
        ps_json_str(j, "message", s->refusals[i].message);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
    return psplan_print(ps_json_end(j, NULL), err);
}

int psplan_inspect(int argc, char **argv) {
    ps_opt_value values[N_OPTIONS];
    const char *args[1];
    uint32_t n_args;
    int code;
    if (!psplan_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    ps_error err = {0};
    ps_gguf *gguf = NULL;
    ps_survey *survey = NULL;
    bool runs = false;
    ps_status status = ps_gguf_open(args[0], &gguf, &err);
    if (!status)
        status = ps_model_survey(gguf, &survey, &err);
    if (!status) {
        runs = survey->n_refused == 0;
        status = ps_options_get(&command, values, "json")->set ? show_json(args[0], gguf, survey, &err)
                                                               : show_text(args[0], gguf, survey, &err);
    }
    ps_survey_close(survey);
    if (gguf)
        ps_gguf_close(gguf);
    code = psplan_finish(status, &err);
    return code == 0 && !runs ? 1 : code;
}
