/*
 * What a joiner does after the rendezvous. It listens on the child's context, asks the ranks of the
 * parent how the grow ended, and opens the child when all live ones have said that the child was
 * made. A joiner that gives up tells the others, because they may have the child already.
 */
#include "core/group/growth.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_NS 20000000u /* a joiner that gives up lets its control messages leave */

static int read_facts(const struct ft_table *table, struct ft_grow_facts *facts)
{
    size_t len;
    const unsigned char *part = ft_endpoint_part(
        table->endpoint[0].address, table->endpoint[0].address_bytes, FT_GROW_PART, &len);
    if (part && len == sizeof *facts)
        memcpy(facts, part, sizeof *facts);
    else
        return ft_fail(FT_PROTOCOL,
                       "the rendezvous gave no facts about the communicator that grows");
    if (facts->nold >= 1 && facts->nold < (uint32_t)table->nranks)
        return FT_OK;
    return ft_fail(FT_PROTOCOL, "the rendezvous says that %u of %d ranks are there already",
                   facts->nold, table->nranks);
}

int ft_grow_join_begin(struct ft_engine *engine, const struct ft_table *table,
                       struct ft_joining *joining)
{
    struct ft_grow_facts facts;
    struct ft_endpoint endpoint;
    memset(joining, 0, sizeof *joining);
    joining->engine = engine;
    joining->table = table;
    int rc = read_facts(table, &facts);
    if (rc == FT_OK)
        rc = ft_engine_endpoint(engine, &endpoint);
    if (rc != FT_OK)
        return rc;
    joining->endpoint_bytes = ft_endpoint_encode(joining->endpoint, &endpoint);
    joining->epoch = facts.epoch;
    rc = ft_engine_bind(engine, facts.ctx);
    if (rc != FT_OK)
        return rc;
    rc = ft_growth_open(engine, &facts, table->nranks, true, &joining->growth);
    if (rc != FT_OK)
        ft_engine_unbind(engine, facts.ctx);
    return rc;
}

/* FT_OK: all live survivors have said yes. FT_AGAIN: some that can answer have not answered.
 * FT_PEER: none can answer. */
static int look(const struct ft_joining *joining, bool *yes)
{
    const struct ft_growth *growth = joining->growth;
    int open = 0;
    *yes = false;
    for (int r = 0; r < growth->nold; r++) {
        const struct ft_peer *peer = ft_engine_peer(joining->engine,
                                                    joining->table->endpoint[r].engine);
        *yes |= growth->told[r] == FT_SAID_YES;
        open += growth->told[r] == FT_SAID_NOTHING && peer->state != FT_PEER_DEAD &&
                peer->state != FT_PEER_UNREACHABLE;
    }
    return open > 0 ? FT_AGAIN : *yes ? FT_OK : FT_PEER;
}

/* Asks all that have not said yes, because any of them may die. */
static void ask(const struct ft_joining *joining)
{
    struct ft_ctl_head head = {FT_CTL_ASK, 0, joining->growth->ctx};
    for (int r = 0; r < joining->growth->nold; r++) {
        struct ft_peer *peer = ft_engine_peer(joining->engine, joining->table->endpoint[r].engine);
        if (joining->growth->told[r] != FT_SAID_YES)
            ft_control_send(joining->engine, peer, &head, joining->endpoint,
                            joining->endpoint_bytes);
    }
}

/* When a survivor has said yes, or none can be reached, this rank stops waiting for silent ones
 * after a time. */
int ft_grow_join_turn(struct ft_joining *joining)
{
    struct ft_engine *engine = joining->engine;
    int status = atomic_load_explicit(&joining->growth->status, memory_order_acquire);
    int heard = atomic_load_explicit(&joining->growth->heard, memory_order_acquire);
    if (status != FT_AGAIN)
        return ft_fail(FT_PEER, "the survivors could not grow: %s", ft_status_text(status));
    uint64_t now = ft_now_ns(engine->env);
    bool yes, due = now - joining->asked_ns >= FT_GROW_ASK_NS;
    if ((!due && heard == joining->heard) || !ft_engine_trylock(engine))
        return FT_AGAIN;
    int rc = look(joining, &yes);
    if (due && rc != FT_OK)
        ask(joining);
    ft_engine_unlock(engine);
    if (due)
        joining->asked_ns = now;
    joining->heard = heard;
    if (rc == FT_OK)
        return rc;
    if (!yes && rc == FT_AGAIN)
        joining->since_ns = 0;
    else if (joining->since_ns == 0)
        joining->since_ns = now;
    if (joining->since_ns == 0 || now - joining->since_ns < engine->detect.suspect_ns)
        return FT_AGAIN;
    return yes ? FT_OK
               : ft_fail(FT_PEER, "no rank is left that could say whether the grow came about");
}

