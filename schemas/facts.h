/* What a machine was like when its speeds were measured: by these a profile, or a plan made from it, is found to be of another
 * machine, or of this one before something changed. */
#ifndef PS_SCHEMAS_FACTS_H
#define PS_SCHEMAS_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "" , 0 and a hash of zeros: not known, or there is none. */
typedef struct ps_facts {
    char cpu_model[96];
    uint32_t n_allowed;    /* threads */
    uint64_t memory_bytes; /* as the process may use it */
    char gpu_name[96];
    uint8_t gpu_hash[PS_HASH_BYTES]; /* of its unique id: ps_facts_gpu_hash */
    char gpu_driver[32];
    uint64_t vram_bytes;
} ps_facts;

/* A plan is given to others: of a card's unique id it holds a hash. "" gives zeros. */
void ps_facts_gpu_hash(const char *uuid, uint8_t out[PS_HASH_BYTES]);

/* Write what differs, "driver 570.1 in <then_where>, 580.2 here; ...", into out ("" : nothing), cut where it is full; true if
 * something does. What one side does not know is not compared; amounts of memory within 5% are the same. */
bool ps_facts_differ(const ps_facts *then, const char *then_where, const ps_facts *now, char *out,
                     size_t size);

#ifdef __cplusplus
}
#endif
#endif
