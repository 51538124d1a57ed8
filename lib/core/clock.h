/* Monotonic time. */
#ifndef PS_CORE_CLOCK_H
#define PS_CORE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds since an arbitrary point, never going back. Any thread. */
uint64_t ps_clock_ns(void);

#ifdef __cplusplus
}
#endif
#endif
