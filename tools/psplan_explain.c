/* psplan --explain: where the time of a level's steps goes, and why these kernels. */
#include <stdlib.h>
#include <string.h>

#include "plan/explain.h"
#include "psplan.h"

/* The tiers explained: decode, and the largest prompt step up to 512 tokens. */
static uint32_t pick_tiers(const ps_level *l, uint32_t out[2]) {
    uint32_t n = 0, last = 0;
    for (uint32_t i = 0; i < l->n_tiers; i++)
        if (l->tiers[i].max_tokens <= 512)
            last = i;
    out[n++] = 0;
    if (last != 0)
        out[n++] = last;
    return n;
}

static const char *kernel_name(const psplan_view *v, uint32_t id) {
    const ps_kernel_spec *k = ps_catalogue_find(v->profile, id);
    return k ? k->name : "?";
}

static void explain_text(const psplan_view *v, const ps_level *l, const ps_tier *tier, const ps_explain *e,
                         ps_text *t) {
    char a[32], b[32];
    ps_text_printf(t, "\nbudget %s, context %llu, %u threads: a step of %u at full context, %s\n", l->budget,
                   (unsigned long long)l->bucket_tokens, l->n_threads, tier->max_tokens,
                   psplan_time(tier->step_full_s, a));
    if (l->budget_bytes) {
        uint32_t n[PS_PLACE_COUNT] = {0};
        for (uint32_t i = 0; i < v->plan->n_shards; i++)
            n[l->placement[i]]++;
        ps_text_printf(t, "  placement:");
        for (int i = 0; i < PS_PLACE_COUNT; i++)
            if (n[i])
                ps_text_printf(t, " %u %s", n[i], ps_placement_name((ps_placement)i));
        ps_text_printf(t, "\n  busy alone:  ");
        for (int i = 0; i < PS_QUEUE_COUNT; i++)
            ps_text_printf(t, " %s %.1f%%", ps_queue_name((ps_queue)i),
                           100 * e->queue_s[i] / tier->step_full_s);
        ps_text_printf(t, " of the step\n  by operation:");
    } else {
        ps_text_printf(
            t, "  placement: all shards on the host, as there is no GPU in the budget\n  by operation:");
    }
    for (int i = 0; i < PS_OP_COUNT; i++)
        if (e->op_s[i] > 0)
            ps_text_printf(t, " %s %.1f%%", ps_op_get((ps_op)i)->name, 100 * e->op_s[i] / e->step_s);
    ps_text_printf(t, " start %.1f%%\n  by shard:    ", 100 * e->start_s / e->step_s);
    for (int i = 0; i < PS_SHARD_KIND_COUNT; i++)
        if (e->shard_s[i] > 0)
            ps_text_printf(t, " %s %.1f%%", ps_shard_kind_name((ps_shard_kind)i),
                           100 * e->shard_s[i] / e->step_s);
    ps_text_printf(t, "\n  known from:  ");
    for (int i = 0; i < PS_COST_QUALITY_COUNT; i++)
        if (e->quality_s[i] > 0)
            ps_text_printf(t, " %s %.1f%%", ps_cost_quality_name((ps_cost_quality)i),
                           100 * e->quality_s[i] / e->step_s);
    bool choice = false;
    for (uint32_t i = 0; i < e->n_kernels; i++)
        choice = choice || e->kernels[i].rival != 0;
    ps_text_printf(t, "\n  %-32s %8s %11s  %s%s\n", "kernel", "calls", "time", "known from",
                   choice ? "     instead of" : "");
    for (uint32_t i = 0; i < e->n_kernels; i++) {
        const ps_explain_kernel *k = &e->kernels[i];
        ps_text_printf(t, "  %-32s %8llu %11s  ", kernel_name(v, k->kernel), (unsigned long long)k->n_calls,
                       psplan_time(k->time_s, a));
        if (k->rival)
            ps_text_printf(t, "%-13s  %s, %s\n", ps_cost_quality_name(k->quality), kernel_name(v, k->rival),
                           psplan_time(k->rival_s, b));
        else
            ps_text_printf(t, "%s\n", ps_cost_quality_name(k->quality));
    }
}

