/* Header and file of a synthetic model. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "pssynth.h"

enum { ALIGNMENT = 32, STAGE_BYTES = 4 << 20 };

/* general.file_type of a model whose matrices are mostly of one type. */
static const struct {
    ps_dtype type;
    uint32_t file_type;
} file_types[] = {
    {PS_DTYPE_F32, 0},   {PS_DTYPE_F16, 1},   {PS_DTYPE_Q4_0, 2},  {PS_DTYPE_Q4_1, 3},
    {PS_DTYPE_Q8_0, 7},  {PS_DTYPE_Q5_0, 8},  {PS_DTYPE_Q5_1, 9},  {PS_DTYPE_Q4_K, 14},
    {PS_DTYPE_Q5_K, 16}, {PS_DTYPE_Q6_K, 18}, {PS_DTYPE_BF16, 32},
};

static void arch_u32(synth_keys *k, const synth_shape *s, const char *suffix, uint64_t v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", synth_arch_name(s->arch), suffix);
    synth_key_u32(k, key, (uint32_t)v);
}

static void arch_f32(synth_keys *k, const synth_shape *s, const char *suffix, float v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", synth_arch_name(s->arch), suffix);
    synth_key_f32(k, key, v);
}

static void put_model_keys(synth_keys *k, const synth_shape *s) {
    synth_key_str(k, "general.architecture", synth_arch_name(s->arch));
    synth_key_str(k, "general.name", s->preset);
    synth_key_u32(k, "general.quantization_version", 2);
    for (size_t i = 0; i < sizeof file_types / sizeof file_types[0]; i++)
        if (file_types[i].type == s->type)
            synth_key_u32(k, "general.file_type", file_types[i].file_type);
    arch_u32(k, s, "vocab_size", s->n_vocab);
    arch_u32(k, s, "context_length", s->n_ctx);
    arch_u32(k, s, "embedding_length", s->n_embd);
    arch_u32(k, s, "block_count", s->n_layers);
    arch_u32(k, s, "feed_forward_length", s->n_ff);
    arch_u32(k, s, "attention.head_count", s->n_head);
    arch_u32(k, s, "attention.head_count_kv", s->n_head_kv);
    arch_u32(k, s, "attention.key_length", s->head_dim);
    arch_u32(k, s, "attention.value_length", s->head_dim);
    arch_f32(k, s, "attention.layer_norm_rms_epsilon", s->rms_eps);
    arch_u32(k, s, "rope.dimension_count", s->head_dim);
    arch_f32(k, s, "rope.freq_base", s->rope_base);
    if (s->rope_linear != 0) {
        char key[96];
        snprintf(key, sizeof key, "%s.rope.scaling.type", synth_arch_name(s->arch));
        synth_key_str(k, key, "linear");
        arch_f32(k, s, "rope.scaling.factor", s->rope_linear);
    }
    if (s->window != 0)
        arch_u32(k, s, "attention.sliding_window", s->window);
    if (s->arch == SYNTH_QWEN3MOE) {
        arch_u32(k, s, "expert_count", s->n_expert);
        arch_u32(k, s, "expert_used_count", s->n_expert_used);
        arch_u32(k, s, "expert_feed_forward_length", s->n_ff_expert);
    }
}

static void put_tensor(ps_text *text, const synth_tensor *t) {
    synth_put_str(text, t->name);
    synth_put_u32(text, t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++)
        synth_put_u64(text, t->dims[d]);
    synth_put_u32(text, (uint32_t)t->type);
    synth_put_u64(text, t->offset);
}

/* The whole header, padded. *out from malloc. */
static ps_status make_header(const synth_shape *s, const synth_tensor *tensors, uint64_t n_tensors,
                             bool no_vocab, char **out, uint64_t *out_bytes, ps_error *err) {
    synth_keys keys = {ps_text_new(), 0};
    put_model_keys(&keys, s);
    ps_status status = synth_vocab(&keys, s->arch, s->n_vocab, no_vocab, err);
    uint64_t keys_bytes = 0;
    char *keys_data = ps_text_end(keys.text, &keys_bytes);
    if (status != PS_OK) {
        free(keys_data);
        return status;
    }
    ps_text *head = ps_text_new();
    ps_text_put(head, "GGUF", 4);
    synth_put_u32(head, 3);
    synth_put_u64(head, n_tensors);
    synth_put_u64(head, keys.n);
    if (keys_data != NULL)
        ps_text_put(head, keys_data, keys_bytes);
    uint64_t size = 24 + keys_bytes;
    for (uint64_t i = 0; i < n_tensors; i++) {
        put_tensor(head, &tensors[i]);
        size += 8 + strlen(tensors[i].name) + 4 + 8 * tensors[i].n_dims + 4 + 8;
    }
    static const char zeros[ALIGNMENT];
    ps_text_put(head, zeros, (ALIGNMENT - size % ALIGNMENT) % ALIGNMENT);
    *out = ps_text_end(head, out_bytes);
    bool ok = keys_data != NULL && *out != NULL;
    free(keys_data);
    if (ok)
        return PS_OK;
    free(*out);
    *out = NULL;
    return ps_error_set(err, PS_E_NOMEM, "", "no memory for the header");
}

static int write_all(int fd, const void *data, uint64_t bytes, const volatile sig_atomic_t *stop) {
    const char *p = data;
    while (bytes != 0) {
        if (stop != NULL && *stop != 0)
            return EINTR;
        ssize_t n = write(fd, p, (size_t)(bytes > (1u << 30) ? (1u << 30) : bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        p += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* All tensors from where the file stands; 0 or an errno. */
static int write_weights(int fd, const synth_tensor *tensors, uint64_t n_tensors, uint64_t data_bytes,
                         uint64_t seed, const volatile sig_atomic_t *stop) {
    static const char zeros[ALIGNMENT];
    uint8_t *stage = malloc(STAGE_BYTES);
    int e = stage == NULL ? ENOMEM : 0;
    for (uint64_t i = 0; i < n_tensors && e == 0; i++) {
        const synth_tensor *t = &tensors[i];
        synth_stream *s = synth_stream_new(t, seed, i);
        uint64_t block = ps_dtype_find((uint32_t)t->type)->block_bytes, whole = STAGE_BYTES / block * block;
        e = s == NULL ? ENOMEM : 0;
        for (uint64_t done = 0; done < t->bytes && e == 0;) {
            uint64_t n = t->bytes - done < whole ? t->bytes - done : whole;
            synth_stream_next(s, stage, n);
            e = write_all(fd, stage, n, stop);
            done += n;
        }
        synth_stream_free(s);
        uint64_t end = i + 1 < n_tensors ? tensors[i + 1].offset : data_bytes;
        if (e == 0)
            e = write_all(fd, zeros, end - t->offset - t->bytes, stop);
    }
    free(stage);
    return e;
}

ps_status synth_write(const char *path, const synth_shape *shape, uint64_t seed, bool sparse, bool no_vocab,
                      const volatile sig_atomic_t *stop, uint64_t *out_bytes, ps_error *err) {
    synth_tensor *tensors = NULL;
    uint64_t n_tensors, data_bytes, header_bytes = 0;
    char *header = NULL, *temp = NULL;
    int fd = -1, e = 0;
    ps_status status = ps_file_check_output(path, err);
    struct stat st;
    if (status == PS_OK && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        status = ps_error_set(err, PS_E_CANTCREATE, path, "cannot create: is a link");
    if (status == PS_OK)
        status = synth_tensors(shape, &tensors, &n_tensors, &data_bytes, err);
    if (status == PS_OK)
        status = make_header(shape, tensors, n_tensors, no_vocab, &header, &header_bytes, err);
    if (status != PS_OK)
        goto done;
    size_t len = strlen(path);
    temp = malloc(len + 8);
    if (temp == NULL) {
        status = ps_error_set(err, PS_E_NOMEM, path, "no memory");
        goto done;
    }
    memcpy(temp, path, len);
    memcpy(temp + len, ".XXXXXX", 8);
    fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        status = ps_error_errno(err, PS_E_CANTCREATE, path, errno, "cannot create");
        goto done;
    }
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(fd, 0666 & ~mask) != 0)
        e = errno;
    if (e == 0)
        e = write_all(fd, header, header_bytes, stop);
    if (e == 0 && sparse && ftruncate(fd, (off_t)(header_bytes + data_bytes)) != 0)
        e = errno;
    if (e == 0 && !sparse)
        e = write_weights(fd, tensors, n_tensors, data_bytes, seed, stop);
    if (close(fd) != 0 && e == 0)
        e = errno;
    if (e != 0) {
        status = ps_error_errno(err, PS_E_IO, path, e, "cannot write");
    } else if (rename(temp, path) != 0) {
        status = ps_error_errno(err, PS_E_CANTCREATE, path, errno, "cannot create");
    }
    if (status != PS_OK) {
        unlink(temp);
        goto done;
    }
    *out_bytes = header_bytes + data_bytes;
done:
    free(tensors);
    free(header);
    free(temp);
    return status;
}
