/* Identity of a machine as far as measured speeds depend on it. */
#include <stdio.h>
#include <string.h>

#include "machine/topology.h"

void ps_machine_hash(const ps_machine *m, uint8_t out[PS_HASH_BYTES]) {
    char text[384];
    memset(text, 0, sizeof text);
    int n = snprintf(text, sizeof text, "%s|%u|%u|%u|%u|%u|%u|%llu|%llu|%u", m->cpu_model, m->n_packages,
                     m->n_cores, m->n_threads, m->n_numa, m->n_p_cores, m->n_e_cores,
                     (unsigned long long)m->l2_bytes, (unsigned long long)m->l3_bytes, m->n_allowed);
    ps_hash_bytes(text, n > 0 ? (uint64_t)n : 0, out);
}
