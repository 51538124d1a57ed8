/* pstune: measure. A run keeps what it has in FILE.partial, which the next one takes up; FILE itself is replaced once,
 * at the end. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/progress.h"
#include "kernels/kernel.h"
#include "machine/device_link.h"
#include "profile/cpu_rig.h"
#include "profile/gpu_rig.h"
#include "profile/grid.h"
#include "profile/null_rig.h"
#include "profile/sweep.h"
#include "pstune_internal.h"

static const ps_option options[] = {
    {"output", 'o', PS_OPT_TEXT, "FILE", NULL, 0, 0,
     "Profile to write; default $XDG_DATA_HOME/pinstripe/profile.yaml, or below ~/.local/share."},
    {"quick", 'q', PS_OPT_FLAG, NULL, NULL, 0, 0, "Measure less, within a minute."},
    {"model", 'm', PS_OPT_TEXT, "FILE.gguf", NULL, 0, 0,
     "Measure just what this model needs: fewer points, better predictions for it."},
    {"threads", 't', PS_OPT_U64, "N", NULL, 1, 4096, "Use at most N threads; default all that are allowed."},
    {"device", 'd', PS_OPT_TEXT, "NAME", "auto", 0, 0,
     "GPU to measure: auto (one, if there is one), none, cuda, or emulated (for tests); null with --null."},
    {"timer", 0, PS_OPT_TEXT, "NAME", "auto", 0, 0,
     "What tells the GPU's time: auto (CUPTI, or events where it cannot be had), cupti, events."},
    {"cupti", 0, PS_OPT_TEXT, "FILE", NULL, 0, 0, "The CUPTI library, where it is not found by itself."},
    {"time", 0, PS_OPT_F64, "SECONDS", NULL, 1, 86400, "Time to spend at most, instead of the mode's own."},
    {"gather", 0, PS_OPT_TEXT, "FOLDER", NULL, 0, 0,
     "Only record topology and limits in a new folder, for a bug report; no names, addresses or serial "
     "numbers."},
    {"fresh", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Start anew even if an interrupted run left something."},
    {"null", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Measure a made-up machine: for tests, takes no time."},
    {"json", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the result as JSON."},
    {"help", 'h', PS_OPT_FLAG, NULL, NULL, 0, 0, "Show this help."},
    {"man", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Print the man page's source."},
    {"version", 0, PS_OPT_FLAG, NULL, NULL, 0, 0, "Show the version."},
};

static const ps_command command = {
    .name = "pstune",
    .synopsis = "[OPTIONS]\n       pstune show [OPTIONS] FILE\n       pstune diff [OPTIONS] A B\n       "
                "pstune check [OPTIONS] FILE",
    .summary = "Measure this machine and write its profile, which psplan plans with.",
    .details = "Takes ten minutes at most. The machine should do nothing else meanwhile; what disturbs is\n"
               "noticed and noted. An interrupted run goes on where it was when the same command is given\n"
               "again.",
    .examples = "  pstune\n"
                "  pstune --quick --output profile.yaml\n"
                "  pstune --model SmolLM2-135M-Instruct.Q4_1.gguf -o smol.yaml\n"
                "  pstune show smol.yaml\n"
                "  pstune --gather my-laptop && tar czf my-laptop.tar.gz my-laptop",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .max_args = 0,
};

/* Limits of each mode, seconds. Start and end of the program take some of a quick run's minute. */
static const struct {
    const char *name;
    bool quick, model;
    double limit_s, max_task_s;
} modes[] = {
    {"default", false, false, 570, 0.6},
    {"quick", true, false, 48, 0.3},
    {"model", false, true, 300, 0.6},
    {"quick-model", true, true, 48, 0.45},
};

/* Making weights for the first time, with all their pages, at worst; and what a run needs besides. */
static const double fill_bytes_per_s = 0.5e9, least_s = 1;

static volatile sig_atomic_t stop_signal;

static void on_signal(int number) {
    stop_signal = number;
}

