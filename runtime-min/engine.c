/* Opening and closing an engine: model, plan, level, thread team, arena. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/clock.h"
#include "runtime-min/engine_internal.h"

/* The plan's kernels must be this build's kernels, row by row: the hash alone could be forged. */
static ps_status match_kernels(const ps_engine *e, const char *plan_path, ps_error *err) {
    uint8_t own[PS_HASH_BYTES];
    ps_kernel_set_hash(own);
    bool same = memcmp(own, e->plan->kernel_set, sizeof own) == 0;
    for (uint32_t i = 0; same && i < e->plan->n_kernels; i++) {
        const ps_kernel_spec *s = &e->plan->kernels[i];
        const ps_kernel *k = ps_kernel_find(s->id);
        uint8_t a[PS_HASH_BYTES], b[PS_HASH_BYTES];
        if (k == NULL) {
            same = false;
        } else {
            ps_kernel_spec_hash(s, 1, a);
            ps_kernel_spec_hash(&k->spec, 1, b);
            same = memcmp(a, b, sizeof a) == 0;
        }
    }
    if (same)
        return PS_OK;
    return ps_error_set(
        err, PS_E_MISMATCH, plan_path,
        "was made for another set of kernels than this build has; run pstune and psplan again");
}

/* Prefer the smallest bucket that holds the context, then the fewest sequences, then the most threads. Without a context:
 * the smallest bucket where the level can change to larger ones (with a GPU), else the largest. */
static bool better(const ps_level *a, const ps_level *b, bool want_largest) {
    if (a->bucket_tokens != b->bucket_tokens)
        return want_largest ? a->bucket_tokens > b->bucket_tokens : a->bucket_tokens < b->bucket_tokens;
    if (a->n_seqs != b->n_seqs)
        return a->n_seqs < b->n_seqs;
    return a->n_threads > b->n_threads;
}

/* The plan's first budget without VRAM, else its first. */
static const char *plain_budget(const ps_plan *p) {
    for (uint32_t i = 0; i < p->n_levels; i++)
        if (p->levels[i].budget_bytes == 0)
            return p->levels[i].budget;
    return p->n_levels != 0 ? p->levels[0].budget : "";
}

/* The budget to open with; NULL: none is small enough. limit: of VRAM; 0: none is set. */
static const char *choose_budget(const ps_plan *p, const ps_engine_options *o, uint64_t limit) {
    const ps_level *best = NULL;
    if (limit == 0)
        return o->budget != NULL ? o->budget : plain_budget(p);
    bool above = false, known = false, vram = false;
    for (uint32_t i = 0; i < p->n_levels; i++) {
        const ps_level *l = &p->levels[i];
        bool named = o->budget != NULL && strcmp(l->budget, o->budget) == 0;
        known = known || named;
        vram = vram || l->budget_bytes != 0;
        above = above || (named && l->budget_bytes > limit);
        if (l->budget_bytes != 0 && l->budget_bytes <= limit &&
            (best == NULL || l->budget_bytes > best->budget_bytes))
            best = l;
    }
    if (o->budget != NULL && !(known && above))
        return o->budget;
    if (!vram && p->n_levels != 0) /* to hear that no GPU takes part */
        return p->levels[0].budget;
    if (best == NULL && o->vram_limit_bytes == 0)
        return plain_budget(p); /* where that has VRAM too, the meter says by how much it is too large */
    return best != NULL ? best->budget : NULL;
}

/* "1, 2": the thread counts of a budget's levels; as many as fit into text, 64 bytes. */
static const char *teams_of(const ps_plan *p, const char *budget, char *text) {
    enum { SIZE = 64 };
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_levels && n < SIZE - 16; i++) {
        const ps_level *l = &p->levels[i];
        bool said = strcmp(l->budget, budget) != 0;
        for (uint32_t k = 0; k < i && !said; k++)
            said = strcmp(p->levels[k].budget, budget) == 0 && p->levels[k].n_threads == l->n_threads;
        if (!said)
            n += (size_t)snprintf(text + n, SIZE - n, "%s%u", n ? ", " : "", l->n_threads);
    }
    return text;
}

