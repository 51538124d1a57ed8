/* CUPTI, the tracer of NVIDIA's toolkit, opened at run time: when each kernel and copy began and ended, by the GPU's own clock.
 * What cannot be trusted is an error here, never a guess: records that were lost, that make no sense, or whose form is not known.
 *
 * CUPTI belongs to the process and calls back without a word of whose records it brings, so there is one ps_cupti at a time. Calls
 * come from one thread; CUPTI's own threads are reckoned with. Once opened the library stays loaded: its threads outlive us. */
#ifndef PS_PROFILE_CUPTI_H
#define PS_PROFILE_CUPTI_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ps_cupti ps_cupti;

/* What was recorded between ps_cupti_begin and ps_cupti_end. */
typedef struct ps_cupti_sum {
    uint32_t n_kernels, n_copies; /* copies: memsets too */
    double busy_s;                /* in which at least one of them ran */
    double span_s;                /* from the first one's start to the last one's end */
} ps_cupti_sum;

enum { PS_CUPTI_RECORDS = 8192 }; /* most between begin and end */

/* Where the library is. library: this file and no other; NULL: libcupti.so.13, .12, or without a number, where the loader looks,
 * then in `home` (NULL: none; a toolkit's folder), then beside the CUDA libraries that this process has loaded.
 * Loads it and asks for its version; nothing is recorded yet. Errors: PS_E_UNAVAILABLE (not found, calls missing, a version
 * whose records are not known), PS_E_USAGE (one is open), PS_E_NOMEM. */
ps_status ps_cupti_open(const char *library, const char *home, ps_cupti **out, ps_error *err);
/* Ends recording. NULL is allowed. */
void ps_cupti_close(ps_cupti *cupti);
/* File that was opened, and CUPTI's number of its version. */
const char *ps_cupti_library(const ps_cupti *cupti);
uint32_t ps_cupti_version(const ps_cupti *cupti);

/* Record kernels and copies from now on, or no more; what is so already stays so. While it is on, launches cost more and graphs
 * have wider gaps. Graphs are to be made after it is on. Errors: PS_E_PERM (counters are for administrators), PS_E_UNAVAILABLE
 * (this device or driver does not do it), PS_E_OS; with CUPTI's code. */
ps_status ps_cupti_on(ps_cupti *cupti, ps_error *err);
ps_status ps_cupti_off(ps_cupti *cupti, ps_error *err);

/* Around work: before the first is enqueued, and after the device was waited for, with nothing else running on it.
 * multiple: the number of kernels must be one or more times this, or records are missing; 0: any.
 * Errors: PS_E_USAGE (not on), PS_E_DATA (records lost, too many, senseless or missing; the next begin is as if it had not
 * happened), PS_E_OS. */
ps_status ps_cupti_begin(ps_cupti *cupti, ps_error *err);
ps_status ps_cupti_end(ps_cupti *cupti, uint32_t multiple, ps_cupti_sum *out, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