typedef struct run {
    ps_progress progress;
    char output[4096], partial[4096 + 16];
    bool null;
    double asked_s;          /* for everything */
    const ps_device *device; /* NULL: none */
} run;

static void show_progress(void *ctx, double frac, const char *label) {
    ps_progress_update(&((run *)ctx)->progress, frac, label);
}

static bool wants_stop(void *ctx) {
    (void)ctx;
    return stop_signal != 0;
}

static ps_status save_partial(void *ctx, const ps_profile *profile, ps_error *err) {
    return ps_profile_write(profile, ((run *)ctx)->partial, err);
}

/* Make the folders above `path`; those that are there are fine. */
static ps_status make_folders(char *path, ps_error *err) {
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        const int bad = mkdir(path, 0777) != 0 && errno != EEXIST ? errno : 0;
        if (bad)
            ps_error_errno(err, PS_E_CANTCREATE, path, bad, "cannot create this folder");
        *p = '/';
        if (bad)
            return PS_E_CANTCREATE;
    }
    return PS_OK;
}

static ps_status choose_output(run *r, const char *given, ps_error *err) {
    const char *base = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int n;
    if (given)
        n = snprintf(r->output, sizeof r->output, "%s", given);
    else if (base && *base == '/')
        n = snprintf(r->output, sizeof r->output, "%s/pinstripe/profile.yaml", base);
    else if (home && *home)
        n = snprintf(r->output, sizeof r->output, "%s/.local/share/pinstripe/profile.yaml", home);
    else
        return ps_error_set(err, PS_E_USAGE, "--output",
                            "neither HOME nor XDG_DATA_HOME is set: say where to write");
    if (n <= 0 || (size_t)n >= sizeof r->output)
        return ps_error_set(err, PS_E_USAGE, "--output", "not a usable path");
    snprintf(r->partial, sizeof r->partial, "%s.partial", r->output);
    /* Known before minutes are spent. */
    struct stat st;
    if (stat(r->output, &st) == 0 && !S_ISREG(st.st_mode))
        return ps_error_set(err, PS_E_CANTCREATE, r->output, "exists and is not a regular file");
    if (stat(r->partial, &st) == 0 && !S_ISREG(st.st_mode))
        return ps_error_set(err, PS_E_CANTCREATE, r->partial,
                            "is where pstune keeps what it has measured, and is not a regular file");
    ps_status status = given ? PS_OK : make_folders(r->output, err);
    return status == PS_OK ? ps_file_check_output(r->output, err) : status;
}

static void now_text(char *buf, size_t size) {
    const time_t now = time(NULL);
    struct tm tm;
    if (!gmtime_r(&now, &tm) || strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        buf[0] = 0;
}

/* What an interrupted run left, if it fits; NULL otherwise. */
static ps_profile *find_resume(const run *r, const ps_sweep_config *config) {
    ps_profile *old = NULL;
    ps_error err = {0};
    if (access(r->partial, F_OK) != 0)
        return NULL;
    if (ps_profile_read(r->partial, &old, &err) != PS_OK) {
        char line[600];
        fprintf(stderr, "pstune: note: starting anew: %s\n", ps_error_format(&err, line, sizeof line));
        return NULL;
    }
    if (!ps_sweep_can_resume(old, config)) {
        fprintf(stderr, "pstune: note: starting anew: %s is of another mode, model, machine or kernel set\n",
                r->partial);
        ps_profile_free(old);
        return NULL;
    }
    return old;
}

/* Kernels that no point was measured of, though there are tasks for them. */
static uint32_t without_curve(const ps_sweep_config *c, const ps_profile *p) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n_kernels; k++) {
        bool wanted = false, there = false;
        for (uint32_t i = 0; i < c->n_tasks && !wanted; i++)
            wanted = c->tasks[i].measure == PS_MEASURE_KERNEL && c->tasks[i].point.kernel == c->kernels[k].id;
        for (uint32_t i = 0; i < p->n_points && !there; i++)
            there = p->points[i].kernel == c->kernels[k].id;
        n += wanted && !there;
    }
    return n;
}