static ps_status choose_level(ps_engine *e, const ps_engine_options *o, uint64_t limit, ps_error *err) {
    const ps_plan *p = e->plan;
    const char *budget = choose_budget(p, o, limit);
    if (budget == NULL)
        return ps_error_set(err, PS_E_INFEASIBLE, o->plan_path, "has no VRAM budget of at most %llu bytes",
                            (unsigned long long)limit);
    uint32_t n_sessions = o->n_sessions == 0 ? 1 : o->n_sessions;
    uint64_t largest = 0;
    bool budget_known = false, threads_fit = false, sessions_fit = false;
    for (uint32_t i = 0; i < p->n_levels; i++) {
        const ps_level *l = &p->levels[i];
        if (strcmp(l->budget, budget) != 0)
            continue;
        budget_known = true;
        if (l->n_threads > e->machine->n_allowed || (o->n_threads != 0 && l->n_threads != o->n_threads))
            continue;
        threads_fit = true;
        if (l->n_seqs < n_sessions)
            continue;
        sessions_fit = true;
        largest = l->bucket_tokens > largest ? l->bucket_tokens : largest;
        if (l->bucket_tokens >= o->context &&
            (e->level == NULL ||
             better(l, e->level, o->context == 0 && (l->budget_bytes == 0 || o->fixed_level)))) {
            e->level = l;
            e->level_index = i;
        }
    }
    if (e->level != NULL) {
        e->info.n_sessions = n_sessions;
        return PS_OK;
    }
    if (!budget_known)
        return ps_error_set(err, PS_E_USAGE, o->plan_path, "has no budget '%.24s'", budget);
    if (!threads_fit && o->n_threads != 0 && o->n_threads <= e->machine->n_allowed)
        return ps_error_set(err, PS_E_USAGE, o->plan_path,
                            "budget '%.24s' has no level for %u threads; its levels are for %s", budget,
                            o->n_threads, teams_of(p, budget, (char[64]){0}));
    if (!threads_fit && o->n_threads != 0)
        return ps_error_set(err, PS_E_USAGE, "threads", "%u asked for, this process may use %u", o->n_threads,
                            e->machine->n_allowed);
    if (!threads_fit)
        return ps_error_set(err, PS_E_USAGE, o->plan_path,
                            "has no level for the %u threads this process may use; plan with --threads %u",
                            e->machine->n_allowed, e->machine->n_allowed);
    if (!sessions_fit)
        return ps_error_set(err, PS_E_USAGE, o->plan_path, "has no level for %u sequences", n_sessions);
    return ps_error_set(err, PS_E_USAGE, o->plan_path,
                        "has no level for a context of %llu tokens; the largest is %llu",
                        (unsigned long long)o->context, (unsigned long long)largest);
}

/* Level and device. Where nothing is said of budgets the card comes first: the largest budget that it holds is taken, and
 * the plan's CPU schedules where there is no card. */
static ps_status choose(ps_engine *e, const ps_engine_options *o, uint64_t *out_limit, ps_error *err) {
    const char *want = o->device != NULL ? o->device : "auto";
    const bool none = strcmp(want, "none") == 0, any = strcmp(want, "auto") == 0;
    bool vram = false, host = false;
    ps_status status = PS_OK;
    if (!none && !any && strcmp(want, "cuda") != 0 && strcmp(want, "emulated") != 0)
        return ps_error_set(err, PS_E_USAGE, "device", "'%.32s' is none of auto, cuda, emulated, none", want);
    for (uint32_t i = 0; i < e->plan->n_levels; i++) {
        vram = vram || e->plan->levels[i].budget_bytes != 0;
        host = host || e->plan->levels[i].budget_bytes == 0;
    }
    e->info.device = e->info.meter = "none";
    *out_limit = o->vram_limit_bytes;
    if (o->budget == NULL && *out_limit == 0 && vram && !none) {
        status = ps_engine_open_device(e, o, err);
        if (status == PS_OK)
            *out_limit = ps_device_get_info(e->run.device)->vram_bytes;
        else if (status != PS_E_UNAVAILABLE || !host || !any)
            return status;
    }
    if ((status = choose_level(e, o, *out_limit, err)) != PS_OK)
        return status;
    if (!ps_engine_level_uses_gpu(e))
        return none || any
                   ? PS_OK
                   : ps_error_set(err, PS_E_USAGE, "device",
                                  "no GPU takes part in the plan's budget '%.24s': '%s' has nothing to do",
                                  e->level->budget, want);
    if (none)
        return ps_error_set(err, PS_E_UNAVAILABLE, e->level->budget,
                            "this budget's programs need a GPU, and none may be used");
    return e->has_device ? PS_OK : ps_engine_open_device(e, o, err);
}

/* Everything a step needs, so that steps allocate nothing. */
static ps_status size_step_data(ps_engine *e, ps_error *err) {
    uint64_t max_tokens = e->max_tokens;
    ps_arena *a = e->arena;
    e->tokens = ps_arena_array(a, max_tokens, sizeof *e->tokens);
    e->positions = ps_arena_array(a, max_tokens, sizeof *e->positions);
    e->outputs = ps_arena_array(a, max_tokens, sizeof *e->outputs);
    e->output_logits = ps_arena_array(a, max_tokens, sizeof *e->output_logits);
    e->output_sampled = ps_arena_array(a, max_tokens, sizeof *e->output_sampled);
    e->samplers = ps_arena_array(a, max_tokens, sizeof *e->samplers);
    e->spans = ps_arena_array(a, e->info.n_sessions, sizeof *e->spans);
    e->span_slot = ps_arena_array(a, e->info.n_sessions, sizeof *e->span_slot);
    e->item_done = ps_arena_array(a, e->info.n_sessions, sizeof *e->item_done);
    e->thread_spans =
        ps_arena_array(a, (uint64_t)e->info.n_sessions * e->info.n_threads, sizeof *e->thread_spans);
    e->sessions = ps_arena_array(a, e->info.n_sessions, sizeof *e->sessions);
    if (!e->tokens || !e->positions || !e->outputs || !e->output_logits || !e->output_sampled ||
        !e->samplers || !e->spans || !e->span_slot || !e->item_done || !e->thread_spans || !e->sessions)
        return ps_error_set(err, PS_E_NOMEM, e->info.budget, "no memory for step data");
    return PS_OK;
}

