/* What psplan prints about a plan: the table for people, and the same as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/memory.h"
#include "psplan.h"

static double share(double bound, double step) {
    return step > 0 ? 100 * bound / step : 0;
}

static uint64_t kv_in(const ps_plan *plan, const ps_level *l, ps_space space) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->n_layers; i++)
        sum += l->kv[i].space == space ? l->kv[i].bytes * l->n_seqs : 0;
    return sum;
}

/* Tokens per second of a tier: new tokens of a full step. */
static double rate(const ps_tier *t, double step_s) {
    return step_s > 0 ? t->max_tokens / step_s : 0;
}

static void memory_map(const psplan_view *v, const ps_level *l, ps_text *t) {
    char b[6][32];
    uint64_t kv = kv_in(v->plan, l, PS_SPACE_HOST),
             program = ps_memory_program_bytes(v->model, l->n_threads, l->n_seqs);
    ps_format_bytes((double)v->model->weight_bytes, b[0]);
    ps_format_bytes((double)kv, b[1]);
    ps_format_bytes((double)(l->host_arena_bytes - kv), b[2]);
    ps_format_bytes((double)program, b[3]);
    ps_format_bytes((double)l->peak_host_bytes, b[4]);
    ps_format_bytes((double)v->profile->topology.memory_bytes, b[5]);
    ps_text_printf(t,
                   "  memory   weights %s, kv cache %s, activations and scratch %s, program %s: %s of %s\n",
                   b[0], b[1], b[2], b[3], b[4], b[5]);
}

/* Bytes of a weight that an instruction names, by how it finds them. */
static void find_weight(const psplan_view *v, const ps_lower_request *r, const ps_program *p,
                        const ps_instr *in, uint32_t layer, int w, psplan_found *f) {
    const ps_weight *x = in->w[w] != PS_ROLE_NONE ? ps_model_weight(v->model, layer, in->w[w]) : NULL;
    if (!x)
        return;
    bool dispatch = in->op == PS_OP_MOE_DISPATCH, cpu = in->queue == PS_QUEUE_CPU;
    if (dispatch && x->experts > 1) {
        ps_expert_share s = ps_instr_experts(r, p, in, layer);
        double expert = (double)x->bytes / (double)x->experts;
        f->host += cpu ? expert * s.there : 0;
        f->direct += cpu ? 0 : expert * s.direct;
        return;
    }
    double share = 1, rows = (double)(x->experts > 1 ? x->experts : x->rows);
    if (w == 0)
        share = (in->n_rows ? (double)in->n_rows / rows : 1) *
                (in->n_cols ? (double)in->n_cols / (double)x->cols : 1);
    double bytes = (double)x->bytes * share;
    if (in->op == PS_OP_COPY)
        f->copied += bytes;
    else if (cpu)
        f->host += bytes;
    else if (in->at[w] == PS_AT_HOST)
        f->direct += bytes;
}

psplan_found psplan_find_weights(const psplan_view *v, const ps_level *level, const ps_tier *t) {
    const ps_program *p = &v->plan->programs[t->program];
    ps_lower_request r = ps_lower_request_of(level, t, v->model, v->profile, v->cost);
    psplan_found f = {0, 0, 0};
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (uint32_t l = 0; l < p->blocks[b].n_layers; l++)
            for (uint32_t i = p->blocks[b].instr0; i < p->blocks[b].instr0 + p->blocks[b].n_instrs; i++) {
                const ps_instr *in = &p->instrs[i];
                uint32_t layer = ps_instr_weight_layer(v->plan, in, p->blocks[b].layer0 + l);
                for (int w = 0; w < PS_OP_MAX_WEIGHTS && in->op != PS_OP_EMBED; w++)
                    find_weight(v, &r, p, in, layer, w, &f);
            }
    return f;
}

static void vram_map(const psplan_view *v, const ps_level *l, ps_text *t) {
    char b[5][32];
    uint64_t kv = kv_in(v->plan, l, PS_SPACE_VRAM);
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->plan->n_layers; i++)
        n += l->kv[i].space == PS_SPACE_VRAM;
    bool mixture = false;
    for (uint32_t i = 0; i < v->model->n_layers; i++)
        mixture = mixture || v->model->layers[i].n_expert != 0;
    ps_format_bytes((double)l->vram_base_bytes, b[0]);
    ps_format_bytes((double)kv, b[1]);
    ps_format_bytes((double)(l->vram_work_bytes - kv), b[2]);
    ps_format_bytes((double)l->vram_weight_bytes, b[3]);
    ps_format_bytes((double)(l->vram_base_bytes + l->vram_work_bytes + l->vram_weight_bytes), b[4]);
    ps_text_printf(
        t,
        "  vram     CUDA context and libraries %s, kv cache %s (%u of %u layers), activations and slots %s, "
        "weights %s: %s\n",
        b[0], b[1], n, v->plan->n_layers, b[2], b[3], b[4]);
    for (uint32_t i = 0; i < l->n_tiers; i++) {
        const ps_tier *r = &l->tiers[i];
        if (i && r->max_tokens != l->n_seqs && i + 1 != l->n_tiers)
            continue;
        psplan_found f = psplan_find_weights(v, l, r);
        ps_format_bytes(f.copied, b[0]);
        ps_format_bytes(f.direct, b[1]);
        ps_format_bytes(f.host, b[2]);
        ps_text_printf(t, "  steps of %u: copied %s, read direct %s", r->max_tokens, b[0], b[1]);
        if (r->max_direct)
            ps_text_printf(t, " (%u expert%s a layer at most)", r->max_direct, r->max_direct == 1 ? "" : "s");
        ps_text_printf(t, ", read by the CPU %s%s\n", b[2], mixture ? "; of experts those expected" : "");
    }
}

