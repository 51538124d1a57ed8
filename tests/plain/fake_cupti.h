/* What the fake CUPTI does; see fake_cupti.c. */
#ifndef PS_TESTS_FAKE_CUPTI_H
#define PS_TESTS_FAKE_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fake_cupti_state {
    uint32_t version;
    /* Codes that calls give. */
    int version_code, callbacks_code, enable_code, disable_code, flush_code, timestamp_code;
    uint32_t enable_fails_for; /* this kind alone; 0: all kinds */
    bool on[64];               /* kinds that are enabled */
    int n_toggles;
    /* Faults of delivery. */
    size_t n_dropped;     /* that the next question for it hears of */
    bool hold, by_thread; /* deliver nothing at a plain flush; deliver from a thread of its own */
    bool senseless, broken,
        endless;         /* times from another age; a record beyond the buffer; a list without end */
    uint32_t lose_every; /* this many records go missing one; 0: none */
    size_t drops;        /* with the next delivery */
    size_t n_refused_buffers;
} fake_cupti_state;

/* Of the library, found by dlsym: put a record with these times into the next delivery, if its kind is on. */
typedef void fake_cupti_put_call(uint32_t kind, uint64_t start_ns, uint64_t end_ns);

#endif
