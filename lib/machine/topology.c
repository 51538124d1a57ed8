/* What the machine has (hwloc) and what of it this process may use (limits.c), best CPUs first. */
#include "machine/topology.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/limits.h"

static ps_status load_hwloc(const char *root, hwloc_topology_t *out, ps_error *err) {
    hwloc_topology_t topo = NULL;
    ps_status st = PS_OK;
    char path[4096];
    if (hwloc_topology_init(&topo) != 0)
        return ps_error_set(err, PS_E_NOMEM, "hwloc", "cannot create a topology");
    /* The whole machine; what is allowed is worked out from limits. */
    hwloc_topology_set_flags(topo, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (root) {
        const int n = snprintf(path, sizeof path, "%s/hwloc.xml", root);
        if (n < 0 || (size_t)n >= sizeof path)
            st = ps_error_set(err, PS_E_NOINPUT, root, "path is too long");
        else {
            FILE *f = fopen(path, "re"); /* hwloc does not tell a missing file from a bad one */
            if (!f)
                st = ps_error_set(err, PS_E_NOINPUT, path, "cannot open");
            else
                fclose(f);
        }
        if (st == PS_OK && hwloc_topology_set_xml(topo, path) != 0)
            st = ps_error_set(err, PS_E_DATA, path, "is not a topology that hwloc reads");
    }
    if (st == PS_OK && hwloc_topology_load(topo) != 0)
        st = root ? ps_error_set(err, PS_E_DATA, path, "is not a topology that hwloc reads")
                  : ps_error_set(err, PS_E_OS, "hwloc", "cannot read the machine's topology");
    if (st != PS_OK) {
        hwloc_topology_destroy(topo);
        return st;
    }
    *out = topo;
    return PS_OK;
}

/* Fill `efficient` with the PUs of efficiency cores. Frequency alone does not make a kind (favoured cores of
 * one design boost higher): a core type or a capacity does. */
static void find_efficient(hwloc_topology_t topo, hwloc_bitmap_t efficient) {
    const int n = hwloc_cpukinds_get_nr(topo, 0);
    int best = -1;
    for (int i = 0; i < n; i++) {
        int eff = -1;
        if (hwloc_cpukinds_get_info(topo, (unsigned)i, NULL, &eff, NULL, NULL, 0) == 0 && eff > best)
            best = eff;
    }
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (int i = 0; set && best > 0 && i < n; i++) {
        int eff = -1;
        unsigned n_infos = 0;
        struct hwloc_info_s *infos = NULL;
        if (hwloc_cpukinds_get_info(topo, (unsigned)i, set, &eff, &n_infos, &infos, 0) != 0 || eff < 0 ||
            eff == best)
            continue;
        for (unsigned k = 0; k < n_infos; k++)
            if (!strcmp(infos[k].name, "CoreType") ? !strcmp(infos[k].value, "IntelAtom")
                                                   : !strcmp(infos[k].name, "LinuxCapacity")) {
                hwloc_bitmap_or(efficient, efficient, set);
                break;
            }
    }
    hwloc_bitmap_free(set);
}

static uint32_t count_of(hwloc_topology_t topo, hwloc_obj_type_t type) {
    const int n = hwloc_get_nbobjs_by_type(topo, type);
    return n > 0 ? (uint32_t)n : 0;
}

static uint64_t cache_bytes(hwloc_topology_t topo, hwloc_obj_type_t type) {
    const hwloc_obj_t o = hwloc_get_obj_by_type(topo, type, 0);
    return o ? o->attr->cache.size : 0;
}

static uint32_t numa_of(hwloc_topology_t topo, unsigned os_index) {
    const uint32_t n = count_of(topo, HWLOC_OBJ_NUMANODE);
    for (uint32_t i = 0; i < n; i++) {
        const hwloc_obj_t o = hwloc_get_obj_by_type(topo, HWLOC_OBJ_NUMANODE, i);
        if (hwloc_bitmap_isset(o->cpuset, os_index))
            return i;
    }
    return 0;
}

/* Best first: first threads of cores before siblings, P before E, then as the machine numbers them. That
 * fills one package before the next, so few threads stay near one memory. */
static int by_preference(const void *a, const void *b) {
    const ps_cpu *x = a, *y = b;
    if (x->smt != y->smt)
        return x->smt < y->smt ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->package != y->package)
        return x->package < y->package ? -1 : 1;
    if (x->core != y->core)
        return x->core < y->core ? -1 : 1;
    return x->os_index < y->os_index ? -1 : x->os_index > y->os_index;
}

