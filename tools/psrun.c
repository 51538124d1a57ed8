/* psrun: run a plan on a model. Generates text from a prompt; --bench measures; --teacher-force writes
 * logits; --verify compares every instruction with its reference. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "psrun_internal.h"

static const ps_option options[] = {
    {"plan", 'p', PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "Plan to execute; without it, MODEL with .gguf replaced by .plan.yaml, in the current folder."},
    {"prompt", 'm', PS_OPT_TEXT, "TEXT", NULL, 0, 0, "What to answer or continue; '-' reads standard input."},
    {"prompt-file", 'f', PS_OPT_TEXT, "FILE", NULL, 0, 0, "Read the prompt from a file."},
    {"system", 0, PS_OPT_TEXT, "TEXT", NULL, 0, 0, "System message of the conversation."},
    {"prompts", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0, "Answer every line of a file, --parallel at a time."},
    {"parallel", 0, PS_OPT_U64, "N", "1", 1, 4096, "Sequences at once, for --prompts and --bench."},
    {"raw", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Continue the prompt as it is, without the chat template."},
    {"tokens", 'n', PS_OPT_U64, "N", "256", 1, 1e9, "Most tokens to generate."},
    {"temperature", 0, PS_OPT_F64, "X", "0", 0, 100, "Sampling temperature; 0 takes the likeliest token."},
    {"top-k", 0, PS_OPT_U64, "N", "0", 0, 1e9, "Keep the N likeliest tokens; 0 keeps all."},
    {"top-p", 0, PS_OPT_F64, "X", "1", 0, 1, "Keep the likeliest tokens that make up this probability."},
    {"min-p", 0, PS_OPT_F64, "X", "0", 0, 1, "Drop tokens below this fraction of the likeliest one's."},
    {"seed", 0, PS_OPT_U64, "N", "1", 0, 0, "Seed of the sampler: same seed, same tokens."},
    {"budget", 'b', PS_OPT_TEXT, "NAME", NULL, 0, 0,
     "Budget of the plan, by name or size; default the largest that the GPU holds."},
    {"context", 'c', PS_OPT_SIZE, "TOKENS", NULL, 1, 1e9, "Tokens to hold; default the plan's largest."},
    {"threads", 't', PS_OPT_U64, "N", NULL, 1, 4096, "Threads; the plan must have a level for it."},
    {"device", 0, PS_OPT_TEXT, "WHICH", "auto", 0, 0,
     "auto: a GPU where the budget needs one; cuda; emulated (host memory and threads stand in); none."},
    {"watch-vram", 0, PS_OPT_SIZE, "TOTAL", NULL, 1, 1e18,
     "Treat the GPU as having TOTAL bytes, and keep to the largest budget that other processes leave."},
    {"emulated-others", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "For tests: FILE holds the bytes that other processes take of an emulated GPU."},
    {"bench", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Measure prefill and decode on random tokens."},
    {"bench-prompt", 0, PS_OPT_U64, "N", "512", 1, 1e6, "Tokens of a prefill in --bench."},
    {"bench-decode", 0, PS_OPT_U64, "N", "64", 1, 1e6, "Decode steps of a round in --bench."},
    {"repeat", 0, PS_OPT_U64, "N", "5", 1, 1000, "Rounds of --bench, after one to warm up."},
    {"teacher-force", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "Evaluate a file of int32 token ids and write the logits of every position."},
    {"window", 0, PS_OPT_U64, "N", "512", 1, 1e6, "Tokens of each independent stretch of --teacher-force."},
    {"chunk", 0, PS_OPT_U64, "N", NULL, 1, 1e6,
     "Tokens that --teacher-force evaluates at once; default a whole window."},
    {"logits-out", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "Where --teacher-force writes float32 rows of the vocabulary's size; '-' is standard output."},
    {"trace", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0, "Write a trace of all steps."},
    {"verify", 0, PS_OPT_FLAG, NULL, NULL, 0, 0,
     "Compare every instruction with its reference kernel (slow)."},
    {"quiet", 'q', PS_OPT_FLAG, NULL, NULL, 0, 0, "Only the answer: no notes on standard error."},
    {"json", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the result as JSON instead of text."},
    PS_CLI_ROWS};

static const ps_command command = {
    .name = "psrun",
    .synopsis = "[OPTIONS] MODEL.gguf",
    .summary = "Run a plan that psplan made on its model.",
    .details = "The answer goes to standard output as it is produced; notes, speed and predicted against\n"
               "measured time go to standard error. SIGUSR1 changes to the next smaller budget of the plan,\n"
               "SIGUSR2 to the next larger one; nothing is lost and nothing computed twice.",
    .examples = "  psrun -m 'Why is the sky blue?' SmolLM2-135M-Instruct.Q4_1.gguf\n"
                "  psrun --bench --plan tuned.plan.yaml MODEL.gguf\n"
                "  psrun --raw -m 'Once upon a time' -n 50 --trace run.json MODEL.gguf",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .min_args = 1,
    .max_args = 1,
};

static const ps_opt_value *option(const ps_opt_value *values, const char *name) {
    return ps_options_get(&command, values, name);
}

/* The prompt from option, file or standard input; from malloc. */
static ps_status read_prompt(const psrun *r, char **out, uint64_t *out_len, ps_error *err) {
    const char *text = psrun_option(r, "prompt")->text, *path = psrun_option(r, "prompt-file")->text;
    if (path != NULL)
        return ps_file_read(path, PSRUN_PROMPT_MAX_BYTES, out, out_len, err);
    ps_text *t = ps_text_new();
    if (strcmp(text, "-") == 0) {
        char buf[4096];
        uint64_t size = 0;
        for (size_t n; size <= PSRUN_PROMPT_MAX_BYTES && (n = fread(buf, 1, sizeof buf, stdin)) != 0;
             size += n)
            ps_text_put(t, buf, n);
        ps_status status = ferror(stdin)
                               ? ps_error_errno(err, PS_E_IO, "standard input", errno, "cannot read")
                           : size > PSRUN_PROMPT_MAX_BYTES
                               ? ps_error_set(err, PS_E_DATA, "standard input",
                                              "is more than the %d bytes allowed", PSRUN_PROMPT_MAX_BYTES)
                               : PS_OK;
        if (status != PS_OK) {
            free(ps_text_end(t, NULL));
            return status;
        }
    } else {
        ps_text_put(t, text, strlen(text));
    }
    *out = ps_text_end(t, out_len);
    return *out != NULL ? PS_OK : ps_error_set(err, PS_E_NOMEM, "prompt", "no memory");
}

