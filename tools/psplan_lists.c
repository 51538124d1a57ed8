/* What psplan and psplan whatif are asked for alike: lists of budgets, a workload, a family. */
#include <string.h>

#include "psplan.h"

ps_status psplan_split_list(const char *option, const char *text,
                            char out[PSPLAN_MAX_LIST][PSPLAN_ITEM_BYTES], uint32_t *out_n, ps_error *err) {
    *out_n = 0;
    for (const char *p = text;; p++) {
        size_t len = strcspn(p, ",");
        if (len == 0 || len >= PSPLAN_ITEM_BYTES)
            return ps_error_set(err, PS_E_USAGE, option, "'%s' is not a list", text);
        if (*out_n == PSPLAN_MAX_LIST)
            return ps_error_set(err, PS_E_USAGE, option, "more than %d entries", PSPLAN_MAX_LIST);
        memcpy(out[*out_n], p, len);
        out[(*out_n)++][len] = '\0';
        p += len;
        if (*p == '\0')
            return PS_OK;
    }
}

ps_status psplan_parse_family(const char *text, ps_family *out, ps_error *err) {
    *out = ps_family_by_name(text);
    return *out != PS_FAMILY_COUNT
               ? PS_OK
               : ps_error_set(err, PS_E_USAGE, "--force",
                              "'%s' is none of gpu, direct, static, dynamic, split", text);
}

ps_status psplan_parse_workload(const ps_opt_value *workload, const ps_opt_value *parallel,
                                psplan_workload *out, ps_error *err) {
    enum { MOST_TOKENS = 1 << 24, MOST_SEQS = 4096 };
    const struct {
        const char *name;
        uint32_t *to;
        uint64_t most;
    } keys[] = {{"prompt", &out->prompt, MOST_TOKENS},
                {"output", &out->output, MOST_TOKENS},
                {"parallel", &out->parallel, MOST_SEQS}};
    enum { N_KEYS = sizeof keys / sizeof keys[0] };
    char items[PSPLAN_MAX_LIST][PSPLAN_ITEM_BYTES];
    uint32_t n = 0;
    *out = (psplan_workload){0};
    ps_status status =
        workload->set ? psplan_split_list("--workload", workload->text, items, &n, err) : PS_OK;
    for (uint32_t i = 0; i < n && !status; i++) {
        char *value = strchr(items[i], '=');
        uint64_t v = 0;
        size_t k = N_KEYS;
        if (value) {
            *value = '\0';
            for (k = 0; k < N_KEYS && strcmp(items[i], keys[k].name) != 0; k++)
                ;
            *value = '=';
        }
        if (k == N_KEYS || !ps_parse_size(value + 1, &v) || v == 0 || v > keys[k].most)
            status = ps_error_set(err, PS_E_USAGE, "--workload",
                                  "'%s' is none of prompt=N, output=N, parallel=N", items[i]);
        else if (*keys[k].to != 0)
            status = ps_error_set(err, PS_E_USAGE, "--workload", "'%s': %s is given twice", items[i],
                                  keys[k].name);
        else
            *keys[k].to = (uint32_t)v;
    }
    if (!status && out->parallel && parallel->set && out->parallel != parallel->u64)
        status = ps_error_set(err, PS_E_USAGE, "--workload", "parallel=%u is not what --parallel says",
                              out->parallel);
    if (!out->parallel)
        out->parallel = (uint32_t)parallel->u64;
    return status;
}

/* Budgets are told apart by their bytes. The first spelling that somebody gave one is its name; those of ranges have none that
 * anybody gave. */
static ps_status add_budget(psplan_budgets *b, const char *name, uint64_t bytes, bool spelled,
                            ps_error *err) {
    for (uint32_t i = 0; i < b->n; i++)
        if (b->bytes[i] == bytes) {
            if (spelled && !b->spelled[i])
                snprintf(b->name[i], sizeof b->name[i], "%s", name);
            b->spelled[i] = b->spelled[i] || spelled;
            return PS_OK;
        }
    if (b->n == PSPLAN_MAX_LIST)
        return ps_error_set(err, PS_E_USAGE, "--budget", "more than %d budgets", PSPLAN_MAX_LIST);
    b->bytes[b->n] = bytes;
    b->spelled[b->n] = spelled;
    snprintf(b->name[b->n++], sizeof b->name[0], "%s", name);
    return PS_OK;
}

