/*
 * allocate_perf: how evenly the allocation of paths (path/allocate.h) loads a large leaf-spine
 * network while jobs come and go, and how long an allocation takes. A simulation of the allocator
 * alone: no process, no network.
 *
 * A job has random hosts, in a ring: each sends over some connections to the next one. Hosts of one
 * leaf need no spine. After each arrival and each end of a job the network is looked at: of each
 * leaf, each direction, the most loaded link of that leaf beside the mean of its links. A leaf with
 * 1,530 connections over 64 links cannot have fewer than 24 on the most loaded one. So leaves count
 * whose mean is at least 20, and `over` counts connections above the mean, rounded up, for all.
 * "by chance" draws the ways instead.
 */
#include "path/allocate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEAN_LEAST 20
#define LOOKED 20000 /* connections that ftccld looks at in a second */

struct setup {
    int hosts, leaves, spines, jobs, events, connections;
    bool by_chance;
};

struct job {
    int nhosts;
    int *host;
    struct ft_ways **ways;
};

struct world {
    struct setup setup;
    struct ft_allocator *allocator;
    uint64_t random;
    int *free_host, nfree;
    struct job *job;
    unsigned char *hops; /* of one pair of hosts */
    /* what is seen */
    uint64_t most_ns, all_ns, takes, look_ns;
    uint64_t moves;
    double worst; /* most over mean */
    int over;
};

static uint64_t draw(struct world *w, uint64_t below)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random % below;
}

/* Processor time: other work on this machine does not count. */
static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void count_move(void *arg, struct ft_ways *ways, uint64_t connection, int way)
{
    struct world *w = arg;
    (void)ways, (void)connection, (void)way;
    w->moves++;
}

static void address(unsigned char ip[16], int kind, int n)
{
    memset(ip, 0, 16);
    ip[0] = (unsigned char)kind;
    ip[1] = (unsigned char)(n >> 8);
    ip[2] = (unsigned char)n;
}

static int leaf_of(const struct world *w, int host)
{
    return host * w->setup.leaves / w->setup.hosts;
}

static struct ft_ways *open_pair(struct world *w, int from, int to)
{
    struct ft_ways *ways = NULL;
    for (int s = 0; s < w->setup.spines; s++) {
        address(w->hops + 48 * s, 1, leaf_of(w, from));
        address(w->hops + 48 * s + 16, 2, s);
        address(w->hops + 48 * s + 32, 1, leaf_of(w, to));
    }
    const struct ft_ways_config config = {
        .owner = (uint64_t)from, .nways = w->setup.spines, .nhops = 3, .hops = w->hops};
    if (ft_ways_open(w->allocator, &config, &ways) != FT_OK)
        abort();
    for (int c = 0; c < w->setup.connections; c++) {
        const uint64_t begun_ns = thread_ns();
        const uint64_t id = (uint64_t)from << 32 | (unsigned)c;
        const int held = w->setup.by_chance ? (int)draw(w, (uint64_t)w->setup.spines) : -1;
        int way;
        if (ft_ways_take(ways, id, held, &way) != FT_OK || way < 0)
            abort();
        const uint64_t took_ns = thread_ns() - begun_ns;
        w->most_ns = ft_max(w->most_ns, took_ns);
        w->all_ns += took_ns;
        w->takes++;
    }
    return ways;
}

static int max(int a, int b)
{
    return a > b ? a : b;
}

static void begin(struct world *w, struct job *job)
{
    const int most = 2 * w->setup.hosts / w->setup.jobs, n = 2 + (int)draw(w, (uint64_t)most);
    job->nhosts = n < w->nfree ? n : w->nfree;
    if (job->nhosts < 2) {
        job->nhosts = 0;
        return;
    }
    job->host = calloc((size_t)job->nhosts, sizeof(job->host[0]));
    job->ways = calloc((size_t)job->nhosts, sizeof(job->ways[0]));
    if (!job->host || !job->ways)
        abort();
    for (int i = 0; i < job->nhosts; i++) {
        const int at = (int)draw(w, (uint64_t)w->nfree);
        job->host[i] = w->free_host[at];
        w->free_host[at] = w->free_host[--w->nfree];
    }
    for (int i = 0; i < job->nhosts; i++) {
        const int to = job->host[(i + 1) % job->nhosts];
        if (leaf_of(w, job->host[i]) != leaf_of(w, to))
            job->ways[i] = open_pair(w, job->host[i], to);
    }
}

static void end(struct world *w, struct job *job)
{
    for (int i = 0; i < job->nhosts; i++) {
        ft_ways_close(job->ways[i]);
        w->free_host[w->nfree++] = job->host[i];
    }
    free(job->host);
    free(job->ways);
    *job = (struct job){0};
}