static bool has_posted(void *arg)
{
    return atomic_load_explicit(&((struct ft_engine *)arg)->unsent, memory_order_relaxed) == 0;
}

/* The others may have the child already, and must not wait for this rank. */
static void give_up(const struct ft_joining *joining, bool everywhere)
{
    struct ft_engine *engine = joining->engine;
    ft_engine_lock(engine);
    for (int r = 0; r < joining->table->nranks && !everywhere; r++)
        if (joining->table->endpoint[r].engine != engine->id)
            ft_abandoned_tell(engine, ft_engine_peer(engine, joining->table->endpoint[r].engine),
                              joining->growth->ctx);
    ft_engine_unbind_held(engine, joining->growth->ctx);
    ft_engine_unlock(engine);
}

int ft_grow_join_end(struct ft_joining *joining, const struct ft_grow *how, int rc,
                     struct ft_comm **out)
{
    int n = joining->table->nranks;
    struct ft_place *places = malloc((size_t)n * sizeof *places);
    if (rc == FT_OK && !places)
        rc = ft_fail(FT_NOMEM, "no memory for %d ranks", n);
    for (int r = 0; r < n && places; r++)
        places[r] = (struct ft_place){joining->table->endpoint[r].engine,
                                      joining->table->endpoint[r].host};
    if (rc == FT_OK)
        rc = ft_growth_child(joining->engine, joining->growth, places, how, joining->epoch, out);
    free(places);
    int status = atomic_load_explicit(&joining->growth->status, memory_order_acquire);
    bool failed_everywhere = status != FT_AGAIN && status != FT_OK && joining->growth->agreed;
    if (rc != FT_OK)
        give_up(joining, failed_everywhere);
    return rc;
}

struct asking {
    struct ft_joining *joining;
    const atomic_int *cancel;
    int rc;
};

static bool is_answered(void *arg)
{
    struct asking *asking = arg;
    if (atomic_load(asking->cancel))
        asking->rc = ft_fail(FT_ABORTED, "aborted while the survivors decided on the grow");
    else
        asking->rc = ft_grow_join_turn(asking->joining);
    return asking->rc != FT_AGAIN;
}

int ft_grow_join(struct ft_engine *engine, const struct ft_init *init, const struct ft_table *table,
                 struct ft_comm **out)
{
    struct ft_joining joining;
    const struct ft_comm_limits *limits = &init->settings.limits;
    struct ft_grow how = {.nranks = table->nranks, .name = init->name, .limits = *limits};
    uint64_t bound_ns = (uint64_t)(limits->init_timeout_ms + 8 * limits->suspect_ms) * 1000000u;
    int rc = ft_grow_join_begin(engine, table, &joining);
    if (rc != FT_OK)
        return rc;
    struct asking asking = {&joining, init->cancel, FT_AGAIN};
    if (!ft_engine_wait(engine, is_answered, &asking, bound_ns))
        asking.rc = ft_fail(FT_TIMEOUT,
                            "no survivor said within %llu ms whether the grow came about",
                            (unsigned long long)(bound_ns / 1000000u));
    rc = ft_grow_join_end(&joining, &how, asking.rc, out);
    if (rc == FT_OK)
        return FT_OK;
    char why[FT_FAIL_BYTES]; /* the turns may write other sentences */
    snprintf(why, sizeof why, "%s", ft_fail_text());
    ft_engine_wait(engine, has_posted, engine, FLUSH_NS);
    return ft_fail(rc, "%s", why);
}
