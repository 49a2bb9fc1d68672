/*
 * Chooses the CPUs on which the ranks of ftccl-run run. The plan is made before the first rank
 * starts. It uses the cores that this process may use, in the order of the machine's topology, so
 * neighbouring ranks run on neighbouring cores. It uses hwloc if that is built in, because CPU
 * numbers alone do not tell which CPUs share a core or a memory.
 */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FT_HAVE_HWLOC
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#endif

struct core {
    cpu_set_t cpus; /* CPUs of the core that may be used */
    int node;       /* NUMA node, in the topology's numbering; -1: none */
};

struct machine {
    int ncores;
    struct core *core; /* cores of one node are adjacent */
    /* the topology is that of this machine, and not of a file that hwloc was given */
    bool here;
};

/* ---- the machine ----------------------------------------------------------------------------- */

static bool add_core(struct machine *m, const cpu_set_t *cpus, int node)
{
    if (CPU_COUNT(cpus) == 0)
        return true;
    struct core *grown = realloc(m->core, ((size_t)m->ncores + 1) * sizeof *grown);
    if (!grown)
        return false;
    m->core = grown;
    m->core[m->ncores++] = (struct core){*cpus, node};
    return true;
}

#ifdef FT_HAVE_HWLOC
/* Finds the NUMA node of a core. Memory without CPUs belongs to no core. If two nodes have the same
 * CPUs, the first one counts. */
static int node_of(hwloc_topology_t topology, hwloc_obj_t core)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
        if (hwloc_bitmap_intersects(node->cpuset, core->cpuset))
            return (int)node->logical_index;
    return -1;
}

static bool read_cores(struct machine *m, hwloc_topology_t topology, const cpu_set_t *allowed)
{
    int depth = hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE);
    m->here = hwloc_topology_is_thissystem(topology);
    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_depth(topology, depth, core));) {
        cpu_set_t cpus;
        if (hwloc_cpuset_to_glibc_sched_affinity(topology, core->cpuset, &cpus, sizeof cpus) != 0)
            return false;
        if (m->here)
            CPU_AND(&cpus, &cpus, allowed);
        if (!add_core(m, &cpus, node_of(topology, core)))
            return false;
    }
    return m->ncores > 0;
}

static bool find_cores(struct machine *m, const cpu_set_t *allowed)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return false;
    bool found = hwloc_topology_load(topology) == 0 && read_cores(m, topology, allowed);
    hwloc_topology_destroy(topology);
    return found;
}

#else
static bool find_cores(struct machine *m, const cpu_set_t *allowed)
{
    m->here = true;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        if (CPU_ISSET(cpu, allowed))
            CPU_SET(cpu, &one);
        if (!add_core(m, &one, -1))
            return false;
    }
    return m->ncores > 0;
}
#endif

/* ---- the plan -------------------------------------------------------------------------------- */

struct range {
    int from, to;
}; /* a range of cores */

/* The cores of the same node as this one. */
static struct range node_around(const struct machine *m, int core)
{
    struct range r = {core, core + 1};
    while (r.from > 0 && m->core[r.from - 1].node == m->core[core].node)
        r.from--;
    while (r.to < m->ncores && m->core[r.to].node == m->core[core].node)
        r.to++;
    return r;
}

static struct range node_at(const struct machine *m, int index)
{
    struct range r = node_around(m, 0);
    while (index-- > 0)
        r = node_around(m, r.to);
    return r;
}

static int count_nodes(const struct machine *m)
{
    int n = 1;
    for (int i = 1; i < m->ncores; i++)
        n += m->core[i].node != m->core[i - 1].node;
    return n;
}

static int round_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Gives a rank whole nodes if there are enough, otherwise cores of one node. */
static struct range share_of(const struct machine *m, int rank, int nranks)
{
    int nnodes = count_nodes(m);
    if (nranks <= nnodes)
        return (struct range){node_at(m, rank * nnodes / nranks).from,
                              node_at(m, (rank + 1) * nnodes / nranks - 1).to};
    struct range node = node_around(m, rank * m->ncores / nranks);
    /* ranks on this node */
    int first = round_up(node.from * nranks, m->ncores),
        end = round_up(node.to * nranks, m->ncores);
    int cores = node.to - node.from, ranks = end - first, i = rank - first;
    return (struct range){node.from + i * cores / ranks, node.from + (i + 1) * cores / ranks};
}

static struct range node_for(const struct machine *m, int rank, int nranks)
{
    int nnodes = count_nodes(m);
    return nranks <= nnodes ? node_at(m, rank * nnodes / nranks)
                            : node_around(m, rank * m->ncores / nranks);
}

static struct range place_of(const struct machine *m, enum run_bind how, int rank, int nranks)
{
    int core = nranks <= m->ncores ? rank : rank * m->ncores / nranks;
    if (how == RUN_BIND_CORE)
        return (struct range){core, core + 1};
    return how == RUN_BIND_NUMA ? node_for(m, rank, nranks) : share_of(m, rank, nranks);
}

static cpu_set_t *plan(const struct machine *m, enum run_bind how, int nranks)
{
    cpu_set_t *sets = calloc((size_t)nranks, sizeof *sets);
    if (!sets)
        run_die("out of memory");
    for (int rank = 0; rank < nranks; rank++) {
        struct range r = place_of(m, how, rank, nranks);
        for (int i = r.from; i < r.to; i++)
            CPU_OR(&sets[rank], &sets[rank], &m->core[i].cpus);
    }
    return sets;
}

cpu_set_t *run_bind_plan(const struct run_options *opt)
{
    struct machine m = {0};
    cpu_set_t allowed, *sets = NULL;
    enum run_bind how = opt->bind == RUN_BIND_DEFAULT ? RUN_BIND_SHARE : opt->bind;
    bool must = opt->bind != RUN_BIND_DEFAULT;
#ifndef FT_HAVE_HWLOC
    if (!must)
        return NULL;
    if (how == RUN_BIND_NUMA || how == RUN_BIND_SHARE)
        run_die("this ftccl-run was built without hwloc: it can bind by core only");
#endif
    if (how == RUN_BIND_NONE || (!must && opt->nranks == 1))
        return NULL;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0 && find_cores(&m, &allowed);
    if (!known && must)
        run_die("cannot tell which cores there are; --bind none does without");
    bool usable = known && (m.here || !opt->argv[0]),
         enough = opt->nranks <= m.ncores || (must && how != RUN_BIND_SHARE);
    if (known && !usable && must)
        run_die("hwloc describes another machine (by an environment variable); --bind none does "
                "without");
    if (usable && enough)
        sets = plan(&m, how, opt->nranks);
    free(m.core);
    return sets;
}

/* ---- report ---------------------------------------------------------------------------------- */

/* Prints a set of CPUs in the format of the kernel's lists: 0-3,8. */
static void print_set(FILE *out, const cpu_set_t *set)
{
    const char *before = "";
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set))
            continue;
        int last = cpu;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        fprintf(out, last > cpu ? "%s%d-%d" : "%s%d", before, cpu, last);
        before = ",";
        cpu = last;
    }
}

void run_bind_report(FILE *out, const cpu_set_t *sets, int nranks)
{
    for (int rank = 0; rank < nranks; rank++) {
        fprintf(out, "ftccl-run: rank %d ", rank);
        if (sets) {
            fputs("on processors ", out);
            print_set(out, &sets[rank]);
        } else
            fputs("not bound", out);
        fputc('\n', out);
    }
}
