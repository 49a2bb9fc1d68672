/*
 * Answers transports which source port takes which way. What is known is in a cache; what is not is
 * probed, one pair of addresses at a time, by turns that those who wait take. A probing that failed
 * leaves a table without ports, so that it is not repeated at once.
 */
#include "path/master.h"

#include <stdlib.h>

#define TABLES 1024  /* most pairs that are remembered, of some KiB each */
#define PORTS 128    /* of a probing: finds nearly all of up to 32 ways */
#define KNOWN_PART 4 /* the way of one in so many of them must be known */
#define SECOND_NS UINT64_C(1000000000)
#define AGE_NS (3600 * SECOND_NS)
#define RETRY_NS (60 * SECOND_NS)  /* of a pair of which nothing was learned */
#define FORGET_NS (10 * SECOND_NS) /* a younger table is kept, whoever complains */

struct ft_path_finder {
    struct ft_port_finder base; /* must be the first field */
    struct ft_env *env;
    int rank;
    struct ft_path_master *master; /* NULL: none */
    struct ft_path_cache *cache;
    struct ft_prober *prober; /* NULL: nothing is probed */
    bool for_master;          /* it wants to know, and no connection does */
    struct ft_net_address from, to;
};

static int find(struct ft_port_finder *base, const struct ft_net_address *from,
                const struct ft_net_address *to, struct ft_ports *out);
static bool forget(struct ft_port_finder *base, const struct ft_net_address *from,
                   const struct ft_net_address *to);
static void stop(struct ft_port_finder *base);
static int choose(struct ft_port_finder *base, const struct ft_net_address *from,
                  const struct ft_net_address *to, uint64_t connection, int *class_index);
static void blame(struct ft_port_finder *base, const struct ft_net_address *from,
                  const struct ft_net_address *to, int class_index);
static bool turn_for_master(struct ft_port_finder *base);
static bool says_much(const struct ft_path_table *t);
static bool is_wanted(const struct ft_path_finder *f, const struct ft_path_table *t);
static int begin(struct ft_path_finder *f, const struct ft_net_address *from,
                 const struct ft_net_address *to);
static void turn(struct ft_path_finder *f);
static int say_nothing_known(const struct ft_path_table *t);

struct ft_path_finder *ft_path_finder_open(struct ft_env *env, int rank,
                                           struct ft_path_master *master)
{
    struct ft_path_finder *f = calloc(1, sizeof(*f));
    struct ft_path_cache *cache = ft_path_cache_open(env, TABLES, AGE_NS);
    if (f == NULL || cache == NULL) {
        ft_path_master_close(master);
        ft_path_cache_close(cache);
        free(f);
        return NULL;
    }
    f->base = (struct ft_port_finder){.find = find, .forget = forget, .stop = stop};
    if (master != NULL) {
        f->base.choose = choose;
        f->base.blame = blame;
        f->base.turn = turn_for_master;
    }
    f->env = env;
    f->rank = rank;
    f->master = master;
    f->cache = cache;
    return f;
}

void ft_path_finder_set_job(struct ft_path_finder *f, uint64_t job)
{
    if (f == NULL)
        return;
    f->base.first = job;
    if (f->master != NULL)
        ft_path_master_set_job(f->master, job);
}

struct ft_port_finder *ft_path_finder_ports(struct ft_path_finder *f)
{
    return f != NULL ? &f->base : NULL;
}

void ft_path_finder_close(struct ft_path_finder *f)
{
    if (f == NULL)
        return;
    ft_prober_close(f->prober);
    ft_path_master_close(f->master);
    ft_path_cache_close(f->cache);
    free(f);
}

static int find(struct ft_port_finder *base, const struct ft_net_address *from,
                const struct ft_net_address *to, struct ft_ports *out)
{
    struct ft_path_finder *f = FT_CONTAINER(base, struct ft_path_finder, base);
    turn(f);
    const struct ft_path_table *t = ft_path_cache_find(f->cache, from, to);
    if (t == NULL || is_wanted(f, t))
        return f->prober != NULL ? FT_AGAIN : begin(f, from, to);
    if (!says_much(t))
        return say_nothing_known(t);
    *out = (struct ft_ports){t->ports, t->nports, t->nclasses};
    return FT_OK;
}

static bool forget(struct ft_port_finder *base, const struct ft_net_address *from,
                   const struct ft_net_address *to)
{
    struct ft_path_finder *f = FT_CONTAINER(base, struct ft_path_finder, base);
    const struct ft_path_table *t = ft_path_cache_find(f->cache, from, to);
    if (t == NULL || ft_now_ns(f->env) - t->probed_ns < FORGET_NS)
        return false;
    ft_path_cache_forget(f->cache, from, to);
    return true;
}

