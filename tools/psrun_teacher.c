/* psrun --teacher-force: evaluate given tokens in windows that start from an empty context, and write the logits of
 * every position: float32 rows of n_vocab, in order, native byte order. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
            return ps_file_write_error(psrun_option(r, "logits-out")->text, errno, err);
    }
    return PS_OK;
}

/* Of its own descriptor, so that it can be closed before the file gets its name. */
static ps_status open_stream(const ps_file_new *file, const char *path, FILE **out, ps_error *err) {
    const int fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    *out = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (*out != NULL)
        return PS_OK;
    const int e = errno;
    if (fd >= 0)
        close(fd);
    return ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
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
    ps_file_new file = {.fd = -1};
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
    else if ((status = ps_file_new_open(out_path, &file, err)) != PS_OK ||
             (status = open_stream(&file, out_path, &out, err)) != PS_OK)
        goto done;
    ps_sampler_params greedy = {.top_p = 1};
    status = ps_session_new(r->engine, &greedy, &session, err);
    if (status == PS_OK)
        status = run_windows(r, session, (const int32_t *)(const void *)data, size / sizeof(int32_t), window,
                             logits, out, err);
done:
    if (out != NULL && out != stdout && fclose(out) != 0 && status == PS_OK)
        status = ps_file_write_error(out_path, errno, err);
    if (file.fd >= 0 && status == PS_OK)
        status = ps_file_new_commit(&file, out_path, err);
    ps_file_new_drop(&file);
    ps_session_free(session);
    free(logits);
    return status;
}
