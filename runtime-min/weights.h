/* The model's weights in host memory: one copy, in file layout, that CPU kernels read and that the GPU copies from or
 * reads direct (docs/requirements: what happens where page-locking is refused or memory is short). */
#ifndef PS_RUNTIME_WEIGHTS_H
#define PS_RUNTIME_WEIGHTS_H

#include "machine/device.h"
#include "machine/topology.h"
#include "model/model.h"

/* How weights are held. X(NAME, "name", GPU reads direct?) */
#define PS_HOLD_LIST(X)                                                                                      \
    X(MAPPED, "mapped file", 0)               /* no GPU takes part */                                        \
    X(SLABS, "page-locked slabs", 1)          /* read from the file with direct I/O where it can */          \
    X(REGISTERED, "registered mapping", 1)    /* the file's own pages (tmpfs), page-locked */                \
    X(STAGED, "mapped file, staging ring", 0) /* page-locking limited: copies go through a bounded ring */   \
    X(DISK, "read in plan order, staging ring", 0) /* memory short as well */
typedef enum ps_hold {
#define PS_HOLD_ENUM(name, text, direct) PS_HOLD_##name,
    PS_HOLD_LIST(PS_HOLD_ENUM)
#undef PS_HOLD_ENUM
        PS_HOLD_COUNT
} ps_hold;

typedef struct ps_weights ps_weights;

typedef struct ps_weights_options {
    ps_device *device;           /* NULL: no GPU */
    const ps_machine *machine;   /* limits: memlock, free memory */
    bool needs_direct;           /* a program reads weights direct: STAGED and DISK will not do */
    uint64_t lock_limit_bytes;   /* page-lock at most this much; 0: what the machine allows */
    uint64_t memory_limit_bytes; /* host memory for weights; 0: what is free */
    const char *force;           /* name of a hold, for tests; NULL: the best that works */
} ps_weights_options;

/* Load. gguf, model, device: borrowed, must outlive it. Errors: PS_E_NOMEM, PS_E_IO, PS_E_UNAVAILABLE (direct reads
 * wanted where page-locking does not reach: says how much would be needed), PS_E_OS. */
ps_status ps_weights_open(const ps_model *model, const ps_weights_options *options, ps_weights **out,
                          ps_error *err);
void ps_weights_close(ps_weights *weights); /* NULL is allowed */
ps_hold ps_weights_hold(const ps_weights *weights);
/* One line for people and traces: which hold and why, e.g. "page-locked slabs (17.3 GB, read at 5.1 GB/s)". */
const char *ps_weights_why(const ps_weights *weights);
/* First byte of a weight in host memory. */
const uint8_t *ps_weights_host(const ps_weights *weights, const ps_weight *weight);
/* Its address on the device; NULL where the device cannot read it (MAPPED, STAGED, DISK). */
const uint8_t *ps_weights_device(const ps_weights *weights, const ps_weight *weight);
/* Enqueue a copy of a range (schemas: ps_weight_range) to dst in VRAM on stream h2d, rows packed. Where weights are staged
 * the calling thread fills the ring and waits for room in it. May be captured into a graph only where
 * ps_weights_device is not NULL. Thread of the device. */
ps_status ps_weights_copy(ps_weights *weights, const ps_weight *weight, uint64_t row0, uint64_t n_rows,
                          uint64_t col0, uint64_t n_cols, uint8_t *dst, ps_error *err);

#endif
