/* What else of a machine decides how a GPU can be used: its PCIe links and their place, the display driver, and signs that Windows is
 * underneath (WSL: page-locking is bounded, the GPU belongs to WDDM). Read from /proc, /dev and sysfs, never by asking a driver. */
#ifndef PS_MACHINE_SIGNS_H
#define PS_MACHINE_SIGNS_H

#include <stdbool.h>
#include <stdint.h>

#include "machine/limits.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PS_SIGNS_GPUS = 16 };

/* A display or processing accelerator on the PCI bus. */
typedef struct ps_pci_gpu {
    char id[16]; /* domain:bus:device.function */
    uint32_t vendor;
    uint32_t gen, width;         /* of the link now, 0 unknown; idle links often rest at a lower generation */
    uint32_t max_gen, max_width; /* that both ends can do, as far as the device knows */
    int32_t numa;                /* the node it is nearest to, -1 unknown or none */
} ps_pci_gpu;

typedef struct ps_signs {
    bool wsl;        /* the kernel says that it is Microsoft's */
    bool wddm;       /* /dev/dxg: the GPU is reached through Windows' display driver */
    char driver[32]; /* NVIDIA's kernel module, "" if it is not loaded */
    uint32_t n_gpus; /* ascending id; more than PS_SIGNS_GPUS are not looked at */
    ps_pci_gpu gpus[PS_SIGNS_GPUS];
} ps_signs;

/* root as for ps_limits_read. What cannot be read is unknown, not an error. */
void ps_signs_read(const char *root, ps_signs *out);
/* Every file that it looks at, for a record; of the kernel's release only the word that is looked for. */
ps_status ps_signs_each_file(const char *root, ps_limits_visit visit, void *ctx, ps_error *err);

/* One device of the bus, whatever its class; all unknown where it is not there. */
void ps_pci_read(const char *root, const char *id, ps_pci_gpu *out);

/* Generation of a PCIe link by the number its speed begins with ("16.0 GT/s PCIe": 16); 0 unknown. */
uint32_t ps_pci_gen(unsigned long gt_per_s);

/* One line for people and for a profile's note, "" if there is nothing to say: WSL, WDDM. Returns buf. */
const char *ps_signs_text(const ps_signs *signs, char *buf, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif
