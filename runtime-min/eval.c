/* Sessions, and evaluation of new tokens in steps. */
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "runtime-min/engine_internal.h"

ps_status ps_session_new(ps_engine *e, const ps_sampler_params *sampling, ps_session **out, ps_error *err) {
    for (uint32_t i = 0; i < e->info.n_sessions; i++) {
        ps_session *s = &e->sessions[i];
        if (s->engine != NULL)
            continue;
        ps_status status = ps_sampler_new(sampling, e->info.n_vocab, &s->sampler, err);
        if (status != PS_OK)
            return status;
        s->engine = e;
        s->slot = i;
        s->length = 0;
        *out = s;
        return PS_OK;
    }
    return ps_error_set(err, PS_E_UNAVAILABLE, "session", "all %u sessions of the engine are open",
                        e->info.n_sessions);
}

void ps_session_free(ps_session *s) {
    if (s == NULL)
        return;
    ps_sampler_free(s->sampler);
    *s = (ps_session){0};
}

uint64_t ps_session_length(const ps_session *s) {
    return s->length;
}

void ps_session_reset(ps_session *s) {
    s->length = 0;
}

static ps_status check_items(const ps_engine *e, const ps_eval_item *items, uint32_t n_items, ps_error *err) {
    if (e->broken)
        return ps_error_set(err, PS_E_UNAVAILABLE, "engine", "the GPU failed before: open the engine again");
    if (n_items == 0 || n_items > e->info.n_sessions)
        return ps_error_set(err, PS_E_USAGE, "eval", "%u items for %u sessions", n_items, e->info.n_sessions);
    for (uint32_t i = 0; i < n_items; i++) {
        const ps_eval_item *it = &items[i];
        if (it->session == NULL || it->session->engine != e)
            return ps_error_set(err, PS_E_USAGE, "eval", "item %u: not a session of this engine", i);
        for (uint32_t k = 0; k < i; k++)
            if (items[k].session == it->session)
                return ps_error_set(err, PS_E_USAGE, "eval", "items %u and %u are the same session", k, i);
        if (it->n_tokens == 0)
            return ps_error_set(err, PS_E_USAGE, "eval", "item %u has no tokens", i);
        if (it->n_tokens > e->info.context - it->session->length)
            return ps_error_set(err, PS_E_USAGE, "context",
                                "%llu tokens are cached and %u are new, but the plan's level holds %llu",
                                (unsigned long long)it->session->length, it->n_tokens,
                                (unsigned long long)e->info.context);
        for (uint32_t t = 0; t < it->n_tokens; t++)
            if (it->tokens[t] < 0 || (uint32_t)it->tokens[t] >= e->info.n_vocab)
                return ps_error_set(err, PS_E_USAGE, "eval", "item %u: token %u is %d, the vocabulary has %u",
                                    i, t, it->tokens[t], e->info.n_vocab);
    }
    return PS_OK;
}

/* Fill the step arrays with as many of the items' remaining tokens as a step holds, items in order. */
static void gather_step(ps_engine *e, const ps_eval_item *items, uint32_t n_items, ps_run_step *step) {
    uint32_t room = e->info.max_step_tokens;
    for (uint32_t i = 0; i < n_items && room != 0; i++) {
        const ps_eval_item *it = &items[i];
        uint32_t done = e->item_done[i], n = it->n_tokens - done;
        n = n < room ? n : room;
        if (n == 0)
            continue;
        room -= n;
        if (n > step->span_rows)
            step->span_rows = n;
        if (it->session->length + n > step->kv_end)
            step->kv_end = it->session->length + n;
        e->spans[step->n_spans] =
            (ps_seq_span){.row0 = step->n_tokens, .n_rows = n, .pos0 = (uint32_t)it->session->length};
        e->span_slot[step->n_spans++] = it->session->slot;
        for (uint32_t t = 0; t < n; t++) {
            uint32_t row = step->n_tokens + t, index = done + t;
            bool last = index + 1 == it->n_tokens;
            e->tokens[row] = it->tokens[index];
            e->positions[row] = (uint32_t)it->session->length + t;
            bool wants_logits = it->logits != NULL && (last || it->all_logits);
            bool wants_sample = it->sampled != NULL && last;
            if (!wants_logits && !wants_sample)
                continue;
            uint32_t o = step->n_outputs++;
            e->outputs[o] = row;
            e->samplers[o] = wants_sample ? it->session->sampler : NULL;
            e->output_sampled[o] = wants_sample ? it->sampled : NULL;
            e->output_logits[o] =
                !wants_logits ? NULL : it->logits + (it->all_logits ? (uint64_t)index * e->info.n_vocab : 0);
        }
        step->n_tokens += n;
    }
}

