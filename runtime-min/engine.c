/* Opening and closing an engine: model, plan, level, thread team, arena. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/clock.h"
#include "runtime-min/engine_internal.h"

/* The plan's kernels must be this build's kernels, row by row: the hash alone could be forged. */
static ps_status match_kernels(const ps_engine *e, const char *plan_path, ps_error *err) {
    bool same = ps_kernel_set_is_own(e->plan->kernel_set);
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
        (status = ps_engine_choose(e, o, &limit, err)) != PS_OK)
        return status;
    e->info.budget = e->level->budget;
    e->asked = e->level->budget_bytes;
    e->info.n_threads = e->level->n_threads;
    if ((status = ps_plan_check(e->plan, e->level, e->model, err)) != PS_OK ||
        (status = ps_engine_find_reachable(e, err)) != PS_OK) {
        ps_error_prefix(err, o->plan_path);
        return status;
    }
    if ((status = ps_engine_leave_room(e, limit, o->vram_limit_bytes != 0, err)) != PS_OK ||
        (status = ps_engine_open_memory(e, o, err)) != PS_OK || (status = size_step_data(e, err)) != PS_OK ||
        (status = ps_engine_enter_level(e, err)) != PS_OK)
        return status;
    return ps_pool_new(e->machine, e->info.n_threads, &e->pool, err);
}

/* Whose the plan's predictions are. */
static void compare_machine(ps_engine *e) {
    const ps_machine *m = e->machine;
    ps_facts now = {.n_allowed = m->n_allowed, .memory_bytes = m->memory_bytes};
    uint8_t machine[PS_HASH_BYTES];
    snprintf(now.cpu_model, sizeof now.cpu_model, "%s", m->cpu_model);
    if (e->has_device) {
        const ps_device_info *d = ps_device_get_info(e->run.device);
        snprintf(now.gpu_name, sizeof now.gpu_name, "%s", d->name);
        snprintf(now.gpu_driver, sizeof now.gpu_driver, "%s", d->driver);
        ps_facts_gpu_hash(d->uuid, now.gpu_hash);
        now.vram_bytes = d->vram_bytes;
    }
    ps_machine_hash(m, machine);
    const bool same_gpu = !now.gpu_name[0] || strcmp(now.gpu_name, e->plan->facts.gpu_name) == 0;
    e->info.other_machine = memcmp(machine, e->plan->machine_hash, sizeof machine) != 0 || !same_gpu;
    (void)ps_facts_differ(&e->plan->facts, "the plan's profile", &now, e->differences, sizeof e->differences);
    e->info.differences = e->differences;
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
    e->info.model_name = e->model->name;
    e->info.arch = e->model->arch_name;
    e->info.cpu_level = ps_cpu_level_name(ps_cpu_level_detect());
    e->info.n_vocab = e->model->n_vocab;
    e->info.n_layers = e->model->n_layers;
    e->info.weight_bytes = e->model->weight_bytes;
    compare_machine(e);
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
