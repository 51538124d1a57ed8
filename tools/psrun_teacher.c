/* psrun --teacher-force: evaluate given tokens in windows that start from an empty context, and write the logits of
 * every position: float32 rows of n_vocab, in order, native byte order. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "psrun_internal.h"

static ps_status run_windows(const psrun *r, ps_session *s, const int32_t *ids, uint64_t n_ids,
                             uint64_t window, float *logits, FILE *out, ps_error *err) {
    uint64_t n_vocab = ps_engine_get_info(r->engine)->n_vocab;
    uint64_t chunk = psrun_option(r, "chunk")->set ? psrun_option(r, "chunk")->u64 : window;
    for (uint64_t at = 0; at < n_ids; at += window) {
        uint64_t n = n_ids - at < window ? n_ids - at : window;
        ps_session_reset(s);
        for (uint64_t i = 0; i < n; i += chunk) {
            ps_eval_item item = {.session = s,
                                 .tokens = ids + at + i,
                                 .n_tokens = (uint32_t)(n - i < chunk ? n - i : chunk),
                                 .logits = logits + i * n_vocab,
                                 .all_logits = true};
            ps_status status = psrun_eval(r, &item, 1, err);
            if (status != PS_OK)
                return status;
        }
        if (fwrite(logits, sizeof *logits * n_vocab, n, out) != n)
            return ps_error_errno(err, PS_E_IO, psrun_option(r, "logits-out")->text, errno, "cannot write");
    }
    return PS_OK;
}

/* A new file beside what `path` leads to, with the mode that a file of that name has or would get.
 * *out_target, *out_temp: NULL before; names from malloc, also where it fails. */
static ps_status open_beside(const char *path, char **out_target, char **out_temp, FILE **out,
                             ps_error *err) {
    ps_status status = ps_file_check_output(path, err);
    if (status != PS_OK)
        return status;
    *out_target = realpath(path, NULL); /* a link stays one */
    if (*out_target == NULL && errno != ENOENT)
        return ps_error_errno(err, PS_E_CANTCREATE, path, errno, "cannot create");
    if (*out_target == NULL)
        *out_target = strdup(path);
    size_t len = *out_target == NULL ? 0 : strlen(*out_target);
    *out_temp = *out_target == NULL ? NULL : malloc(len + 8);
    if (*out_temp == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    memcpy(*out_temp, *out_target, len);
    memcpy(*out_temp + len, ".XXXXXX", 8);
    int fd = mkostemp(*out_temp, O_CLOEXEC);
    if (fd < 0) {
        int e = errno;
        free(*out_temp);
        *out_temp = NULL; /* nothing to remove */
        return ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
    }
    struct stat st;
    mode_t mode = umask(0);
    umask(mode);
    mode = stat(*out_target, &st) == 0 ? st.st_mode & 0777 : 0666 & ~mode;
    if (fchmod(fd, mode) == 0)
        *out = fdopen(fd, "wb");
    if (*out == NULL) {
        int e = errno;
        close(fd);
        return ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
    }
    return PS_OK;
}

ps_status psrun_teacher(const psrun *r, ps_error *err) {
    const char *in_path = psrun_option(r, "teacher-force")->text,
               *out_path = psrun_option(r, "logits-out")->text;
    const ps_engine_info *info = ps_engine_get_info(r->engine);
    uint64_t window = psrun_option(r, "window")->u64;
    if (!psrun_option(r, "window")->set && window > info->context)
        window = info->context;
    if (window > info->context)
        return ps_error_set(err, PS_E_USAGE, "--window", "%" PRIu64 " is more than the context of %" PRIu64,
                            window, info->context);
    const char *data = r->input;
    const uint64_t size = r->input_bytes;
    float *logits = NULL;
    FILE *out = NULL;
    char *target = NULL, *partial = NULL;
    ps_session *session = NULL;
    ps_status status = PS_OK;
    for (uint64_t i = 0; i < size / sizeof(int32_t); i++) {
        int32_t id;
        memcpy(&id, data + i * sizeof id, sizeof id);
        if (id < 0 || (uint32_t)id >= info->n_vocab) {
            status = ps_error_at(err, PS_E_DATA, in_path, i * sizeof id,
                                 "token %" PRId32 " is not one of the model's %" PRIu32, id, info->n_vocab);
            goto done;
        }
    }
    logits = malloc(window * info->n_vocab * sizeof *logits);
    if (logits == NULL) {
        status = ps_error_set(err, PS_E_NOMEM, "--window", "no memory for the logits of %" PRIu64 " tokens",
                              window);
        goto done;
    }
    /* Gigabytes that stream: they get their name only when all are there. */
    if (strcmp(out_path, "-") == 0)
        out = stdout;
    else if ((status = open_beside(out_path, &target, &partial, &out, err)) != PS_OK)
        goto done;
    ps_sampler_params greedy = {.top_p = 1};
    status = ps_session_new(r->engine, &greedy, &session, err);
    if (status == PS_OK)
        status = run_windows(r, session, (const int32_t *)(const void *)data, size / sizeof(int32_t), window,
                             logits, out, err);
done:
    if (out != NULL && out != stdout && fclose(out) != 0 && status == PS_OK)
        status = ps_error_errno(err, PS_E_IO, out_path, errno, "cannot write");
    if (partial != NULL && status == PS_OK && rename(partial, target) != 0)
        status = ps_error_errno(err, PS_E_CANTCREATE, out_path, errno, "cannot replace");
    if (partial != NULL && status != PS_OK)
        (void)unlink(partial);
    free(partial);
    free(target);
    ps_session_free(session);
    free(logits);
    return status;
}