static ps_status fill_cpus(ps_machine *m, const ps_limits *limits, hwloc_const_bitmap_t efficient,
                           ps_error *err) {
    hwloc_topology_t topo = m->hwloc;
    m->cpus = calloc(m->n_threads ? m->n_threads : 1, sizeof *m->cpus);
    if (!m->cpus)
        return ps_error_set(err, PS_E_NOMEM, "", "no memory for %u CPUs", m->n_threads);
    hwloc_obj_t last_core = NULL;
    uint32_t smt = 0;
    /* Walk in logical order: threads of one core follow each other. */
    for (uint32_t i = 0; i < m->n_threads; i++) {
        const hwloc_obj_t pu = hwloc_get_obj_by_type(topo, HWLOC_OBJ_PU, i);
        const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topo, HWLOC_OBJ_CORE, pu);
        const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topo, HWLOC_OBJ_PACKAGE, pu);
        if (!ps_cpu_mask_has(&limits->allowed, pu->os_index))
            continue;
        smt = core && core == last_core ? smt + 1 : 0;
        last_core = core;
        m->cpus[m->n_cpus++] = (ps_cpu){
            .os_index = pu->os_index,
            .core = core ? core->logical_index : i,
            .package = package ? package->logical_index : 0,
            .numa = numa_of(topo, pu->os_index),
            .smt = smt,
            .kind = hwloc_bitmap_isset(efficient, pu->os_index) ? 1 : 0,
        };
    }
    if (m->n_cpus == 0)
        return ps_error_set(err, PS_E_DATA, "hwloc",
                            "none of the CPUs this process may use is in the topology");
    qsort(m->cpus, m->n_cpus, sizeof *m->cpus, by_preference);
    m->n_allowed = m->n_cpus;
    if (limits->cpu_quota > 0 && limits->cpu_quota < (double)m->n_cpus)
        m->n_allowed = limits->cpu_quota < 2 ? 1 : (uint32_t)limits->cpu_quota;
    return PS_OK;
}

ps_status ps_machine_open(const char *root, ps_machine **out, ps_error *err) {
    ps_status st = PS_OK;
    hwloc_bitmap_t efficient = NULL;
    ps_limits *limits = NULL;
    ps_machine *m = calloc(1, sizeof *m);
    *out = NULL;
    limits = malloc(sizeof *limits);
    efficient = hwloc_bitmap_alloc();
    if (!m || !limits || !efficient) {
        st = ps_error_set(err, PS_E_NOMEM, "", "no memory for the machine's description");
        goto done;
    }
    st = ps_limits_read(root ? root : "", limits, err);
    if (st != PS_OK)
        goto done;
    hwloc_topology_t topo = NULL;
    st = load_hwloc(root, &topo, err);
    if (st != PS_OK)
        goto done;
    m->hwloc = topo;
    find_efficient(topo, efficient);

    ps_signs_read(root ? root : "", &m->signs);
    m->n_packages = count_of(topo, HWLOC_OBJ_PACKAGE);
    m->n_threads = count_of(topo, HWLOC_OBJ_PU);
    m->n_cores = count_of(topo, HWLOC_OBJ_CORE);
    m->n_numa = count_of(topo, HWLOC_OBJ_NUMANODE);
    if (m->n_packages == 0)
        m->n_packages = 1;
    if (m->n_cores == 0) /* some virtual machines show threads only */
        m->n_cores = m->n_threads;
    for (uint32_t i = 0; i < count_of(topo, HWLOC_OBJ_CORE); i++)
        if (hwloc_bitmap_intersects(hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, i)->cpuset, efficient))
            m->n_e_cores++;
    m->n_p_cores = m->n_cores - m->n_e_cores;
    m->l2_bytes = cache_bytes(topo, HWLOC_OBJ_L2CACHE);
    m->l3_bytes = cache_bytes(topo, HWLOC_OBJ_L3CACHE);

    m->memory_bytes = limits->memory_bytes;
    m->memory_free_bytes = limits->memory_free_bytes;
    m->memlock_bytes = limits->memlock_bytes;
    m->cpu_quota = limits->cpu_quota;
    const hwloc_obj_t package = hwloc_get_obj_by_type(topo, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    if (!model || !*model)
        model = limits->cpu_model[0] ? limits->cpu_model : "unknown";
    snprintf(m->cpu_model, sizeof m->cpu_model, "%s", model);
    st = fill_cpus(m, limits, efficient, err);
done:
    hwloc_bitmap_free(efficient);
    free(limits);
    if (st == PS_OK)
        *out = m;
    else
        ps_machine_close(m);
    return st;
}

void ps_machine_close(ps_machine *machine) {
    if (!machine)
        return;
    if (machine->hwloc)
        hwloc_topology_destroy(machine->hwloc);
    free(machine->cpus);
    free(machine);
}

bool ps_machine_is_live(const ps_machine *machine) {
    return hwloc_topology_is_thissystem(machine->hwloc) != 0;
}
