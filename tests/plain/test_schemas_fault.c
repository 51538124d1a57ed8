/* Readers, writers and the checker of all three documents when memory runs out or the system refuses: an error
 * that says so, nothing left behind, no half-written file. libyaml's own allocations are not reached (it is a shared
 * library). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../plan_builder.h"
#include "../profile_builder.h"
#include "../trace_builder.h"
#include "core/file.h"
#include "fault.h"
#include "tests/unit/schemas/plan_case.h"

static unsigned n_wrong;

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "FAIL: %s\n", what);
        n_wrong++;
    }
}

/* What every body says about the status of its one call. */
static const char *judge(ps_status status, const ps_error *err, bool injected, bool result) {
    if (status == PS_OK)
        return injected && ps_fault_hit() ? "succeeded although a call had failed"
               : !result                  ? "no result"
                                          : NULL;
    if (!injected)
        return "failed by itself";
    if (result)
        return "a result on failure";
    if (status != PS_E_NOMEM && status != PS_E_NOINPUT && status != PS_E_IO && status != PS_E_OS &&
        status != PS_E_CANTCREATE && status != PS_E_PERM)
        return ps_status_name(status);
    return err->status == status && err->message[0] != '\0' ? NULL : "no message";
}

typedef struct document {
    char *text;
    uint64_t size;
    char path[64];
    ps_profile *profile;
    ps_trace *trace;
    plan_case plan;
} document;

static const char *profile_parse(void *ctx, bool injected) {
    const document *d = ctx;
    ps_profile *p = NULL;
    ps_error err = {0};
    ps_status status = ps_profile_parse(d->text, d->size, "p", &p, &err);
    const char *wrong = judge(status, &err, injected, p != NULL);
    ps_profile_free(p);
    return wrong;
}

static const char *profile_format(void *ctx, bool injected) {
    const document *d = ctx;
    char *text = NULL;
    uint64_t size;
    ps_error err = {0};
    ps_status status = ps_profile_format(d->profile, &text, &size, &err);
    const char *wrong = judge(status, &err, injected, text != NULL);
    free(text);
    return wrong;
}

/* The file is either the old one or the new one, never less; nothing else is left in its folder. */
static const char *profile_file(void *ctx, bool injected) {
    const document *d = ctx;
    ps_error err = {0};
    ps_status status = ps_profile_write(d->profile, d->path, &err);
    /* Syncing the folder is a courtesy: a file that is whole may be there although that failed. */
    const char *wrong = status == PS_OK ? NULL : judge(status, &err, injected, false);
    if (status == PS_OK) {
        ps_profile *p = NULL;
        status = ps_profile_read(d->path, &p, &err);
        wrong = status == PS_OK && p != NULL ? NULL : judge(status, &err, injected, p != NULL);
        ps_profile_free(p);
    }
    return wrong;
}

static const char *trace_parse(void *ctx, bool injected) {
    const document *d = ctx;
    ps_trace *t = NULL;
    ps_error err = {0};
    ps_status status = ps_trace_parse(d->text, d->size, "t", &t, &err);
    const char *wrong = judge(status, &err, injected, t != NULL);
    ps_trace_free(t);
    return wrong;
}

static const char *trace_file(void *ctx, bool injected) {
    const document *d = ctx;
    ps_error err = {0};
    ps_status status = ps_trace_write(d->trace, d->path, &err);
    /* Syncing the folder is a courtesy: a file that is whole may be there although that failed. */
    const char *wrong = status == PS_OK ? NULL : judge(status, &err, injected, false);
    if (status == PS_OK) {
        ps_trace *t = NULL;
        status = ps_trace_read(d->path, &t, &err);
        wrong = status == PS_OK && t != NULL ? NULL : judge(status, &err, injected, t != NULL);
        ps_trace_free(t);
    }
    return wrong;
}

static const char *plan_parse(void *ctx, bool injected) {
    const document *d = ctx;
    ps_plan *p = NULL;
    ps_error err = {0};
    ps_status status = ps_plan_parse(d->text, d->size, "p", &p, &err);
    const char *wrong = judge(status, &err, injected, p != NULL);
    ps_plan_free(p);
    return wrong;
}