/* What a person should know of a finished profile, each a line. */
static void warn(const run *r, const ps_sweep_config *c, ps_profile *p, double seconds) {
    const uint32_t n = without_curve(c, p);
    char more[96] = "";
    if (n)
        snprintf(more, sizeof more, ": %u kernels have no curve, psplan will go by ceilings for them", n);
    if (seconds > r->asked_s * 1.02 + 1)
        fprintf(stderr, "pstune: warning: %.0f s asked for, what no profile can be without took %.0f%s\n",
                r->asked_s, seconds, more);
    else if (n)
        fprintf(stderr, "pstune: warning: %.0f s were too little%s\n", r->asked_s, more);
    if (ps_profile_spills(&p->gpu))
        fprintf(
            stderr,
            "pstune: warning: %s: memory is read at %.1f GB/s once it is full, at %.1f before: the "
            "driver spills to "
            "system memory; keep budgets below %.1f GiB of its %.1f, as psplan's automatic ones are\n",
            p->gpu.name, p->gpu.hbm_full_bytes_per_s.median * 1e-9, p->gpu.hbm_read_bytes_per_s.median * 1e-9,
            (double)ps_profile_fast_vram_bytes(&p->gpu) / (1 << 30), (double)p->gpu.vram_bytes / (1 << 30));
    char text[96];
    ps_device_link link = {0};
    if (r->device)
        ps_device_read_link(r->device, &link);
    link.gen = p->gpu.pcie_gen; /* the best that was seen, under load */
    link.width = p->gpu.pcie_width;
    if (*ps_device_link_text(&link, text, sizeof text))
        fprintf(stderr, "pstune: warning: %s: %s\n", p->gpu.name, text);
}

static int report(const run *r, const ps_sweep_result *result, double seconds, bool json) {
    if (!json) {
        ps_tune_print(result->profile, false);
        printf("written   ");
        ps_cli_name(stdout, r->output);
        printf(", %u quantities in %.0f s\n", result->n_measured + result->n_resumed, seconds);
        return 0;
    }
    ps_json *j = ps_json_new(2);
    ps_json_object(j, NULL);
    ps_json_str(j, "output", r->output);
    ps_json_f64(j, "seconds", seconds);
    ps_json_u64(j, "n_measured", result->n_measured);
    ps_json_u64(j, "n_resumed", result->n_resumed);
    ps_json_u64(j, "n_left_out", result->n_left_out);
    ps_json_u64(j, "n_noisy", result->n_noisy);
    ps_json_object(j, "profile");
    ps_tune_json(j, result->profile);
    ps_json_close(j);
    ps_json_close(j);
    return ps_tune_json_out(j);
}

/* Sweep, write, report. Returns the exit code. */
static int sweep(run *r, ps_sweep_config *config, bool fresh, bool json) {
    ps_sweep_result result = {0};
    ps_error err = {0};
    ps_profile *old = fresh ? NULL : find_resume(r, config);
    int code = 0;
    config->resume = old;
    const uint64_t start_ns = config->ops->now_ns(config->rig);
    ps_progress_start(&r->progress, stderr);
    ps_status st = ps_sweep_run(config, &result, &err);
    ps_progress_end(&r->progress);
    if (st == PS_OK && !result.stopped) {
        st = ps_profile_write(result.profile, r->output, &err);
        if (st == PS_OK) {
            const double seconds = (double)(config->ops->now_ns(config->rig) - start_ns) * 1e-9;
            warn(r, config, result.profile, seconds);
            unlink(r->partial);
            code = report(r, &result, seconds, json);
        }
    } else if (result.profile && result.n_measured > 0) {
        ps_error saving = {0};
        if (save_partial(r, result.profile, &saving) == PS_OK)
            fprintf(stderr, "pstune: %u quantities are kept in %s: give the same command to go on\n",
                    result.n_measured + result.n_resumed, r->partial);
        else if (st == PS_OK) {
            st = saving.status;
            err = saving;
        }
    }
    if (st != PS_OK)
        code = ps_tune_fail(&err);
    ps_sweep_free(&result);
    ps_profile_free(old);
    return code;
}

