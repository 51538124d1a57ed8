/* What psplan prints about a plan: the table for people, and the same as JSON. */
#include <string.h>

#include "plan/memory.h"
#include "psplan.h"

static double share(double bound, double step) {
    return step > 0 ? 100 * bound / step : 0;
}

static uint64_t kv_bytes(const ps_plan *plan, const ps_level *l) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->n_layers; i++)
        sum += l->kv[i].bytes * l->n_seqs;
    return sum;
}

/* Tokens per second of a tier: new tokens of a full step. */
static double rate(const ps_tier *t, double step_s) {
    return step_s > 0 ? t->max_tokens / step_s : 0;
}

static void memory_map(const psplan_view *v, const ps_level *l, ps_text *t) {
    char b[6][32];
    uint64_t kv = kv_bytes(v->plan, l), program = ps_memory_program_bytes(v->model, l->n_threads, l->n_seqs);
    psplan_bytes((double)v->model->weight_bytes, b[0]);
    psplan_bytes((double)kv, b[1]);
    psplan_bytes((double)(l->host_arena_bytes - kv), b[2]);
    psplan_bytes((double)program, b[3]);
    psplan_bytes((double)l->peak_host_bytes, b[4]);
    psplan_bytes((double)v->profile->topology.memory_bytes, b[5]);
    ps_text_printf(t,
                   "  memory   weights %s, kv cache %s, activations and scratch %s, program %s: %s of %s\n",
                   b[0], b[1], b[2], b[3], b[4], b[5]);
}

static void level_table(const psplan_view *v, const ps_level *l, ps_text *t) {
    ps_text_printf(t, "\nbudget %s, context %llu, %u sequence%s, %u thread%s\n", l->budget,
                   (unsigned long long)l->bucket_tokens, l->n_seqs, l->n_seqs == 1 ? "" : "s", l->n_threads,
                   l->n_threads == 1 ? "" : "s");
    memory_map(v, l, t);
    ps_text_printf(t, "  %8s  %10s  %10s  %11s  %11s  %6s  %10s\n", "tokens", "step empty", "step full",
                   "tok/s empty", "tok/s full", "% raw", "% reachable");
    for (uint32_t i = 0; i < l->n_tiers; i++) {
        const ps_tier *r = &l->tiers[i];
        char a[32], b[32];
        psplan_time(r->step_empty_s, a);
        psplan_time(r->step_full_s, b);
        ps_text_printf(t, "  %8u  %10s  %10s  %11.1f  %11.1f  %5.0f%%  %10.0f%%\n", r->max_tokens, a, b,
                       rate(r, r->step_empty_s), rate(r, r->step_full_s),
                       share(r->raw_bound_s, r->step_full_s), share(r->reachable_bound_s, r->step_full_s));
    }
}

void psplan_table(const psplan_view *v, ps_text *t) {
    char w[32];
    psplan_bytes((double)v->model->weight_bytes, w);
    ps_text_printf(t, "%s: %s, %u layers, %s of weights\n",
                   v->model->name[0] ? v->model->name : v->model_path, v->model->arch_name,
                   v->model->n_layers, w);
    ps_text_printf(t, "%s%s\n", v->profile->topology.cpu_model,
                   v->profile->synthetic ? " (synthetic profile)" : "");
    for (uint32_t i = 0; i < v->plan->n_levels; i++)
        level_table(v, &v->plan->levels[i], t);
    ps_text_printf(t,
                   "\nfull: the sequences hold the whole context; shares are of the bounds there.\n%u "
                   "program%s, plan in %s\n",
                   v->plan->n_programs, v->plan->n_programs == 1 ? "" : "s", v->output_path);
}

static void level_json(const psplan_view *v, const ps_level *l, ps_json *j) {
    uint64_t kv = kv_bytes(v->plan, l);
    ps_json_object(j, NULL);
    ps_json_str(j, "budget", l->budget);
    ps_json_u64(j, "budget_bytes", l->budget_bytes);
    ps_json_u64(j, "context_tokens", l->bucket_tokens);
    ps_json_u64(j, "n_sequences", l->n_seqs);
    ps_json_u64(j, "n_threads", l->n_threads);
    ps_json_object(j, "memory");
    ps_json_u64(j, "weight_bytes", v->model->weight_bytes);
    ps_json_u64(j, "kv_bytes", kv);
    ps_json_u64(j, "activation_bytes", l->host_arena_bytes - kv);
    ps_json_u64(j, "program_bytes", ps_memory_program_bytes(v->model, l->n_threads, l->n_seqs));
    ps_json_u64(j, "host_arena_bytes", l->host_arena_bytes);
    ps_json_u64(j, "vram_work_bytes", l->vram_work_bytes);
    ps_json_u64(j, "peak_host_bytes", l->peak_host_bytes);
    ps_json_close(j);
    ps_json_array(j, "tiers");
    for (uint32_t i = 0; i < l->n_tiers; i++) {
        const ps_tier *r = &l->tiers[i];
        ps_json_object(j, NULL);
        ps_json_u64(j, "max_tokens", r->max_tokens);
        ps_json_u64(j, "max_outputs", r->max_outputs);
        ps_json_u64(j, "program", r->program);
        ps_json_f64(j, "step_empty_s", r->step_empty_s);
        ps_json_f64(j, "step_full_s", r->step_full_s);
        ps_json_f64(j, "tokens_per_s_empty", rate(r, r->step_empty_s));
        ps_json_f64(j, "tokens_per_s_full", rate(r, r->step_full_s));
        ps_json_f64(j, "raw_bound_s", r->raw_bound_s);
        ps_json_f64(j, "reachable_bound_s", r->reachable_bound_s);
        ps_json_u64(j, "scratch_bytes", r->scratch_bytes);
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
}

void psplan_json(const psplan_view *v, ps_json *j) {
    char hex[PS_HASH_HEX];
    ps_json_bool(j, "feasible", true);
    ps_json_str(j, "plan", v->output_path);
    ps_json_object(j, "model");
    ps_json_str(j, "file", v->model_path);
    ps_json_str(j, "name", v->model->name);
    ps_json_str(j, "architecture", v->model->arch_name);
    ps_json_str(j, "hash", ps_hash_hex(v->plan->model_hash, hex));
    ps_json_u64(j, "n_layers", v->model->n_layers);
    ps_json_u64(j, "weight_bytes", v->model->weight_bytes);
    ps_json_close(j);
    ps_json_object(j, "profile");
    ps_json_str(j, "cpu", v->profile->topology.cpu_model);
    ps_json_str(j, "hash", ps_hash_hex(v->plan->profile_hash, hex));
    ps_json_bool(j, "synthetic", v->profile->synthetic);
    ps_json_close(j);
    ps_json_u64(j, "n_programs", v->plan->n_programs);
    ps_json_array(j, "levels");
    for (uint32_t i = 0; i < v->plan->n_levels; i++)
        level_json(v, &v->plan->levels[i], j);
    ps_json_close(j);
}
