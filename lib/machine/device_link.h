/* The PCIe link of a device as sysfs shows it, for where NVML does not. */
#ifndef PS_MACHINE_DEVICE_LINK_H
#define PS_MACHINE_DEVICE_LINK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* root: "" for the machine itself, a folder that holds sys/ for a recorded one. bus_id: domain:bus:device.function, as in
 * 0000:65:00.0. Generation and lanes as they are now; 0 where unknown. Any thread. */
void ps_device_link_sysfs(const char *root, const char *bus_id, uint32_t *out_gen, uint32_t *out_width);

#ifdef __cplusplus
}
#endif
#endif
