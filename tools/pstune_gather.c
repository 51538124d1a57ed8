/* pstune --gather: this machine as a folder that tests can open, to contribute it. */
#include "machine/topology.h"
#include "pstune_internal.h"

int ps_tune_gather(const char *folder) {
    ps_machine *machine;
    ps_error err = {0};
    int code = 0;
    if (ps_machine_open(NULL, &machine, &err) != PS_OK)
        return ps_tune_fail(&err);
    if (ps_machine_record(machine, folder, &err) != PS_OK)
        code = ps_tune_fail(&err);
    ps_machine_close(machine);
    return code;
}