/* The GPU that --device names; NULL: none. auto: without a GPU there is none, with one that fails there is an error. */
static ps_status open_device(const char *name, ps_device **out, ps_error *err) {
    const bool any = strcmp(name, "auto") == 0;
    *out = NULL;
    if (strcmp(name, "none") == 0)
        return PS_OK;
    if (!any && strcmp(name, "cuda") != 0 && strcmp(name, "emulated") != 0)
        return ps_error_set(err, PS_E_USAGE, "--device", "\"%.40s\" is none of auto, none, cuda, emulated",
                            name);
    ps_status st = ps_device_open(&(ps_device_options){.emulated = strcmp(name, "emulated") == 0,
                                                       .emulated_base_bytes = (uint64_t)64 << 20},
                                  out, err);
    if (st == PS_OK &&
        ps_device_get_info(*out)->vram_bytes == 0) /* some drivers say so where they do not know */
        st = ps_error_set(err, PS_E_UNAVAILABLE, ps_device_get_info(*out)->name,
                          "says that it has no memory: --device none leaves it out");
    if (st == PS_E_UNSUPPORTED && any) {
        fprintf(stderr, "pstune: note: %s: %s\n", err->subject, err->message);
        return PS_OK;
    }
    return st == PS_E_UNAVAILABLE && any && *out == NULL ? PS_OK : st;
}

/* --device beside --null: the made-up machine has a made-up GPU or none. */
static ps_status null_device(const char *name, bool *out_gpu, ps_error *err) {
    *out_gpu = strcmp(name, "null") == 0;
    if (*out_gpu || strcmp(name, "auto") == 0 || strcmp(name, "none") == 0)
        return PS_OK;
    return ps_error_set(err, PS_E_USAGE, "--device",
                        "with --null only none (or auto) and null, a made-up GPU, not \"%.40s\"", name);
}

static ps_status choose_timer(const char *name, ps_gpu_timer_choice *out, ps_error *err) {
    *out = strcmp(name, "cupti") == 0    ? PS_GPU_TIMER_CUPTI
           : strcmp(name, "events") == 0 ? PS_GPU_TIMER_EVENTS
                                         : PS_GPU_TIMER_AUTO;
    return *out != PS_GPU_TIMER_AUTO || strcmp(name, "auto") == 0
               ? PS_OK
               : ps_error_set(err, PS_E_USAGE, "--timer", "\"%.40s\" is none of auto, cupti, events", name);
}

/* Where people say that CUDA is; NULL: nowhere. */
static const char *cuda_home(void) {
    static const char *const names[] = {"CUDA_HOME", "CUDA_PATH"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *home = getenv(names[i]);
        if (home && *home)
            return home;
    }
    return access("/usr/local/cuda", F_OK) == 0 ? "/usr/local/cuda" : NULL;
}

/* A limit that weights alone would exceed is refused, since it could not be kept. */
static ps_status allow_for_filling(ps_sweep_config *c, uint64_t cold_bytes, ps_error *err) {
    c->fill_s = (double)cold_bytes / fill_bytes_per_s;
    const double needed_s = ceil(least_s + c->fill_s);
    if (c->limit_s >= needed_s)
        return PS_OK;
    return ps_error_set(
        err, PS_E_USAGE, "--time",
        "too little: %llu MiB of weights, more than caches hold, are made first; give %.0f s or more",
        (unsigned long long)(cold_bytes >> 20), needed_s);
}

static const ps_opt_value *option(const ps_opt_value *values, const char *name) {
    return ps_options_get(&command, values, name);
}