/* What the mode works on, as far as it can be judged without a model: nobody waits for one to hear of a wrong file. */
static ps_status read_input(psrun *r, ps_error *err) {
    const char *prompts = psrun_option(r, "prompts")->text, *ids = psrun_option(r, "teacher-force")->text;
    if (psrun_option(r, "bench")->set)
        return PS_OK;
    if (prompts != NULL)
        return ps_file_read(prompts, PSRUN_PROMPT_MAX_BYTES, &r->input, &r->input_bytes, err);
    if (ids == NULL)
        return read_prompt(r, &r->input, &r->input_bytes, err);
    ps_status status = ps_file_read(ids, PSRUN_IDS_MAX_BYTES, &r->input, &r->input_bytes, err);
    if (status == PS_OK && (r->input_bytes == 0 || r->input_bytes % sizeof(int32_t) != 0))
        status = ps_error_set(err, PS_E_DATA, ids, "%" PRIu64 " bytes are not a list of int32 token ids",
                              r->input_bytes);
    return status;
}

ps_status psrun_encode(const psrun *r, const char *text, uint64_t len, int32_t **out, uint64_t *out_n,
                       ps_error *err) {
    const char *system = psrun_option(r, "system")->text;
    if (!psrun_option(r, "raw")->set) {
        if (memchr(text, '\0', len) != NULL)
            return ps_error_set(
                err, PS_E_DATA, "prompt",
                "holds a NUL character, which only --raw takes: a conversation would end there");
        const char *roles[2] = {"system", "user"}, *contents[2] = {system, text};
        uint32_t skip = system == NULL;
        ps_status status =
            ps_engine_encode_chat(r->engine, roles + skip, contents + skip, 2 - skip, out, out_n, err);
        if (status != PS_E_UNSUPPORTED || system != NULL)
            return status;
        if (!psrun_option(r, "quiet")->set) {
            char line[600];
            fprintf(stderr, "psrun: note: %s; the prompt is continued as it is\n",
                    ps_error_format(err, line, sizeof line));
        }
    }
    /* Where a chat was meant, the text is a stranger's: names of special tokens in it stay text. */
    return ps_engine_encode(r->engine, text, len, true, psrun_option(r, "raw")->set, out, out_n, err);
}