static ps_status open_all(ps_engine *e, const ps_engine_options *o, ps_error *err) {
    ps_status status;
    if ((status = ps_gguf_open(o->model_path, &e->gguf, err)) != PS_OK)
        return status;
    if ((status = ps_model_open(e->gguf, &e->model, err)) != PS_OK ||
        (status = ps_tokenizer_open(e->gguf, &e->tokenizer, err)) != PS_OK) {
        if (err != NULL && strncmp(err->subject, o->model_path, strlen(o->model_path)) != 0)
            ps_error_prefix(err, o->model_path);
        return status;
    }
    if (ps_chat_open(e->gguf, &e->chat, &e->chat_error) != PS_OK)
        e->chat = NULL; /* said when a conversation is asked for */
    if ((status = ps_machine_open(NULL, &e->machine, err)) != PS_OK ||
        (status = ps_plan_read(o->plan_path, &e->plan, err)) != PS_OK)
        return status;
    if ((status = ps_plan_match_model(e->plan, e->model, err)) != PS_OK) {
        ps_error_prefix(err, o->plan_path);
        return status;
    }
    uint64_t limit = 0;
    if ((status = match_kernels(e, o->plan_path, err)) != PS_OK ||
        (status = choose(e, o, &limit, err)) != PS_OK)
        return status;
    e->info.budget = e->level->budget;
    e->asked = e->level->budget_bytes;
    e->info.n_threads = e->level->n_threads;
    if ((status = ps_plan_check(e->plan, e->level, e->model, err)) != PS_OK ||
        (status = ps_engine_find_reachable(e, err)) != PS_OK) {
        ps_error_prefix(err, o->plan_path);
        return status;
    }
    ps_engine_leave_room(e, limit);
    if ((status = ps_engine_open_memory(e, o, err)) != PS_OK || (status = size_step_data(e, err)) != PS_OK ||
        (status = ps_engine_enter_level(e, err)) != PS_OK)
        return status;
    return ps_pool_new(e->machine, e->info.n_threads, &e->pool, err);
}

ps_status ps_engine_open(const ps_engine_options *o, ps_engine **out, ps_error *err) {
    uint64_t start_ns = ps_clock_ns();
    ps_engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return ps_error_set(err, PS_E_NOMEM, o->model_path, "no memory");
    e->verify = o->verify;
    e->fixed_level = o->fixed_level;
    e->request = PS_NO_REQUEST;
    e->arena = ps_arena_new(UINT64_MAX);
    ps_status status =
        e->arena == NULL ? ps_error_set(err, PS_E_NOMEM, o->model_path, "no memory") : open_all(e, o, err);
    if (status != PS_OK) {
        ps_engine_close(e);
        return status;
    }
    uint8_t machine[PS_HASH_BYTES];
    ps_machine_hash(e->machine, machine);
    e->info.model_name = e->model->name;
    e->info.arch = e->model->arch_name;
    e->info.cpu_level = ps_cpu_level_name(ps_cpu_level_detect());
    e->info.n_vocab = e->model->n_vocab;
    e->info.n_layers = e->model->n_layers;
    e->info.weight_bytes = e->model->weight_bytes;
    e->info.other_machine = memcmp(machine, e->plan->machine_hash, sizeof machine) != 0;
    e->info.synthetic_profile = e->plan->synthetic_profile;
    e->info.load_ns = ps_clock_ns() - start_ns;
    *out = e;
    return PS_OK;
}

void ps_engine_close(ps_engine *e) {
    if (e == NULL)
        return;
    ps_pool_free(e->pool);
    ps_engine_close_memory(e);
    ps_arena_free(e->trace.arena);
    free(e->event_ns);
    free(e->spreads);
    free(e->point_done);
    ps_plan_free(e->plan);
    ps_machine_close(e->machine);
    ps_chat_close(e->chat);
    ps_tokenizer_close(e->tokenizer);
    ps_model_close(e->model);
    ps_gguf_close(e->gguf);
    ps_arena_free(e->arena);
    free(e);
}

const ps_engine_info *ps_engine_get_info(const ps_engine *e) {
    return &e->info;
}

void ps_engine_get_stats(const ps_engine *e, ps_engine_stats *out) {
    *out = e->stats;
}

ps_status ps_engine_vram_used(const ps_engine *e, uint64_t *out_process, uint64_t *out_device,
                              uint64_t *out_device_total, ps_error *err) {
    ps_meter how;
    if (!e->has_device)
        return ps_error_set(err, PS_E_UNAVAILABLE, "device memory", "no GPU takes part");
    ps_status status = ps_device_vram_used(e->run.device, out_process, &how, err);
    return status == PS_OK ? ps_device_vram_all(e->run.device, out_device, out_device_total, err) : status;
}
