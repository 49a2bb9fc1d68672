/*
 * How many cores the ranks of a host have together. mpiexec, srun or ftccl-run may bind each rank
 * to a core of its own; then each rank sees one core, and the ranks share none. So every rank
 * writes into its endpoint on which processors it may run. If a tuning table gives a number of
 * cores, that number is used. All ranks of a communicator must count alike, so they count from
 * endpoints alone.
 */
#include "core/engine/engine.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Name of the part of an endpoint. It holds struct core_facts without the zero bytes at the end of
 * `cpus`. */
#define PART "cores"

struct core_facts {
    uint32_t cores;
    cpu_set_t cpus;
};

/* A sum over the ranks of one host. `given` is the least number of cores that a tuning table gives;
 * 0: none gives one. */
struct core_sum {
    cpu_set_t cpus;
    uint32_t given;
};

void ft_cores_open(struct ft_engine *engine)
{
    if (sched_getaffinity(0, sizeof engine->cpus, &engine->cpus) != 0)
        CPU_ZERO(&engine->cpus);
}

static void facts_of_engine(const struct ft_engine *engine, struct core_facts *facts)
{
    memset(facts, 0, sizeof *facts);
    facts->cores = (uint32_t)engine->tuning.costs.cores_per_host;
    facts->cpus = engine->cpus;
}

static bool facts_of_peer(const struct ft_peer *peer, struct core_facts *facts)
{
    size_t len;
    const unsigned char *part = ft_peer_part(peer, PART, &len);
    memset(facts, 0, sizeof *facts);
    if (!part || len < sizeof facts->cores || len > sizeof *facts)
        return false;
    memcpy(&facts->cores, part, sizeof facts->cores);
    memcpy(&facts->cpus, part + sizeof facts->cores, len - sizeof facts->cores);
    return true;
}

bool ft_cores_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint)
{
    struct core_facts facts;
    unsigned char part[sizeof facts];
    size_t len = sizeof facts.cpus;
    facts_of_engine(engine, &facts);
    while (len > 0 && ((const unsigned char *)&facts.cpus)[len - 1] == 0)
        len--;
    memcpy(part, &facts.cores, sizeof facts.cores);
    memcpy(part + sizeof facts.cores, &facts.cpus, len);
    return ft_endpoint_put(endpoint, PART, part, sizeof facts.cores + len);
}

static void add_cores(struct core_sum *sum, const struct core_facts *facts)
{
    if ((uint32_t)CPU_COUNT(&facts->cpus) == facts->cores)
        CPU_OR(&sum->cpus, &sum->cpus, &facts->cpus);
    else if (facts->cores > 0 && (!sum->given || facts->cores < sum->given))
        sum->given = facts->cores;
}

/* Returns INT_MAX if the number is unknown. */
static int cores_of(const struct core_sum *sum)
{
    size_t found = (size_t)CPU_COUNT(&sum->cpus);
    return (int)ft_min(found ? found : INT_MAX, sum->given ? sum->given : INT_MAX);
}

/* Plans must be the same on all ranks, so all ranks use the number of the smallest host. */
int ft_cores_fewest(const struct ft_ranks *ranks, int *cores)
{
    const struct ft_view *view = ranks->view;
    struct core_sum *sums = calloc((size_t)view->nhosts, sizeof *sums);
    struct core_facts facts;
    int fewest = INT_MAX;
    if (!sums)
        return ft_fail(FT_NOMEM, "no memory for %d hosts", view->nhosts);
    for (int r = 0; r < view->nranks; r++) {
        if (r == view->rank)
            facts_of_engine(ranks->engine, &facts);
        else if (!facts_of_peer(ranks->peer[r], &facts))
            continue;
        add_cores(&sums[view->host[r]], &facts);
    }
    for (int h = 0; h < view->nhosts; h++)
        if (cores_of(&sums[h]) < fewest)
            fewest = cores_of(&sums[h]);
    if (fewest < INT_MAX)
        *cores = fewest;
    free(sums);
    return FT_OK;
}

void ft_engine_count_local(struct ft_engine *engine)
{
    struct core_facts facts;
    struct core_sum sum = {0};
    int ranks = 1;
    facts_of_engine(engine, &facts);
    add_cores(&sum, &facts);
    for (const struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        if (peer->users <= 0 || peer->state == FT_PEER_DEAD || peer->host != engine->host)
            continue;
        ranks++;
        if (facts_of_peer(peer, &facts))
            add_cores(&sum, &facts);
    }
    atomic_store_explicit(&engine->ras.local_ranks, ranks, memory_order_relaxed);
    atomic_store_explicit(&engine->crowded, ranks > cores_of(&sum), memory_order_relaxed);
}
