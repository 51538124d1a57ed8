/* Contention: threads that read memory as fast as they can beside what is measured. */
#ifndef PS_PROFILE_STREAMS_H
#define PS_PROFILE_STREAMS_H

#include <stdint.h>

#include "core/status.h"
#include "machine/topology.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_streams ps_streams;

/* Memory for streams: four times the last-level cache, of which 2% comes from it (cpu_rig.c), at least 256 MiB and at most an eighth of
 * what is free; written, so that its pages are its own. Nothing where *data is there already. The caller unmaps it. Errors: PS_E_NOMEM. */
ps_status ps_streams_data(const ps_machine *machine, uint8_t **data, uint64_t *bytes, ps_error *err);

/* Start one reading thread on each of machine->cpus[first .. first + n), over `data` (borrowed, far larger than the
 * caches). Errors: PS_E_OS, PS_E_NOMEM. */
ps_status ps_streams_start(const ps_machine *machine, uint32_t first, uint32_t n, const uint8_t *data,
                           uint64_t bytes, ps_streams **out, ps_error *err);
/* Bytes read by all of them so far. */
uint64_t ps_streams_bytes(const ps_streams *s);
void ps_streams_stop(ps_streams *s);

/* Sum of the first 8-byte word of each 64-byte line of a stretch: brings all of it from memory and does little else. */
uint64_t ps_stream_read(const uint8_t *data, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
