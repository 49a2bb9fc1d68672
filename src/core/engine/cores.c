/*
 * How many cores the ranks of a host have between them. Every rank's endpoint says on which
 * processors it may run, because ranks that mpiexec, srun or ftccl-run has bound each to a core of
 * its own see one core each and share none. A number of cores that a tuning table gives goes before
 * what is found. A communicator counts from endpoints alone, so that all its ranks count alike.
 */
#include "core/core.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* of an endpoint: struct facts, without the bytes of `cpus` that are zero at its end */
#define PART "cores"

struct core_facts {
    uint32_t cores;
    cpu_set_t cpus;
};

/* Of the ranks of one host. `given`: the least number that is not just a rank's own processors; 0:
 * none. */
struct core_sum {
    cpu_set_t cpus;
    uint32_t given;
};

void ft_cores_open(struct ft_engine *engine)
{
    if (sched_getaffinity(0, sizeof engine->cpus, &engine->cpus) != 0)
        CPU_ZERO(&engine->cpus);
}

static void facts_of_engine(const struct ft_engine *engine, struct core_facts *core_facts)
{
    memset(core_facts, 0, sizeof *core_facts);
    core_facts->cores = (uint32_t)engine->tuning.costs.cores_per_host;
    core_facts->cpus = engine->cpus;
}

static bool facts_of_peer(const struct ft_peer *peer, struct core_facts *core_facts)
{
    size_t len = 0;
    const unsigned char *part =
        peer->address ? ft_endpoint_part(peer->address, peer->address_bytes, PART, &len) : NULL;
    memset(core_facts, 0, sizeof *core_facts);
    if (!part || len < sizeof core_facts->cores || len > sizeof *core_facts)
        return false;
    memcpy(&core_facts->cores, part, sizeof core_facts->cores);
    memcpy(&core_facts->cpus, part + sizeof core_facts->cores, len - sizeof core_facts->cores);
    return true;
}

bool ft_cores_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint)
{
    struct core_facts core_facts;
    unsigned char part[sizeof core_facts];
    size_t len = sizeof core_facts.cpus;
    facts_of_engine(engine, &core_facts);
    while (len > 0 && ((const unsigned char *)&core_facts.cpus)[len - 1] == 0)
        len--;
    memcpy(part, &core_facts.cores, sizeof core_facts.cores);
    memcpy(part + sizeof core_facts.cores, &core_facts.cpus, len);
    return ft_endpoint_put(endpoint, PART, part, sizeof core_facts.cores + len);
}

static void add_cores(struct core_sum *core_sum, const struct core_facts *core_facts)
{
    if ((uint32_t)CPU_COUNT(&core_facts->cpus) == core_facts->cores)
        CPU_OR(&core_sum->cpus, &core_sum->cpus, &core_facts->cpus);
    else if (core_facts->cores > 0 && (!core_sum->given || core_facts->cores < core_sum->given))
        core_sum->given = core_facts->cores;
}

/* INT_MAX: unknown. */
static int cores_of(const struct core_sum *core_sum)
{
    size_t found = (size_t)CPU_COUNT(&core_sum->cpus);
    return (int)ft_min(found ? found : INT_MAX, core_sum->given ? core_sum->given : INT_MAX);
}

/* Plans must be the same on all ranks, so they count with the smallest host. */
int ft_cores_count(struct ft_comm *comm)
{
    const struct ft_view *view = &comm->view;
    struct core_sum *sums = calloc((size_t)view->nhosts, sizeof *sums);
    struct core_facts core_facts;
    int fewest = INT_MAX;
    if (!sums)
        return ft_fail(FT_NOMEM, "no memory for %d hosts", view->nhosts);
    for (int r = 0; r < view->nranks; r++) {
        if (r == view->rank)
            facts_of_engine(comm->engine, &core_facts);
        else if (!facts_of_peer(comm->peers[r], &core_facts))
            continue;
        add_cores(&sums[view->host[r]], &core_facts);
    }
    for (int h = 0; h < view->nhosts; h++)
        if (cores_of(&sums[h]) < fewest)
            fewest = cores_of(&sums[h]);
    if (fewest < INT_MAX)
        comm->tuning.costs.cores_per_host = fewest;
    free(sums);
    return FT_OK;
}

void ft_engine_count_local(struct ft_engine *engine)
{
    struct core_facts core_facts;
    struct core_sum core_sum = {0};
    int ranks = 1;
    facts_of_engine(engine, &core_facts);
    add_cores(&core_sum, &core_facts);
    for (const struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        if (peer->users <= 0 || peer->dead || peer->host != engine->host)
            continue;
        ranks++;
        if (facts_of_peer(peer, &core_facts))
            add_cores(&core_sum, &core_facts);
    }
    atomic_store_explicit(&engine->crowded, ranks > cores_of(&core_sum), memory_order_relaxed);
}
