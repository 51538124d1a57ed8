/* current_link_speed ("16.0 GT/s PCIe") and current_link_width ("16") of a PCI device. */
#include "machine/device_link.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* The leading whole number of a file; 0 where there is none. */
static unsigned long read_number(const char *root, const char *bus_id, const char *name) {
    char path[512], text[64];
    const int n = snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/%s", root, bus_id, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    const bool ok = fgets(text, sizeof text, f) != NULL && isdigit((unsigned char)text[0]);
    fclose(f);
    return ok ? strtoul(text, NULL, 10) : 0;
}

void ps_device_link_sysfs(const char *root, const char *bus_id, uint32_t *out_gen, uint32_t *out_width) {
    static const unsigned long gt_per_s[] = {2, 5, 8, 16, 32, 64}; /* of generations 1 (2.5), 2, ... */
    const unsigned long speed = read_number(root, bus_id, "current_link_speed");
    const unsigned long width = read_number(root, bus_id, "current_link_width");
    *out_gen = 0;
    for (uint32_t g = 0; g < sizeof gt_per_s / sizeof *gt_per_s; g++)
        if (speed == gt_per_s[g])
            *out_gen = g + 1;
    /* A link that is down has width 0 or 63. */
    *out_width = width <= 32 ? (uint32_t)width : 0;
}