ps_sampler_params psrun_sampling(const psrun *r) {
    return (ps_sampler_params){.temperature = (float)psrun_option(r, "temperature")->f64,
                               .top_k = (uint32_t)psrun_option(r, "top-k")->u64,
                               .top_p = (float)psrun_option(r, "top-p")->f64,
                               .min_p = (float)psrun_option(r, "min-p")->f64,
                               .seed = psrun_option(r, "seed")->u64};
}

typedef struct generation {
    uint64_t n_prompt, n_generated;
    uint64_t prefill_ns, decode_ns; /* decode: all steps after the first token */
    double prefill_predicted_s, decode_predicted_s;
    const char *stop;
} generation;

static void put_piece(const psrun *r, ps_text *answer, int32_t token) {
    char piece[4096]; /* as long as a token can be */
    uint32_t n = ps_engine_piece(r->engine, token, piece, sizeof piece);
    if (n > sizeof piece)
        n = sizeof piece;
    if (answer != NULL) {
        ps_text_put(answer, piece, n);
    } else {
        fwrite(piece, 1, n, stdout);
        fflush(stdout);
    }
}

static ps_status generate(const psrun *r, ps_session *s, const int32_t *prompt, ps_text *answer,
                          generation *g, ps_error *err) {
    uint64_t max_tokens = psrun_option(r, "tokens")->u64, context = ps_engine_get_info(r->engine)->context;
    ps_engine_stats before, after;
    int32_t token;
    ps_eval_item item = {
        .session = s, .tokens = prompt, .n_tokens = (uint32_t)g->n_prompt, .sampled = &token};
    ps_engine_get_stats(r->engine, &before);
    uint64_t start_ns = ps_clock_ns();
    ps_status status = psrun_eval(r, &item, 1, err);
    g->prefill_ns = ps_clock_ns() - start_ns;
    ps_engine_get_stats(r->engine, &after);
    g->prefill_predicted_s = after.predicted_s - before.predicted_s;
    start_ns += g->prefill_ns;
    g->stop = "length";
    while (status == PS_OK && g->n_generated < max_tokens) {
        if (ps_engine_is_end(r->engine, token)) {
            g->stop = "end";
            break;
        }
        put_piece(r, answer, token);
        g->n_generated++;
        if (ferror(stdout))
            return ps_error_set(err, PS_E_IO, "standard output", "cannot write");
        if (ps_session_length(s) == context) {
            g->stop = "context";
            break;
        }
        if (g->n_generated == max_tokens)
            break;
        int32_t next = token;
        item = (ps_eval_item){.session = s, .tokens = &next, .n_tokens = 1, .sampled = &token};
        status = psrun_eval(r, &item, 1, err);
    }
    g->decode_ns = ps_clock_ns() - start_ns;
    ps_engine_get_stats(r->engine, &before);
    g->decode_predicted_s = before.predicted_s - after.predicted_s;
    return status;
}

static double per_s(uint64_t n, uint64_t ns) {
    return ns == 0 ? 0 : (double)n * 1e9 / (double)ns;
}

const char *psrun_predictions_of(const ps_engine_info *info) {
    return info->synthetic_profile ? "synthetic"
           : info->other_machine   ? "another machine"
           : info->differences[0]  ? "this machine as it was"
                                   : "this machine";
}