static const ps_run_tier *tier_for(const ps_engine *e, uint32_t n_tokens) {
    for (uint32_t i = 0; i + 1 < e->n_tiers; i++)
        if (e->tiers[i].tier->max_tokens >= n_tokens)
            return &e->tiers[i];
    return &e->tiers[e->n_tiers - 1];
}

static ps_status run_pass(ps_engine *e, ps_run_step *step, ps_error *err) {
    return e->verify ? ps_engine_run_verified(e, step, err) : ps_engine_run(e, step, err);
}

/* Whether a step can be run again after it was given up half-way: what it stored must not have taken the place of rows that
 * its first tokens attend to, in rings that a long step goes round. */
static bool can_run_again(const ps_engine *e, const ps_run_step *step) {
    for (uint32_t l = 0; l < e->model->n_layers; l++) {
        uint64_t rows = e->level->kv[l].rows, window = e->model->layers[l].window;
        for (uint32_t i = 0; i < step->n_spans && window != 0; i++) {
            const ps_seq_span *s = &step->spans[i];
            uint64_t seen = s->pos0 < window ? s->pos0 : window;
            if ((uint64_t)s->pos0 + s->n_rows > rows && s->n_rows > rows - seen)
                return false;
        }
    }
    return true;
}

/* Copy the results of one pass of the tail to where the caller wants them. A token is taken only if its logit is a number:
 * weights with NaN or infinity would otherwise produce text as if nothing were wrong. */
static ps_status take_outputs(ps_engine *e, const ps_run_step *step, uint32_t first, ps_error *err) {
    const ps_run_tier *t = step->tier;
    for (uint32_t i = 0; i < t->n_ops; i++) {
        const ps_xarg *x = t->ops[i].instr->op == PS_OP_SAMPLE ? &t->ops[i].args.src[0] : NULL;
        if (x == NULL)
            continue;
        for (uint32_t o = 0; o < step->n_outputs; o++) {
            const uint8_t *logits = (const uint8_t *)x->data + o * x->row_bytes;
            if (e->output_logits[first + o] != NULL)
                memcpy(e->output_logits[first + o], logits, (size_t)e->info.n_vocab * sizeof(float));
            if (e->output_sampled[first + o] == NULL)
                continue;
            int32_t token;
            float logit;
            memcpy(&token, (const uint8_t *)t->ops[i].args.dst.data + o * t->ops[i].args.dst.row_bytes,
                   sizeof token);
            memcpy(&logit, logits + (size_t)token * sizeof logit, sizeof logit);
            if (!isfinite(logit))
                return ps_error_set(err, PS_E_DATA, e->info.model_name,
                                    "the logits are not numbers: weights hold NaN or infinity, or overflow");
            *e->output_sampled[first + o] = token;
        }
    }
    return PS_OK;
}

/* The body with the tail for the first output rows, then the tail for every further group that its buffers hold. */
static ps_status run_passes(ps_engine *e, ps_run_step *step, ps_error *err) {
    const ps_run_tier *t = step->tier;
    const ps_run_schedule *s = step->schedule;
    uint32_t n_outputs = step->n_outputs, first = 0;
    step->cpu_end = n_outputs != 0 ? s->n_cpu : s->cpu_tail;
    step->dev_end = n_outputs != 0 ? s->n_dev : s->dev_tail;
    ps_status status = PS_OK;
    do {
        uint32_t left = n_outputs - first;
        step->n_outputs = left < t->tier->max_outputs ? left : t->tier->max_outputs;
        step->first_output = first;
        step->outputs = e->outputs + first;
        step->samplers = e->samplers + first;
        step->wants_sample = false;
        for (uint32_t o = 0; o < step->n_outputs; o++)
            step->wants_sample |= e->samplers[first + o] != NULL;
        status = run_pass(e, step, err);
        if (status != PS_OK || e->abort != PS_ABORT_NONE)
            break;
        status = take_outputs(e, step, first, err);
        first += step->n_outputs;
        step->tail_only = true;
        step->cpu_begin = s->cpu_tail;
        step->dev_begin = s->dev_tail;
        step->cpu_point0 = s->cpu_tail_points;
        step->dev_point0 = s->dev_tail_points;
    } while (status == PS_OK && first < n_outputs);
    step->n_outputs = n_outputs;
    return status;
}