static void stop(struct ft_port_finder *base)
{
    struct ft_path_finder *f = FT_CONTAINER(base, struct ft_path_finder, base);
    if (f->for_master)
        return;
    ft_prober_close(f->prober);
    f->prober = NULL;
}

static bool turn_for_master(struct ft_port_finder *base)
{
    struct ft_path_finder *f = FT_CONTAINER(base, struct ft_path_finder, base);
    struct ft_net_address from, to;
    if (f->prober == NULL && ft_path_master_wants(f->master, &from, &to)) {
        const struct ft_path_table *t = ft_path_cache_find(f->cache, &from, &to);
        if (t != NULL && !is_wanted(f, t)) {
            ft_path_master_probed(f->master, &from, &to, t);
            return false;
        }
        f->for_master = begin(f, &from, &to) == FT_AGAIN && f->prober != NULL;
    } else if (f->for_master) {
        turn(f);
    }
    return f->for_master;
}

static int choose(struct ft_port_finder *base, const struct ft_net_address *from,
                  const struct ft_net_address *to, uint64_t connection, int *class_index)
{
    struct ft_path_finder *f = FT_CONTAINER(base, struct ft_path_finder, base);
    const struct ft_path_table *t = ft_path_cache_find(f->cache, from, to);
    return t != NULL ? ft_path_master_choose(f->master, t, connection, class_index) : FT_NOTSUP;
}

static void blame(struct ft_port_finder *base, const struct ft_net_address *from,
                  const struct ft_net_address *to, int class_index)
{
    struct ft_path_finder *f = FT_CONTAINER(base, struct ft_path_finder, base);
    const struct ft_path_table *t = ft_path_cache_find(f->cache, from, to);
    if (t != NULL)
        ft_path_master_bad(f->master, t, class_index);
}

/* A few known ports would be few of the ways. */
static bool says_much(const struct ft_path_table *t)
{
    return t->nclasses > 0 && t->nports - t->nunknown >= t->nports / KNOWN_PART;
}

/* Little was learned, and that is long ago. */
static bool is_wanted(const struct ft_path_finder *f, const struct ft_path_table *t)
{
    return !says_much(t) && ft_now_ns(f->env) - t->probed_ns >= RETRY_NS;
}

/* What it wanted to know. */
static void tell_master(struct ft_path_finder *f, const struct ft_path_table *t)
{
    if (f->master != NULL)
        ft_path_master_probed(f->master, &f->from, &f->to, t);
}

/* A table that says nothing, in place of one that could not be made. */
static void put_empty(struct ft_path_finder *f)
{
    struct ft_path_table *t = calloc(1, sizeof(*t));
    FT_LOG(INFO, "net", f->rank, "ways through the network are not known: %s", ft_fail_text());
    if (t == NULL)
        return tell_master(f, NULL);
    *t = (struct ft_path_table){.from = f->from,
                                .to = f->to,
                                .probed_ns = ft_now_ns(f->env),
                                .outcome = FT_PATH_UNREACHABLE,
                                .nhops = -1};
    ft_path_cache_put(f->cache, t);
    tell_master(f, t);
}

static int begin(struct ft_path_finder *f, const struct ft_net_address *from,
                 const struct ft_net_address *to)
{
    const struct ft_path_config config = {.env = f->env, .from = *from, .to = *to, .nports = PORTS};
    f->from = *from;
    f->to = *to;
    f->from.port = 0;
    if (ft_prober_open(&config, &f->prober) != FT_OK) {
        put_empty(f);
        return FT_NOTSUP;
    }
    turn(f);
    return FT_AGAIN;
}

static void turn(struct ft_path_finder *f)
{
    const int status = f->prober != NULL ? ft_prober_turn(f->prober) : FT_AGAIN;
    if (status == FT_AGAIN)
        return;
    struct ft_path_table *t = status == FT_OK ? ft_prober_take(f->prober) : NULL;
    f->for_master = false;
    stop(&f->base);
    if (t == NULL)
        return put_empty(f);
    t->from = f->from; /* what it was asked for */
    ft_path_cache_put(f->cache, t);
    tell_master(f, t);
}

static int say_nothing_known(const struct ft_path_table *t)
{
    char text[FT_NET_TEXT_BYTES];
    if (t->outcome == FT_PATH_REACHED)
        return ft_fail(FT_NOTSUP, "routers before %s do not answer, or seldom",
                       ft_net_text(&t->to, text));
    if (t->outcome == FT_PATH_UNREACHABLE)
        return ft_fail(FT_NOTSUP, "%s cannot be probed", ft_net_text(&t->to, text));
    return ft_fail(FT_NOTSUP, "neither %s nor the routers before it answer to probes",
                   ft_net_text(&t->to, text));
}