static const char *plan_read(void *ctx, bool injected) {
    const document *d = ctx;
    ps_plan *p = NULL;
    ps_error err = {0};
    ps_status status = ps_plan_read(d->path, &p, &err);
    const char *wrong = judge(status, &err, injected, p != NULL);
    ps_plan_free(p);
    return wrong;
}

static const char *plan_yaml(void *ctx, bool injected) {
    const document *d = ctx;
    char *text = NULL;
    uint64_t size;
    ps_error err = {0};
    ps_status status = ps_plan_to_yaml(d->plan.plan, &text, &size, &err);
    const char *wrong = judge(status, &err, injected, text != NULL);
    free(text);
    return wrong;
}

static const char *plan_binary(void *ctx, bool injected) {
    const document *d = ctx;
    uint8_t *data = NULL;
    uint64_t size;
    ps_error err = {0};
    ps_status status = ps_plan_to_binary(d->plan.plan, &data, &size, &err);
    const char *wrong = judge(status, &err, injected, data != NULL);
    free(data);
    return wrong;
}

static const char *plan_check(void *ctx, bool injected) {
    const document *d = ctx;
    ps_error err = {0};
    ps_status status = ps_plan_check(d->plan.plan, &d->plan.plan->levels[0], d->plan.model, &err);
    return judge(status, &err, injected, status == PS_OK);
}

static void sweep(const char *name, ps_fault_body body, document *d, uint64_t least_calls) {
    uint64_t n;
    n_wrong += ps_fault_sweep(name, body, d, &n);
    fprintf(stderr, "%s: %llu calls\n", name, (unsigned long long)n);
    check(n >= least_calls, "the calls are seen");
}

int main(void) {
    char dir[] = "/tmp/ps-schemas-XXXXXX";
    document d = {0};
    ps_error err;
    check(mkdtemp(dir) != NULL, "temporary folder");
    snprintf(d.path, sizeof d.path, "%s/document", dir);

    d.profile = pf_profile(20);
    check(ps_profile_format(d.profile, &d.text, &d.size, &err) == PS_OK, "text of a profile");
    sweep("profile_parse", profile_parse, &d, 6);
    sweep("profile_format", profile_format, &d, 4);
    sweep("profile_file", profile_file, &d, 12);
    free(d.text);
    ps_profile_free(d.profile);

    d.trace = tr_trace(50);
    check(ps_trace_to_json(d.trace, &d.text, &d.size, &err) == PS_OK, "text of a trace");
    sweep("trace_parse", trace_parse, &d, 4);
    sweep("trace_file", trace_file, &d, 10);
    free(d.text);
    ps_trace_free(d.trace);

    plan_case_open_with(&d.plan, &mb_llama_small, plan_case_levels, 3);
    check(ps_plan_to_yaml(d.plan.plan, &d.text, &d.size, &err) == PS_OK, "text of a plan");
    sweep("plan_parse yaml", plan_parse, &d, 8);
    sweep("plan_to_yaml", plan_yaml, &d, 6);
    check(ps_file_write_atomic(d.path, d.text, d.size, &err) == PS_OK, "file of a plan");
    sweep("plan_read", plan_read, &d, 8);
    free(d.text);
    check(ps_plan_to_binary(d.plan.plan, (uint8_t **)&d.text, &d.size, &err) == PS_OK, "binary plan");
    sweep("plan_parse binary", plan_parse, &d, 3);
    sweep("plan_to_binary", plan_binary, &d, 1);
    sweep("plan_check", plan_check, &d, 5);
    free(d.text);
    plan_case_close(&d.plan);

    unlink(d.path);
    check(rmdir(dir) == 0, "nothing else was left in the folder");
    if (n_wrong != 0)
        fprintf(stderr, "%u complaints\n", n_wrong);
    return n_wrong == 0 ? 0 : 1;
}