static void report(const psrun *r, const generation *g, const char *answer, uint64_t n_answer) {
    uint64_t steps = g->n_generated > 0 ? g->n_generated - (strcmp(g->stop, "end") != 0) : 0;
    ps_engine_stats stats;
    ps_engine_get_stats(r->engine, &stats);
    if (psrun_option(r, "json")->set) {
        ps_json *j = ps_json_new(2);
        ps_json_object(j, NULL);
        ps_json_strn(j, "text", answer, n_answer);
        ps_json_str(j, "stop", g->stop);
        ps_json_u64(j, "prompt_tokens", g->n_prompt);
        ps_json_u64(j, "generated_tokens", g->n_generated);
        ps_json_f64(j, "prefill_s", (double)g->prefill_ns * 1e-9);
        ps_json_f64(j, "prefill_predicted_s", g->prefill_predicted_s);
        ps_json_f64(j, "decode_s", (double)g->decode_ns * 1e-9);
        ps_json_f64(j, "decode_predicted_s", g->decode_predicted_s);
        ps_json_f64(j, "decode_tokens_per_s", per_s(steps, g->decode_ns));
        ps_json_str(j, "predictions_of", psrun_predictions_of(ps_engine_get_info(r->engine)));
        if (stats.n_verified != 0) {
            ps_json_u64(j, "verified_instructions", stats.n_verified);
            ps_json_f64(j, "worst_of_tolerance_frac", stats.worst_verify);
        }
        psrun_vram_json(r, j);
        ps_json_close(j);
        char *text = ps_json_end(j, NULL);
        fputs(text != NULL ? text : "", stdout);
        free(text);
        return;
    }
    fputc('\n', stdout);
    fflush(stdout); /* before the notes, where both streams go to one file */
    if (psrun_option(r, "quiet")->set)
        return;
    fprintf(stderr, "prompt     %6" PRIu64 " tokens  %8.1f ms  predicted %8.1f ms  %7.1f tokens/s\n",
            g->n_prompt, (double)g->prefill_ns * 1e-6, g->prefill_predicted_s * 1e3,
            per_s(g->n_prompt, g->prefill_ns));
    if (steps != 0)
        fprintf(stderr, "generated  %6" PRIu64 " tokens  %8.1f ms  predicted %8.1f ms  %7.1f tokens/s\n",
                g->n_generated, (double)g->decode_ns * 1e-6, g->decode_predicted_s * 1e3,
                per_s(steps, g->decode_ns));
    if (stats.n_verified != 0)
        fprintf(stderr, "verified   %6" PRIu64 " instructions, worst at %.0f%% of its tolerance\n",
                stats.n_verified, 100 * stats.worst_verify);
}

/* Weights that are resident and read as slowly as over the bus: the plan knows no such step, and drivers say nothing. */
static void warn_spilled(const psrun *r, const generation *g) {
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    const double took_s = (double)g->decode_ns * 1e-9, times = took_s / g->decode_predicted_s;
    if (info->vram_weight_bytes == 0 || info->synthetic_profile || info->other_machine ||
        g->n_generated < 4 || !(g->decode_predicted_s > 0) || times < 4 || psrun_option(r, "verify")->set)
        return;
    fprintf(stderr,
            "psrun: warning: steps with %.1f MiB of weights in VRAM took %.0f times what was predicted: the "
            "driver "
            "may keep some of it in system memory, as where other programs take VRAM; a smaller --budget "
            "avoids it\n",
            (double)info->vram_weight_bytes * 0x1p-20, times);
}

static ps_status answer_prompt(const psrun *r, ps_error *err) {
    char *answer = NULL;
    uint64_t n_answer = 0;
    ps_session *session = NULL;
    int32_t *ids = NULL;
    ps_text *collected = psrun_option(r, "json")->set ? ps_text_new() : NULL;
    generation g = {0};
    ps_status status = psrun_encode(r, r->input, r->input_bytes, &ids, &g.n_prompt, err);
    if (status == PS_OK && g.n_prompt == 0)
        status = ps_error_set(err, PS_E_USAGE, "prompt", "is empty");
    if (status != PS_OK)
        goto done;
    ps_sampler_params sampling = psrun_sampling(r);
    status = ps_session_new(r->engine, &sampling, &session, err);
    if (status == PS_OK)
        status = generate(r, session, ids, collected, &g, err);
    if (status == PS_OK) {
        answer = ps_text_end(collected, &n_answer);
        collected = NULL;
        report(r, &g, answer != NULL ? answer : "", answer != NULL ? n_answer : 0);
        warn_spilled(r, &g);
    }
done:
    free(ps_text_end(collected, NULL));
    free(answer);
    ps_session_free(session);
    free(ids);
    return status;
}

