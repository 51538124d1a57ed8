/* The link of one PCI device. */
#include "machine/device_link.h"

#include <stdio.h>

#include "machine/signs.h"

void ps_device_link_sysfs(const char *root, const char *bus_id, ps_device_link *out) {
    ps_pci_gpu g;
    ps_pci_read(root, bus_id, &g);
    *out = (ps_device_link){g.gen, g.width, g.max_gen, g.max_width};
}

const char *ps_device_link_text(const ps_device_link *l, char *buf, uint64_t size) {
    const bool slow = l->gen != 0 && l->gen < l->max_gen, narrow = l->width != 0 && l->width < l->max_width;
    buf[0] = 0;
    if (slow || narrow)
        snprintf(buf, size, "its link runs at PCIe %u x%u, it can do %u x%u", l->gen, l->width, l->max_gen,
                 l->max_width);
    return buf;
}