/* Order in which people compare them: what is done by hand today first. */
static const ps_family shown[] = {PS_FAMILY_STATIC, PS_FAMILY_GPU, PS_FAMILY_DIRECT, PS_FAMILY_DYNAMIC,
                                  PS_FAMILY_SPLIT};

static const char *family_title(ps_family f) {
    return f == PS_FAMILY_STATIC ? "static, attention first" : ps_family_name(f);
}

/* Kinds that a path puts in order; small weights, which are always there, count with their blocks. */
enum { FILL_ATTN, FILL_HEAD, FILL_FFN, FILL_COUNT };

/* Of each kind's bytes those in VRAM, in percent. */
static void filled(const psplan_view *v, const ps_level *l, double out[FILL_COUNT]) {
    double held[FILL_COUNT] = {0}, all[FILL_COUNT] = {0};
    for (uint32_t i = 0; i < v->model->n_shards; i++) {
        ps_shard_kind kind = v->model->shards[i].kind;
        if (kind != PS_SHARD_EMBED)
            all[kind == PS_SHARD_ATTN   ? FILL_ATTN
                : kind == PS_SHARD_HEAD ? FILL_HEAD
                                        : FILL_FFN] += (double)v->model->shards[i].weight_bytes;
    }
    for (uint32_t i = 0; i < l->n_resident; i++) {
        const ps_weight_range *r = &l->resident[i].range;
        uint64_t bytes;
        if (ps_weight_range_bytes(v->model, r, &bytes, NULL))
            held[!ps_role_get(r->role)->per_layer ? FILL_HEAD
                 : r->role < PS_ROLE_FFN_NORM     ? FILL_ATTN
                                                  : FILL_FFN] += (double)bytes;
    }
    for (int i = 0; i < FILL_COUNT; i++)
        out[i] = all[i] > 0 ? fmin(share(held[i], all[i]), 100) : 0;
}

/* "attention, head, feed-forward, as far as attention 100%, head 34%, feed-forward 0%". buf holds 192; returns buf. */
static const char *fill_order(const psplan_view *v, const ps_level *l, const ps_level_report *r, char *buf) {
    double f[FILL_COUNT];
    filled(v, l, f);
    snprintf(buf, 192, "%s, as far as attention %.0f%%, head %.0f%%, feed-forward %.0f%%",
             r->own_mix ? "a mix of its own" : ps_path_name(r->path), f[FILL_ATTN], f[FILL_HEAD],
             f[FILL_FFN]);
    return buf;
}

void psplan_candidates(const psplan_view *v, uint32_t level, ps_text *t) {
    const ps_level_report *r = &v->report->levels[level];
    const ps_level *l = &v->plan->levels[level];
    char a[3][32], order[192];
    ps_text_printf(t, "  %-24s %11s %11s %11s\n", "candidates", "decode step", "prompts", "workload");
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        const ps_candidate *c = &r->family[shown[i]];
        if (c->feasible)
            ps_text_printf(t, "  %-24s %11s %11s %11s\n", family_title(shown[i]),
                           psplan_time(c->decode_s, a[0]), psplan_time(c->prompt_s, a[1]),
                           psplan_time(c->workload_s, a[2]));
        else
            ps_text_printf(t, "  %-24s does not fit\n", family_title(shown[i]));
    }
    ps_text_printf(t, "  %-24s %11s %11s %11s  from %s for decoding, %s for prompts%s\n", "chosen",
                   psplan_time(r->chosen.decode_s, a[0]), psplan_time(r->chosen.prompt_s, a[1]),
                   psplan_time(r->chosen.workload_s, a[2]), ps_family_name((ps_family)r->decode.family),
                   ps_family_name((ps_family)r->prompt.family),
                   r->smaller ? "; as for a smaller budget, which is faster" : "");
    ps_text_printf(t, "  fills VRAM %s %s\n  caches in VRAM: %s\n", r->own_mix ? "with" : "in the order",
                   fill_order(v, l, r, order), ps_kv_policy_name(r->kv_policy));
}

static void level_table(const psplan_view *v, const ps_level *l, ps_text *t) {
    ps_text_printf(t, "\nbudget %s, context %llu, %u sequence%s, %u thread%s\n", l->budget,
                   (unsigned long long)l->bucket_tokens, l->n_seqs, l->n_seqs == 1 ? "" : "s", l->n_threads,
                   l->n_threads == 1 ? "" : "s");
    memory_map(v, l, t);
    if (l->budget_bytes)
        vram_map(v, l, t);
    if (l->budget_bytes && v->report)
        psplan_candidates(v, (uint32_t)(l - v->plan->levels), t);
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
    psplan_loss_table(v, l, t);
}

void psplan_table(const psplan_view *v, ps_text *t) {
    char w[32];
    ps_format_bytes((double)v->model->weight_bytes, w);
    ps_text_put_plain(t, v->model->name[0] ? v->model->name : v->model_path);
    ps_text_printf(t, ": %s, %u layers, %s of weights\n", v->model->arch_name, v->model->n_layers, w);
    ps_text_printf(t, "%s%s\n", v->profile->topology.cpu_model,
                   v->profile->synthetic ? " (synthetic profile)" : "");
    if (v->profile->gpu.name[0])
        ps_text_printf(t, "%s, times measured by %s\n", v->profile->gpu.name,
                       v->profile->gpu.timer == PS_TIMER_CUPTI ? "CUPTI" : "CUDA events");
    for (uint32_t i = 0; i < v->plan->n_levels; i++)
        level_table(v, &v->plan->levels[i], t);
    ps_text_printf(
        t,
        "\nfull: the sequences hold the whole context; shares are of the bounds there. Below them: how busy\n"
        "queues and link are, and what the step's time is made of (psplan.md, Bounds).\n%u "
        "program%s, plan in %s\n",
        v->plan->n_programs, v->plan->n_programs == 1 ? "" : "s", v->output_path);
}

static void candidate_json(ps_json *j, const char *name, const ps_candidate *c) {
    ps_json_object(j, name);
    ps_json_bool(j, "feasible", c->feasible);
    if (c->feasible) {
        ps_json_f64(j, "decode_step_s", c->decode_s);
        ps_json_f64(j, "prompts_s", c->prompt_s);
        ps_json_f64(j, "workload_s", c->workload_s);
    }
    ps_json_close(j);
}

static void report_json(const psplan_view *v, const ps_level *l, ps_json *j) {
    const ps_level_report *r = &v->report->levels[l - v->plan->levels];
    char order[192];
    ps_json_u64(j, "allowed_threads", r->asked_threads);
    ps_json_f64(j, "workload_s", r->chosen.workload_s);
    if (!l->budget_bytes)
        return;
    ps_json_object(j, "candidates");
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        candidate_json(j, ps_family_name(shown[i]), &r->family[shown[i]]);
    candidate_json(j, "chosen", &r->chosen);
    ps_json_close(j);
    ps_json_object(j, "schedule");
    ps_json_str(j, "decode_from", ps_family_name((ps_family)r->decode.family));
    ps_json_str(j, "prompt_from", ps_family_name((ps_family)r->prompt.family));
    ps_json_str(j, "resident", fill_order(v, l, r, order));
    ps_json_str(j, "caches_in_vram", ps_kv_policy_name(r->kv_policy));
    ps_json_bool(j, "of_a_smaller_budget", r->smaller);
    ps_json_u64(j, "left_bytes", r->left_bytes);
    ps_json_close(j);
}

static void level_json(const psplan_view *v, const ps_level *l, ps_json *j) {
    uint64_t kv = kv_in(v->plan, l, PS_SPACE_HOST);
    ps_json_object(j, NULL);
    ps_json_str(j, "budget", l->budget);
    ps_json_u64(j, "budget_bytes", l->budget_bytes);
    ps_json_u64(j, "context_tokens", l->bucket_tokens);
    ps_json_u64(j, "n_sequences", l->n_seqs);
    ps_json_u64(j, "n_threads", l->n_threads);
    if (v->report)
        report_json(v, l, j);
    ps_json_object(j, "memory");
    ps_json_u64(j, "weight_bytes", v->model->weight_bytes);
    ps_json_u64(j, "kv_bytes", kv);
    ps_json_u64(j, "activation_bytes", l->host_arena_bytes - kv);
    ps_json_u64(j, "program_bytes", ps_memory_program_bytes(v->model, l->n_threads, l->n_seqs));
    ps_json_u64(j, "host_arena_bytes", l->host_arena_bytes);
    ps_json_u64(j, "vram_work_bytes", l->vram_work_bytes);
    if (l->budget_bytes) {
        ps_json_u64(j, "vram_base_bytes", l->vram_base_bytes);
        ps_json_u64(j, "vram_weight_bytes", l->vram_weight_bytes);
        ps_json_u64(j, "vram_kv_bytes", kv_in(v->plan, l, PS_SPACE_VRAM));
    }
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
        if (l->budget_bytes) {
            psplan_found f = psplan_find_weights(v, l, r);
            ps_json_u64(j, "vram_scratch_bytes", r->vram_scratch_bytes);
            ps_json_u64(j, "copied_bytes", (uint64_t)f.copied);
            ps_json_u64(j, "direct_bytes", (uint64_t)f.direct);
            ps_json_u64(j, "cpu_bytes", (uint64_t)f.host);
            ps_json_u64(j, "max_direct", r->max_direct);
        }
        psplan_loss_json(v, l, r, j);
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