/* MODEL.gguf -> MODEL.plan.yaml in the current folder, as psplan names it; from malloc. */
static char *default_plan_path(const char *model) {
    const char *base = strrchr(model, '/');
    base = base != NULL ? base + 1 : model;
    size_t len = strlen(base);
    if (len > 5 && strcmp(base + len - 5, ".gguf") == 0)
        len -= 5;
    char *path = malloc(len + sizeof ".plan.yaml");
    if (path != NULL) {
        memcpy(path, base, len);
        memcpy(path + len, ".plan.yaml", sizeof ".plan.yaml");
    }
    return path;
}

static void note_start(const psrun *r) {
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    if (psrun_option(r, "quiet")->set)
        return;
    fprintf(stderr, "%s (%s), %.1f MiB of weights (%s), budget %s, context %" PRIu64 ", %u thread%s, %s\n",
            info->model_name, info->arch, (double)info->weight_bytes * 0x1p-20, info->weights, info->budget,
            info->context, info->n_threads, info->n_threads == 1 ? "" : "s", info->cpu_level);
    fprintf(stderr, "level %s/%" PRIu64 "/%u/%u: %s\n", info->budget, info->bucket, info->level_seqs,
            info->n_threads, info->level_why);
    if (info->budget_bytes != 0)
        fprintf(stderr,
                "%s: VRAM %.1f MiB before, %.1f MiB to work in, %.1f MiB of weights (meter: %s); host "
                "weights: %s\n",
                info->device, (double)info->vram_base_bytes * 0x1p-20,
                (double)info->vram_work_bytes * 0x1p-20, (double)info->vram_weight_bytes * 0x1p-20,
                info->meter, info->weights_why);
    if (info->synthetic_profile)
        fprintf(stderr, "psrun: warning: the plan comes from a synthetic profile; its predictions are not "
                        "of a real machine\n");
    else if (info->other_machine)
        fprintf(stderr,
                "psrun: warning: the plan's profile is of another machine; its predictions are not this "
                "machine's%s%s\n",
                info->differences[0] ? ": " : "", info->differences);
    else if (info->differences[0])
        fprintf(
            stderr,
            "psrun: warning: this machine has changed since it was measured, the plan's predictions are of "
            "before: %s\n",
            info->differences);
}

/* One mode, and no output over an input or over the other output. */
static ps_status check_options(const ps_opt_value *values, const char *model, const char *plan,
                               ps_error *err) {
    bool bench = option(values, "bench")->set, teacher = option(values, "teacher-force")->set;
    bool prompt = option(values, "prompt")->set || option(values, "prompt-file")->set;
    bool prompts = option(values, "prompts")->set;
    if ((int)bench + (int)teacher + (int)prompt + (int)prompts > 1)
        return ps_error_set(err, PS_E_USAGE, "prompt",
                            "give one of a prompt, --prompts, --bench and --teacher-force");
    if (option(values, "parallel")->set && !bench && !prompts)
        return ps_error_set(err, PS_E_USAGE, "--parallel", "is for --prompts and --bench");
    if (teacher && !option(values, "logits-out")->set)
        return ps_error_set(err, PS_E_USAGE, "--teacher-force", "needs --logits-out");
    if (!teacher && option(values, "logits-out")->set)
        return ps_error_set(err, PS_E_USAGE, "--logits-out", "is for --teacher-force");
    if (option(values, "raw")->set && option(values, "system")->set)
        return ps_error_set(err, PS_E_USAGE, "--system", "is for a conversation, which --raw is not");
    if (!(option(values, "top-p")->f64 > 0))
        return ps_error_set(err, PS_E_USAGE, "--top-p", "must be above 0 and at most 1");
    const char *outputs[] = {option(values, "trace")->text,
                             teacher ? option(values, "logits-out")->text : NULL};
    const char *inputs[] = {model, plan, option(values, "prompt-file")->text, option(values, "prompts")->text,
                            option(values, "teacher-force")->text};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
            if (ps_file_is_same(outputs[i], inputs[k]))
                return ps_error_set(err, PS_E_USAGE, outputs[i],
                                    "is an input; writing there would destroy it");
    if (outputs[0] != NULL && outputs[1] != NULL &&
        (strcmp(outputs[0], outputs[1]) == 0 || ps_file_is_same(outputs[0], outputs[1])))
        return ps_error_set(err, PS_E_USAGE, "--trace", "'%s' is where the logits go", outputs[0]);
    ps_status status = outputs[0] != NULL ? ps_file_check_output(outputs[0], err) : PS_OK;
    return status == PS_OK && outputs[1] != NULL && strcmp(outputs[1], "-") != 0
               ? ps_file_check_output(outputs[1], err)
               : status;
}