int ps_tune_measure(int argc, char **argv) {
    ps_opt_value values[sizeof options / sizeof *options];
    const char *args[1] = {NULL};
    uint32_t n_args, n_threads = 8;
    int code = 0;
    const uint64_t start_ns = ps_clock_ns();
    run r = {0};
    ps_error err = {0};
    ps_machine *machine = NULL;
    ps_gguf *gguf = NULL;
    ps_model *model = NULL;
    ps_cpu_rig *cpu = NULL;
    ps_null_rig *null = NULL;
    ps_device *device = NULL;
    ps_gpu_rig *gpu = NULL;
    ps_task *tasks = NULL;
    ps_kernel_spec *kernels = NULL;
    char created[32], note[256] = "";
    if (!ps_tune_parse(&command, argc, argv, values, args, &n_args, &code))
        return code;
    const char *folder = option(values, "gather")->text;
    if (folder) {
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (values[i].set && strcmp(options[i].name, "gather") != 0) {
                char subject[48];
                snprintf(subject, sizeof subject, "--%s", options[i].name);
                ps_error_set(&err, PS_E_USAGE, subject, "is for measuring; --gather measures nothing");
                return ps_tune_fail(&err);
            }
        return ps_tune_gather(folder);
    }
    const char *model_path = option(values, "model")->text;
    const bool quick = option(values, "quick")->set;
    r.null = option(values, "null")->set;
    ps_sweep_config config = {.tool = "pstune " PS_VERSION_STRING,
                              .created = created,
                              .save_every_s = r.null ? 60 : 5,
                              .progress = show_progress,
                              .save = save_partial,
                              .stop = wants_stop,
                              .ctx = &r};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (modes[i].quick == quick && modes[i].model == (model_path != NULL)) {
            config.mode = modes[i].name;
            config.limit_s = modes[i].limit_s;
            config.max_task_s = modes[i].max_task_s;
        }
    if (option(values, "time")->set)
        config.limit_s = option(values, "time")->f64;
    r.asked_s = config.limit_s;
    if (!r.null && config.save_every_s > config.limit_s / 20)
        config.save_every_s = config.limit_s / 20;
    now_text(created, sizeof created);

    ps_gpu_timer_choice timer = PS_GPU_TIMER_AUTO;
    ps_status st = choose_timer(option(values, "timer")->text, &timer, &err);
    if (st == PS_OK)
        st = choose_output(&r, option(values, "output")->text, &err);
    if (st == PS_OK && (ps_file_is_same(r.output, model_path) || ps_file_is_same(r.partial, model_path)))
        st = ps_error_set(&err, PS_E_USAGE, model_path,
                          "is the model; writing the profile there would destroy it");
    if (st == PS_OK && model_path)
        st = ps_gguf_open(model_path, &gguf, &err);
    if (st == PS_OK && model_path)
        st = ps_model_open(gguf, &model, &err);
    if (st == PS_OK)
        st = ps_tune_catalogue(&kernels, &config.n_kernels, &err);
    config.kernels = kernels;
    if (st == PS_OK && !r.null) {
        st = ps_machine_open(NULL, &machine, &err);
        if (st == PS_OK)
            n_threads = machine->n_allowed;
    }
    const char *device_name = option(values, "device")->text;
    bool null_gpu = false;
    if (st == PS_OK && r.null)
        st = null_device(device_name, &null_gpu, &err);
    else if (st == PS_OK)
        st = open_device(device_name, &device, &err);
    r.device = device;
    const bool insists = timer == PS_GPU_TIMER_CUPTI || option(values, "cupti")->set;
    if (st == PS_OK && insists && (r.null || device == NULL))
        st = ps_error_set(&err, PS_E_USAGE, option(values, "cupti")->set ? "--cupti" : "--timer",
                          "there is no GPU here whose time CUPTI could tell");
    if (st == PS_OK && option(values, "cupti")->set && timer == PS_GPU_TIMER_EVENTS)
        st = ps_error_set(&err, PS_E_USAGE, "--cupti", "has nothing to do beside --timer events");
    if (st == PS_OK && option(values, "threads")->set) {
        if (option(values, "threads")->u64 > n_threads)
            st = ps_error_set(&err, PS_E_USAGE, "--threads", "%llu asked for, this process may use %u",
                              (unsigned long long)option(values, "threads")->u64, n_threads);
        else
            n_threads = (uint32_t)option(values, "threads")->u64;
    }
    if (st != PS_OK)
        goto done;
    char hex[PS_HASH_HEX] = "";
    if (model)
        ps_hash_hex(gguf->hash, hex);
    if (r.null) {
        const ps_null_config nc = {.seed = 1,
                                   .n_threads = n_threads,
                                   .noise_frac = 0.015,
                                   .outlier_frac = 0.03,
                                   .disturbed_frac = 0.03,
                                   .gpu = null_gpu,
                                   .kernels = kernels,
                                   .n_kernels = config.n_kernels};
        st = ps_null_rig_new(&nc, &null, &err);
        config.ops = &ps_null_rig_ops;
        config.rig = null;
        snprintf(note, sizeof note, "null device%s%s", model ? ", model " : "", hex);
    } else {
        const ps_cpu_config cc = {
            .machine = machine, .model = model, .cold_bytes = ps_cpu_cold_bytes(machine, model, quick)};
        st = allow_for_filling(&config, cc.cold_bytes, &err);
        if (st == PS_OK)
            st = ps_cpu_rig_new(&cc, &cpu, &err);
        config.ops = &ps_cpu_rig_ops;
        config.rig = cpu;
        snprintf(note, sizeof note, "%s%s%sup to %u threads, weights cycle through %llu MiB",
                 model ? "model " : "", hex, model ? ", " : "", n_threads,
                 (unsigned long long)(cc.cold_bytes >> 20));
        char signs[96];
        if (*ps_signs_text(&machine->signs, signs, sizeof signs)) {
            const size_t at = strlen(note);
            snprintf(note + at, sizeof note - at, "; %s", signs);
            fprintf(stderr, "pstune: note: %s\n", signs);
        }
    }
    if (st == PS_OK && device != NULL) {
        const ps_gpu_config gc = {.machine = machine,
                                  .model = model,
                                  .device = device,
                                  .cpu_ops = config.ops,
                                  .cpu_rig = config.rig,
                                  .timer = timer,
                                  .cupti_library = option(values, "cupti")->text,
                                  .cuda_home = cuda_home()};
        st = ps_gpu_rig_new(&gc, &gpu, &err);
        config.ops = ps_device_get_info(device)->emulated ? &ps_gpu_rig_emulated_ops : &ps_gpu_rig_ops;
        config.rig = gpu;
    }
    config.note = note;
    if (st == PS_OK)
        st = ps_grid_make(&(ps_grid_config){.kernels = kernels,
                                            .n_kernels = config.n_kernels,
                                            .n_threads = n_threads,
                                            .gpu = gpu != NULL || null_gpu,
                                            .blas = gpu != NULL ? ps_gpu_rig_has_blas(gpu) : null_gpu,
                                            .quick = quick,
                                            .model = model},
                          &tasks, &config.n_tasks, &err);
    config.tasks = tasks;
    if (st != PS_OK)
        goto done;
    if (!r.null) /* weights and a GPU take their time before anything is measured */
        config.limit_s -= (double)(ps_clock_ns() - start_ns) * 1e-9;
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    code = sweep(&r, &config, option(values, "fresh")->set, option(values, "json")->set);
done:
    if (st != PS_OK)
        code = ps_tune_fail(&err);
    ps_gpu_rig_free(gpu);
    ps_device_close(device);
    ps_cpu_rig_free(cpu);
    ps_null_rig_free(null);
    free(tasks);
    free(kernels);
    ps_model_close(model);
    ps_gguf_close(gguf);
    ps_machine_close(machine);
    if (stop_signal != 0 && code == 0) { /* end as the signal would have ended us, so that callers can tell */
        signal(stop_signal, SIG_DFL);
        raise(stop_signal);
    }
    return code;
}
