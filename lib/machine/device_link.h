/* The PCIe link of a device as sysfs shows it, for where NVML does not. */
#ifndef PS_MACHINE_DEVICE_LINK_H
#define PS_MACHINE_DEVICE_LINK_H

#include "machine/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* root: "" for the machine itself, a folder that holds sys/ for a recorded one. bus_id: domain:bus:device.function, as in
 * 0000:65:00.0. 0 where unknown. Any thread. */
void ps_device_link_sysfs(const char *root, const char *bus_id, ps_device_link *out);

/* What to say of a link that was read under load: that it is below what it can do (requirement R1), "" if it is not or that is not
 * known. Returns buf. */
const char *ps_device_link_text(const ps_device_link *link, char *buf, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif
