/* What changed between two looks at a machine: see facts.h. */
#include "schemas/facts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct list {
    char *out;
    size_t size, n;
    const char *where;
} list;

__attribute__((format(printf, 2, 3))) static void add(list *l, const char *format, ...) {
    va_list args;
    if (l->n + 1 >= l->size)
        return;
    if (l->n > 0)
        l->n += (size_t)snprintf(l->out + l->n, l->size - l->n, "; ");
    if (l->n + 1 >= l->size)
        return;
    va_start(args, format);
    const int n = vsnprintf(l->out + l->n, l->size - l->n, format, args);
    va_end(args);
    l->n += n > 0 ? (size_t)n : 0;
}

static void text(list *l, const char *what, const char *then, const char *now) {
    if (then[0] && now[0] && strcmp(then, now) != 0)
        add(l, "%s %s in %s, %s here", what, then, l->where, now);
}

static void memory(list *l, const char *what, uint64_t then, uint64_t now) {
    const double times = then ? (double)now / (double)then : 1;
    if (now && (times < 0.95 || times > 1.05))
        add(l, "%.1f GiB of %s in %s, %.1f here", (double)then / (1 << 30), what, l->where,
            (double)now / (1 << 30));
}

void ps_facts_gpu_hash(const char *uuid, uint8_t out[PS_HASH_BYTES]) {
    memset(out, 0, PS_HASH_BYTES);
    if (uuid[0])
        ps_hash_bytes(uuid, strlen(uuid), out);
}

bool ps_facts_differ(const ps_facts *then, const char *where, const ps_facts *now, char *out, size_t size) {
    static const uint8_t unknown[PS_HASH_BYTES] = {0};
    list l = {out, size, 0, where};
    out[0] = '\0';
    text(&l, "CPU", then->cpu_model, now->cpu_model);
    if (then->n_allowed && now->n_allowed && then->n_allowed != now->n_allowed)
        add(&l, "%u thread%s in %s, %u here", then->n_allowed, then->n_allowed == 1 ? "" : "s", where,
            now->n_allowed);
    memory(&l, "memory", then->memory_bytes, now->memory_bytes);
    text(&l, "GPU", then->gpu_name, now->gpu_name);
    if (strcmp(then->gpu_name, now->gpu_name) == 0 && memcmp(then->gpu_hash, unknown, PS_HASH_BYTES) != 0 &&
        memcmp(now->gpu_hash, unknown, PS_HASH_BYTES) != 0 &&
        memcmp(then->gpu_hash, now->gpu_hash, PS_HASH_BYTES) != 0)
        add(&l, "another %s than in %s", now->gpu_name[0] ? now->gpu_name : "GPU", where);
    memory(&l, "VRAM", then->vram_bytes, now->vram_bytes);
    text(&l, "driver", then->gpu_driver, now->gpu_driver);
    return out[0] != '\0';
}