/* A budget without a name of its own. */
static ps_status add_bytes(psplan_budgets *b, uint64_t bytes, ps_error *err) {
    char name[24];
    if (bytes % (1 << 30) == 0)
        snprintf(name, sizeof name, "%lluGiB", (unsigned long long)(bytes >> 30));
    else if (bytes % (1 << 20) == 0)
        snprintf(name, sizeof name, "%lluMiB", (unsigned long long)(bytes >> 20));
    else
        snprintf(name, sizeof name, "%llu", (unsigned long long)bytes);
    return add_budget(b, name, bytes, false, err);
}

/* "2GiB-8GiB/1GiB": from, to, by; without "by" doubled each time, and the end. */
static ps_status add_range(psplan_budgets *b, const char *item, ps_error *err) {
    char part[PSPLAN_ITEM_BYTES];
    uint64_t from = 0, to = 0, by = 0;
    snprintf(part, sizeof part, "%s", item);
    char *dash = strchr(part, '-'), *slash = strchr(part, '/');
    *dash = '\0';
    if (slash)
        *slash = '\0';
    if (slash < dash && slash)
        dash = slash; /* "1/2-3": not a size */
    if (!ps_parse_size(part, &from) || !ps_parse_size(dash + 1, &to) || from == 0 || to < from ||
        (slash && (!ps_parse_size(slash + 1, &by) || by == 0)))
        return ps_error_set(err, PS_E_USAGE, "--budget", "'%s' is no range: FROM-TO or FROM-TO/STEP", item);
    ps_status status = PS_OK;
    for (uint64_t at = from, step = by ? by : from; !status; at += step, step = by ? by : at) {
        status = add_bytes(b, at, err);
        if (step > to - at)
            break;
    }
    return status || by ? status : add_bytes(b, to, err);
}

ps_status psplan_parse_budgets(const char *text, psplan_budgets *b, ps_error *err) {
    char items[PSPLAN_MAX_LIST][PSPLAN_ITEM_BYTES];
    uint32_t n = 0;
    ps_status status = psplan_split_list("--budget", text, items, &n, err);
    for (uint32_t i = 0; i < n && !status; i++) {
        uint64_t bytes = 0;
        if (strcmp(items[i], "auto") == 0) {
            b->automatic = true;
        } else if (strcmp(items[i], "host") == 0) {
            status = add_budget(b, items[i], 0, true, err);
        } else if (strchr(items[i], '-')) {
            status = add_range(b, items[i], err);
        } else if (!ps_parse_size(items[i], &bytes)) {
            status = ps_error_set(err, PS_E_USAGE, "--budget",
                                  "'%s' is neither a size (as 4GiB), a range, auto nor host", items[i]);
        } else if (bytes == 0) {
            status =
                ps_error_set(err, PS_E_USAGE, "--budget", "0 is no budget; without a GPU it is called host");
        } else {
            status = strlen(items[i]) < sizeof b->name[0] ? add_budget(b, items[i], bytes, true, err)
                                                          : add_bytes(b, bytes, err);
        }
    }
    return status;
}

ps_status psplan_auto_budgets(const ps_plan_request *like, const ps_level_request *level, psplan_budgets *b,
                              ps_error *err) {
    uint64_t bytes[16];
    uint32_t n = 0;
    ps_level_request at = *level;
    ps_plan_request r = *like;
    snprintf(at.budget, sizeof at.budget, "auto");
    r.levels = &at;
    r.n_levels = 1;
    ps_status status = ps_plan_auto_budgets(&r, bytes, &n, err);
    for (uint32_t i = 0; i < n && !status; i++)
        status = add_bytes(b, bytes[i], err);
    return status;
}