/* As ftccld does once a second, until all connections were looked at and none moved. */
static void balance(struct world *w)
{
    const int all = w->setup.hosts * w->setup.connections;
    for (int still = 0; !w->setup.by_chance && still < all;) {
        const uint64_t begun_ns = thread_ns();
        const int moves = ft_allocator_balance(w->allocator, LOOKED);
        w->look_ns = ft_max(w->look_ns, thread_ns() - begun_ns);
        still = moves > 0 ? 0 : still + LOOKED;
    }
}

struct leaf {
    int most, all;
};

static void look_at(struct world *w, const struct leaf *leaf)
{
    const int spines = w->setup.spines;
    const double mean = (double)leaf->all / spines;
    w->over = max(w->over, leaf->most - (leaf->all + spines - 1) / spines);
    if (mean >= MEAN_LEAST && leaf->most / mean > w->worst)
        w->worst = leaf->most / mean;
}

static void look(struct world *w)
{
    struct leaf *up = calloc((size_t)w->setup.leaves, 2 * sizeof(*up)),
                *down = up + w->setup.leaves;
    if (!up)
        abort();
    for (int i = 0; i < ft_allocator_links(w->allocator); i++) {
        const struct ft_allocator_link link = ft_allocator_link_at(w->allocator, i);
        const unsigned char *ip = link.from[0] == 1 ? link.from : link.to;
        struct leaf *leaf = (link.from[0] == 1 ? up : down) + (ip[1] << 8 | ip[2]);
        leaf->all += link.connections;
        leaf->most = max(leaf->most, link.connections);
    }
    for (int i = 0; i < w->setup.leaves; i++) {
        look_at(w, &up[i]);
        look_at(w, &down[i]);
    }
    free(up);
}

static void simulate(struct world *w)
{
    for (int i = 0; i < w->setup.hosts; i++)
        w->free_host[w->nfree++] = i;
    for (int i = 0; i < w->setup.jobs + w->setup.events; i++) {
        struct job *job =
            &w->job[i < w->setup.jobs ? (uint64_t)i : draw(w, (uint64_t)w->setup.jobs)];
        if (job->nhosts > 0) {
            end(w, job);
            balance(w);
            look(w);
        }
        begin(w, job);
        balance(w);
        look(w);
    }
}

static void print(const struct world *w)
{
    printf("%-10s %6d hosts %4d leaves %3d spines %4d jobs, %d connections a host: "
           "most over mean %.3f, over %d, moves %.3f of the allocations, "
           "an allocation %.1f us, at most %.0f us, a look at %d connections at most %.0f ms\n",
           w->setup.by_chance ? "by chance" : "allocated", w->setup.hosts, w->setup.leaves,
           w->setup.spines, w->setup.jobs, w->setup.connections, w->worst, w->over,
           (double)w->moves / (double)w->takes, (double)w->all_ns / (double)w->takes / 1e3,
           (double)w->most_ns / 1e3, LOOKED, (double)w->look_ns / 1e6);
}

static void run(const struct setup *setup, uint64_t seed)
{
    struct world w = {.setup = *setup, .random = seed};
    w.allocator = ft_allocator_open(count_move, &w);
    w.free_host = calloc((size_t)setup->hosts, sizeof(w.free_host[0]));
    w.job = calloc((size_t)setup->jobs, sizeof(w.job[0]));
    w.hops = malloc(48 * (size_t)setup->spines);
    if (!w.allocator || !w.free_host || !w.job || !w.hops)
        abort();
    simulate(&w);
    print(&w);
    for (int i = 0; i < setup->jobs; i++)
        end(&w, &w.job[i]);
    ft_allocator_close(w.allocator);
    free(w.free_host);
    free(w.job);
    free(w.hops);
}

int main(int argc, char **argv)
{
    static const char usage[] = "usage: allocate_perf [EVENTS [SEED]]\n";
    if (argc > 3 || (argc > 1 && atoi(argv[1]) <= 0)) {
        fputs(usage, stderr);
        return 2;
    }
    struct setup setup = {.hosts = 10000,
                          .leaves = 157,
                          .spines = 64,
                          .jobs = 100,
                          .connections = 24,
                          .events = argc > 1 ? atoi(argv[1]) : 100};
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 20261127;
    printf("# %d jobs end and others begin; seed %llu\n", setup.events, (unsigned long long)seed);
    run(&setup, seed);
    setup.by_chance = true;
    run(&setup, seed);
    return 0;
}
