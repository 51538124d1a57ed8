/* Record of a live machine: hwloc's export, and the files that limits come from. */
#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "machine/limits.h"
#include "machine/topology.h"

enum { PATH_BYTES = 4096 };

static ps_status make_folder(const char *path, bool may_exist, ps_error *err) {
    if (mkdir(path, 0777) == 0 || (may_exist && errno == EEXIST))
        return PS_OK;
    return ps_error_errno(err, PS_E_CANTCREATE, path, errno, "cannot create this folder");
}

static ps_status record_file(void *ctx, const char *path, const char *text, ps_error *err) {
    const char *dir = ctx;
    char full[PATH_BYTES];
    const int n = snprintf(full, sizeof full, "%s%s", dir, path);
    if (n < 0 || (size_t)n >= sizeof full)
        return ps_error_set(err, PS_E_CANTCREATE, dir, "path is too long");
    for (char *p = strchr(full + strlen(dir) + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        const ps_status st = make_folder(full, true, err);
        *p = '/';
        if (st != PS_OK)
            return st;
    }
    return ps_file_write_atomic(full, text, strlen(text), err);
}

ps_status ps_machine_record(const ps_machine *machine, const char *dir, ps_error *err) {
    char path[PATH_BYTES];
    ps_status st = make_folder(dir, false, err);
    if (st != PS_OK)
        return st;
    const int n = snprintf(path, sizeof path, "%s/hwloc.xml", dir);
    if (n < 0 || (size_t)n >= sizeof path)
        return ps_error_set(err, PS_E_CANTCREATE, dir, "path is too long");
    if (hwloc_topology_export_xml(machine->hwloc, path, 0) != 0)
        return ps_error_errno(err, PS_E_IO, path, errno, "cannot write the topology");
    return ps_limits_each_file("", record_file, (void *)dir, err);
}