static ps_status run(const ps_opt_value *values, const char *model, ps_error *err) {
    psrun r = {.command = &command, .values = values};
    char *plan = NULL;
    bool answers = !option(values, "bench")->set && !option(values, "teacher-force")->set &&
                   !option(values, "prompts")->set;
    if (answers && option(values, "prompt")->set == option(values, "prompt-file")->set)
        return ps_error_set(err, PS_E_USAGE, "", "give one of --prompt, --prompt-file and --prompts");
    const char *plan_path = option(values, "plan")->text;
    if (plan_path == NULL) {
        plan_path = plan = default_plan_path(model);
        if (plan == NULL)
            return ps_error_set(err, PS_E_NOMEM, model, "no memory");
    }
    ps_engine_options o = {.model_path = model,
                           .plan_path = plan_path,
                           .budget = option(values, "budget")->text,
                           .vram_limit_bytes = option(values, "watch-vram")->u64,
                           .context = option(values, "context")->u64,
                           .n_threads = (uint32_t)option(values, "threads")->u64,
                           .n_sessions = (uint32_t)option(values, "parallel")->u64,
                           .verify = option(values, "verify")->set,
                           .device = option(values, "device")->text};
    const char *others = option(values, "emulated-others")->text;
    if (others != NULL) {
        o.emulated_others = psrun_emulated_others;
        o.emulated_others_ctx = (void *)(uintptr_t)others;
    }
    ps_status status = check_options(values, model, plan_path, err);
    if (status != PS_OK)
        goto done;
    status = read_input(&r, err);
    if (status != PS_OK)
        goto done;
    psrun_vram_block_signals();
    status = ps_engine_open(&o, &r.engine, err);
    if (status == PS_E_NOINPUT && plan != NULL && err != NULL && strcmp(err->subject, plan) == 0)
        (void)ps_error_set(err, status, plan,
                           "no plan for this model here; make one with 'psplan %s' or name one "
                           "with --plan",
                           model);
    if (status != PS_OK)
        goto done;
    note_start(&r);
    status = psrun_vram_start(&r, err);
    if (status != PS_OK)
        goto done;
    const char *trace = option(values, "trace")->text;
    if (trace != NULL)
        status = ps_engine_trace_start(r.engine, err);
    if (status != PS_OK)
        goto done;
    if (option(values, "bench")->set)
        status = psrun_bench(&r, err);
    else if (option(values, "teacher-force")->set)
        status = psrun_teacher(&r, err);
    else if (option(values, "prompts")->set)
        status = psrun_parallel(&r, err);
    else
        status = answer_prompt(&r, err);
    if (status == PS_OK)
        psrun_vram_end(&r);
    if (status == PS_OK && trace != NULL)
        status = ps_engine_trace_write(r.engine, trace, err);
done:
    psrun_vram_free(&r);
    ps_engine_close(r.engine);
    free(r.input);
    free(plan);
    return status;
}

PS_CLI_GUARD("psrun")

int main(int argc, char **argv) {
    ps_cli_guard();
    ps_opt_value values[sizeof options / sizeof *options];
    const char *positional[1];
    uint32_t n_positional;
    ps_error err = {0};
    ps_status status = ps_options_parse(&command, argc, argv, values, positional, &n_positional, &err);
    if (status == PS_OK && ps_cli_answer(&command, values))
        return ps_cli_finish("psrun", PS_OK, &err);
    if (status == PS_OK)
        status = run(values, positional[0], &err);
    return ps_cli_finish("psrun", status, &err);
}