static ps_status run_step(ps_engine *e, ps_run_step *step, ps_error *err) {
    const ps_run_tier *t = step->tier = tier_for(e, step->n_tokens);
    step->n_tiles = (step->n_tokens + PS_TILE_TOKENS - 1) / PS_TILE_TOKENS;
    step->schedule = ps_run_schedule_for(t, step->n_tiles);
    step->tokens = e->tokens;
    step->positions = e->positions;
    step->spans = e->spans;
    step->span_slot = e->span_slot;
    uint64_t kv_len = 0;
    for (uint32_t i = 0; i < step->n_spans; i++)
        kv_len = e->spans[i].pos0 > kv_len ? e->spans[i].pos0 : kv_len;
    e->no_stop = !can_run_again(e, step);
    e->abort = PS_ABORT_NONE;

    uint64_t start_ns = ps_clock_ns();
    e->trace_step_ns = start_ns;
    ps_status status = PS_OK;
    if (e->tracing) {
        ps_engine_clear_events(e, step);
        if (t->has_device)
            status = ps_device_start_times(e, err);
    }
    ps_pool_step_begin(e->pool);
    if (status == PS_OK)
        status = run_passes(e, step, err);
    ps_pool_step_end(e->pool);
    uint64_t end_ns = ps_clock_ns();
    if (status == PS_OK && e->abort == PS_ABORT_NONE && e->tracing && t->has_device)
        status = ps_device_read_times(e, true, err);
    if (status != PS_OK || e->abort != PS_ABORT_NONE)
        return status;

    double kv_frac = (double)kv_len / (double)e->level->bucket_tokens;
    double predicted_s = t->tier->step_empty_s + (t->tier->step_full_s - t->tier->step_empty_s) * kv_frac;
    e->stats.n_steps++;
    e->stats.n_tokens += step->n_tokens;
    e->stats.step_ns += end_ns - start_ns;
    e->stats.predicted_s += predicted_s;
    return e->tracing ? ps_engine_record(e, step, kv_len, start_ns, end_ns, predicted_s, err) : PS_OK;
}

/* Lengths of the longest session now and when all items are evaluated; a larger bucket where the level's is too small. */
static ps_status make_room(ps_engine *e, const ps_eval_item *items, uint32_t n_items, ps_error *err) {
    e->need_tokens = e->longest = 0;
    for (uint32_t i = 0; i < e->info.n_sessions; i++)
        if (e->sessions[i].engine != NULL && e->sessions[i].length > e->longest)
            e->longest = e->sessions[i].length;
    e->need_tokens = e->longest;
    for (uint32_t i = 0; i < n_items; i++) {
        uint64_t end = items[i].session->length + items[i].n_tokens - e->item_done[i];
        e->need_tokens = end > e->need_tokens ? end : e->need_tokens;
    }
    ps_status status = ps_engine_obey_request(e, err);
    if (status != PS_OK || e->need_tokens <= e->level->bucket_tokens)
        return status;
    uint32_t to = ps_engine_level_for_tokens(e, e->need_tokens);
    return to == UINT32_MAX
               ? ps_error_set(err, PS_E_USAGE, "context", "no level of budget %s holds %llu tokens",
                              e->level->budget, (unsigned long long)e->need_tokens)
               : ps_engine_change_level(e, to, err);
}

ps_status ps_engine_eval(ps_engine *e, const ps_eval_item *items, uint32_t n_items, ps_error *err) {
    ps_status status = check_items(e, items, n_items, err);
    if (status != PS_OK)
        return status;
    e->again = false;
    memset(e->item_done, 0, n_items * sizeof *e->item_done);
    for (;;) {
        ps_run_step step = {0};
        if ((status = make_room(e, items, n_items, err)) != PS_OK)
            return status;
        gather_step(e, items, n_items, &step);
        if (step.n_tokens == 0)
            return PS_OK;
        status = run_step(e, &step, err);
        if (status != PS_OK)
            return status;
        if (e->abort != PS_ABORT_NONE) { /* given up for a change of level: once more, there */
            e->stats.n_abandoned++;
            e->again = true;
            continue;
        }
        e->again = false;
        for (uint32_t i = 0; i < step.n_spans; i++) {
            for (uint32_t k = 0; k < n_items; k++)
                if (items[k].session->slot == e->span_slot[i]) {
                    e->item_done[k] += e->spans[i].n_rows;
                    items[k].session->length += e->spans[i].n_rows;
                }
        }
    }
}