static void explain_json(const psplan_view *v, const ps_level *l, const ps_tier *tier, const ps_explain *e,
                         ps_json *j) {
    ps_json_object(j, NULL);
    ps_json_str(j, "budget", l->budget);
    ps_json_u64(j, "context_tokens", l->bucket_tokens);
    ps_json_u64(j, "n_threads", l->n_threads);
    ps_json_u64(j, "max_tokens", tier->max_tokens);
    ps_json_f64(j, "step_full_s", tier->step_full_s);
    ps_json_f64(j, "start_s", e->start_s);
    if (l->budget_bytes) {
        ps_json_object(j, "by_queue_s");
        for (int i = 0; i < PS_QUEUE_COUNT; i++)
            ps_json_f64(j, ps_queue_name((ps_queue)i), e->queue_s[i]);
        ps_json_close(j);
    }
    ps_json_object(j, "by_operation_s");
    for (int i = 0; i < PS_OP_COUNT; i++)
        if (e->op_s[i] > 0)
            ps_json_f64(j, ps_op_get((ps_op)i)->name, e->op_s[i]);
    ps_json_close(j);
    ps_json_object(j, "by_shard_s");
    for (int i = 0; i < PS_SHARD_KIND_COUNT; i++)
        if (e->shard_s[i] > 0)
            ps_json_f64(j, ps_shard_kind_name((ps_shard_kind)i), e->shard_s[i]);
    ps_json_close(j);
    ps_json_object(j, "by_quality_s");
    for (int i = 0; i < PS_COST_QUALITY_COUNT; i++)
        ps_json_f64(j, ps_cost_quality_name((ps_cost_quality)i), e->quality_s[i]);
    ps_json_close(j);
    ps_json_array(j, "kernels");
    for (uint32_t i = 0; i < e->n_kernels; i++) {
        const ps_explain_kernel *k = &e->kernels[i];
        ps_json_object(j, NULL);
        ps_json_str(j, "kernel", kernel_name(v, k->kernel));
        ps_json_u64(j, "n_calls", k->n_calls);
        ps_json_f64(j, "time_s", k->time_s);
        ps_json_str(j, "known_from", ps_cost_quality_name(k->quality));
        if (k->rival) {
            ps_json_str(j, "instead_of", kernel_name(v, k->rival));
            ps_json_f64(j, "instead_of_time_s", k->rival_s);
        }
        ps_json_close(j);
    }
    ps_json_close(j);
    ps_json_close(j);
}

/* The largest parts of memory: shards of weights by kind, KV, buffers of the largest tier. */
static void largest_text(const psplan_view *v, ps_text *t) {
    uint64_t kind_bytes[PS_SHARD_KIND_COUNT] = {0};
    for (uint32_t s = 0; s < v->model->n_shards; s++)
        kind_bytes[v->model->shards[s].kind] += v->model->shards[s].weight_bytes;
    ps_text_printf(t, "\nweights by shard kind:");
    char b[32];
    for (int i = 0; i < PS_SHARD_KIND_COUNT; i++)
        if (kind_bytes[i])
            ps_text_printf(t, " %s %s", ps_shard_kind_name((ps_shard_kind)i),
                           ps_format_bytes((double)kind_bytes[i], b));
    ps_text_printf(t, "\n");
}

static ps_status for_each(const psplan_view *v, ps_text *t, ps_json *j, ps_error *err) {
    ps_explain *e = malloc(sizeof *e);
    if (!e)
        return ps_error_set(err, PS_E_NOMEM, "explain", "out of memory");
    for (uint32_t i = 0; i < v->plan->n_levels; i++) {
        const ps_level *l = &v->plan->levels[i];
        uint32_t tiers[2], n = pick_tiers(l, tiers);
        for (uint32_t k = 0; k < n; k++) {
            const ps_tier *tier = &l->tiers[tiers[k]];
            ps_lower_request r = ps_lower_request_of(l, tier, v->model, v->profile, v->cost);
            ps_explain_tier(&r, &v->plan->programs[tier->program], l->bucket_tokens, e);
            if (t)
                explain_text(v, l, tier, e, t);
            else
                explain_json(v, l, tier, e, j);
        }
    }
    free(e);
    return PS_OK;
}

ps_status psplan_explain(const psplan_view *v, ps_text *t, ps_error *err) {
    largest_text(v, t);
    return for_each(v, t, NULL, err);
}

ps_status psplan_explain_json(const psplan_view *v, ps_json *j, ps_error *err) {
    ps_json_array(j, "explain");
    ps_status status = for_each(v, NULL, j, err);
    ps_json_close(j);
    return status;
}
