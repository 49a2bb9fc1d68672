/*
 * Growing a communicator.
 *
 * 1. One rank of the parent, the root, makes an id and serves the rendezvous. Joiners come there
 *    while the parent goes on computing.
 * 2. A joiner learns who the parent's ranks are, listens on the child's context, connects, and asks
 *    every rank of the parent how the grow ended.
 * 3. When all joiners have asked, the root puts their endpoints into an agreement of the parent's
 *    ranks. So the child is made on all of them or on none, and if the root dies, any of them can
 *    answer the joiners.
 * 4. A joiner hears only what was agreed. A rank that fails by itself answers that it cannot tell.
 * 5. A joiner has the child when all live ranks of the parent have said so. One answer is not
 * enough: that rank may have decided together with ranks that died, and may die before the live
 * ones learn the decision.
 */
#include "core/group/growth.h"

#include <stdlib.h>
#include <string.h>

/* ---- the order ------------------------------------------------------------------------------- */

/* The table of endpoints has the survivors first, by their old ranks, then the joiners, by the
 * ranks that they gave. */
static int64_t joiner_key(const struct ft_endpoint *endpoint)
{
    size_t len;
    int64_t key = INT64_MAX;
    const unsigned char *part = ft_endpoint_part(endpoint->address, endpoint->address_bytes,
                                                 FT_ENDPOINT_KEY, &len);
    if (part && len == sizeof key)
        memcpy(&key, part, sizeof key);
    return key;
}

/* Sorts places by key; equal keys by place. */
static void put_in_order(struct ft_growth *growth, const struct ft_decision *decision,
                         const struct ft_endpoint *joiners)
{
    int n = 0, taken = 0, njoiners = growth->nranks - growth->nold;
    int32_t *order = growth->order;
    for (int j = 0; j < njoiners; j++) { /* first the joiners, at the end */
        int at = growth->nranks - njoiners + j;
        for (; at > growth->nold &&
               joiner_key(&joiners[order[at - 1] - growth->nold]) > joiner_key(&joiners[j]);
             at--)
            order[at] = order[at - 1];
        order[at] = growth->nold + j;
    }
    /* then the survivors are merged in; there is room for each */
    while (taken < decision->nsurvivors) {
        int32_t joiner = n + decision->nsurvivors - taken < growth->nranks
                             ? order[n + decision->nsurvivors - taken]
                             : -1;
        bool first = joiner >= 0 &&
                     joiner_key(&joiners[joiner - growth->nold]) < decision->keys[taken];
        order[n++] = first ? joiner : decision->order[taken++];
    }
}

/* ---- survivors ------------------------------------------------------------------------------- */

int ft_grow_begin(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing)
{
    int nold = parent->view.nranks, njoiners = how->nranks - nold;
    struct ft_grow_facts facts;
    *growing = (struct ft_growing){.njoiners = njoiners};
    if (njoiners < 1)
        return ft_fail(FT_INVAL, "grow: %d ranks are not more than %d", how->nranks, nold);
    memset(&facts, 0, sizeof facts);
    ft_engine_lock(parent->engine);
    facts.ctx = ft_agreement_child_held(parent, FT_AGREE_GROW);
    growing->instance = parent->group->agreements + 1;
    ft_engine_unlock(parent->engine);
    facts.epoch = parent->view.epoch + 1;
    facts.nold = (uint32_t)nold;
    growing->joiners = calloc((size_t)njoiners, sizeof *growing->joiners);
    int rc = growing->joiners ? ft_engine_bind(parent->engine, facts.ctx)
                              : ft_fail(FT_NOMEM, "no memory for %d joiners", njoiners);
    if (rc == FT_OK) {
        rc = ft_growth_open(parent->engine, &facts, how->nranks, false, &growing->growth);
        if (rc != FT_OK)
            ft_engine_unbind(parent->engine, facts.ctx);
    }
    if (rc != FT_OK)
        free(growing->joiners);
    return rc;
}

/* Gathers the endpoints of the parent's ranks. The first one carries the facts that joiners need.
 */
int ft_grow_endpoints(struct ft_comm *parent, const struct ft_grow *how,
                      const struct ft_growing *growing, struct ft_endpoint *endpoints)
{
    struct ft_engine *engine = parent->engine;
    struct ft_endpoint own;
    struct ft_grow_facts facts;
    memset(&facts, 0, sizeof facts);
    facts = (struct ft_grow_facts){growing->growth->ctx, parent->view.epoch + 1,
                                   (uint32_t)growing->growth->nold};
    int rc = ft_engine_endpoint(engine, &own);
    if (rc == FT_OK)
        ft_endpoint_settings(&own, &how->limits);
    ft_engine_lock(engine); /* another grow may be learning addresses */
    for (int r = 0; r < parent->view.nranks && rc == FT_OK; r++) {
        const struct ft_peer *peer = parent->peers[r];
        endpoints[r] = own;
        if (peer) {
            endpoints[r].engine = peer->id;
            endpoints[r].host = peer->host;
            endpoints[r].address_bytes = peer->address_bytes;
            memcpy(endpoints[r].address, peer->address, peer->address_bytes);
        }
        if (r == 0 && !ft_endpoint_put(&endpoints[0], FT_GROW_PART, &facts, sizeof facts))
            rc = ft_fail(FT_INTERNAL, "the facts of a grow do not fit an endpoint");
    }
    ft_engine_unlock(engine);
    return rc;
}

/* Each joiner must be an engine of its own. Endpoints come from outside; one with another rank's id
 * would take the place of that rank. */
static int check_joiners(struct ft_engine *engine, const struct ft_growing *growing)
{
    for (int i = 0; i < growing->njoiners; i++) {
        uint64_t id = growing->joiners[i].engine;
        const struct ft_peer *peer = id == engine->id ? NULL : ft_engine_peer(engine, id);
        int same = 0;
        while (growing->joiners[same].engine != id)
            same++;
        if (peer && peer->users == 0 && same == i)
            continue;
        engine->hung_up = true; /* peers made before it may not be needed */
        return ft_fail(FT_PROTOCOL, "a joiner's endpoint has the engine of another rank");
    }
    return FT_OK;
}

static int learn_joiners(struct ft_engine *engine, const struct ft_growing *growing)
{
    const struct ft_endpoint *joiners = growing->joiners;
    ft_engine_lock(engine);
    int rc = check_joiners(engine, growing);
    for (int i = 0; i < growing->njoiners && rc == FT_OK; i++)
        rc = ft_engine_learn(engine, joiners[i].engine, joiners[i].host, joiners[i].address,
                             joiners[i].address_bytes, growing->growth->nold + i);
    ft_engine_unlock(engine);
    return rc;
}

int ft_grow_meet(struct ft_comm *parent, struct ft_growing *growing, const struct ft_table *table)
{
    memcpy(growing->joiners, table->endpoint + growing->growth->nold,
           (size_t)growing->njoiners * sizeof *growing->joiners);
    return learn_joiners(parent->engine, growing);
}

/* FT_OK: all joiners have asked. Joiners that wait are told that nothing is known yet; the message
 * also shows whether they are still there. */
static int look_for(struct ft_engine *engine, const struct ft_growing *growing)
{
    const struct ft_growth *growth = growing->growth;
    int rc = FT_OK;
    for (int i = 0; i < growing->njoiners; i++) {
        struct ft_peer *peer = ft_engine_peer(engine, growing->joiners[i].engine);
        if (ft_growth_has(growth->askers, growth->asked, peer->id))
            continue;
        if (peer->state == FT_PEER_DEAD || peer->state == FT_PEER_UNREACHABLE)
            return ft_fail(FT_PEER, "rank %d came to the rendezvous, and is gone",
                           growth->nold + i);
        ft_growth_tell(engine, peer, growth);
        rc = FT_AGAIN;
    }
    return rc;
}

int ft_grow_met(struct ft_comm *parent, struct ft_growing *growing)
{
    struct ft_engine *engine = parent->engine;
    if (atomic_load(&parent->failure.leaving))
        return ft_fail(FT_ABORTED, "rank %d aborted the communicator", parent->view.rank);
    uint64_t now = ft_now_ns(engine->env);
    int asked = atomic_load_explicit(&growing->growth->asked, memory_order_acquire);
    bool due = asked != growing->asked || now - growing->looked_ns >= FT_GROW_ASK_NS;
    if (!due || !ft_engine_trylock(engine))
        return FT_AGAIN;
    growing->asked = asked;
    growing->looked_ns = now;
    int rc = look_for(engine, growing);
    ft_engine_unlock(engine);
    return rc;
}

struct meeting {
    struct ft_comm *parent;
    struct ft_growing *growing;
    int rc;
};

static bool is_met(void *arg)
{
    struct meeting *meeting = arg;
    meeting->rc = ft_grow_met(meeting->parent, meeting->growing);
    return meeting->rc != FT_AGAIN;
}

/* Joiners get the key of the links with the id, so the id must carry this job's key. */
static int check_key(const struct ft_comm *parent, const unsigned char id[FT_UNIQUE_ID_BYTES])
{
    unsigned char key[FT_KEY_BYTES];
    int rc = ft_unique_id_key(id, key);
    if (rc != FT_OK || !memcmp(key, parent->engine->transports[0]->config.key, sizeof key))
        return rc;
    return ft_fail(FT_USAGE, "CommGrow: the unique id was made by a communicator of another job");
}

/* The root waits for the joiners, for at most half of the time that the others wait for the root.
 */
static int meet_joiners(struct ft_comm *parent, const struct ft_grow *how,
                        struct ft_growing *growing)
{
    struct ft_table *table = NULL;
    uint64_t bound_ns = (uint64_t)parent->limits.init_timeout_ms * 250000u;
    int nold = growing->growth->nold;
    struct ft_endpoint *endpoints = malloc((size_t)nold * sizeof *endpoints);
    int rc = endpoints ? ft_grow_endpoints(parent, how, growing, endpoints)
                       : ft_fail(FT_NOMEM, "no memory for %d endpoints", nold);
    if (rc == FT_OK)
        rc = check_key(parent, *how->id);
    if (rc == FT_OK)
        rc = ft_bootstrap_supply(*how->id, how->nranks, endpoints, nold);
    if (rc == FT_OK)
        rc = ft_bootstrap_collect(*how->id, bound_ns, &parent->failure.leaving, &table);
    free(endpoints);
    if (rc != FT_OK)
        return rc;
    rc = ft_grow_meet(parent, growing, table);
    free(table);
    struct meeting meeting = {parent, growing, FT_AGAIN};
    if (rc != FT_OK)
        return rc;
    if (ft_engine_wait(parent->engine, is_met, &meeting, bound_ns))
        return meeting.rc;
    return ft_fail(FT_TIMEOUT, "of %d joiners that came to the rendezvous %d came to the survivors",
                   growing->njoiners, growing->growth->asked);
}

static int enter(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing,
                 unsigned char *blob)
{
    struct ft_agree_input input = {.kind = FT_AGREE_GROW,
                                   .flags = ft_settings_flags(&how->limits) << 1,
                                   .key = how->key,
                                   .blob = blob};
    ft_engine_lock(parent->engine);
    /* the child's context belongs to another agreement */
    if (growing->met == FT_OK && growing->instance != parent->group->agreements + 1) {
        growing->met = FT_USAGE;
        snprintf(growing->why, sizeof growing->why,
                 "another thread called Agree or Shrink during the grow");
    }
    if (growing->met == FT_OK)
        input.flags |= 1;
    for (int i = 0; how->id && growing->met == FT_OK && i < growing->njoiners; i++)
        input.blob_bytes += (uint32_t)ft_endpoint_encode(blob + input.blob_bytes,
                                                         &growing->joiners[i]);
    int rc = ft_agreement_enter_next_held(parent, &input, &growing->agreement);
    ft_engine_unlock(parent->engine);
    if (rc != FT_NOTSUP || !growing->agreement || !input.blob_bytes)
        return rc;
    growing->met = rc;
    snprintf(growing->why, sizeof growing->why,
             "the endpoints of %d joiners do not fit one message: grow by fewer at once, or raise "
             "FTCCL_CHUNK_BYTES",
             growing->njoiners);
    input.flags &= ~UINT64_C(1);
    input.blob_bytes = 0;
    ft_engine_lock(parent->engine);
    rc = ft_agreement_enter_held(parent, growing->agreement->instance, &input, &growing->agreement);
    ft_engine_unlock(parent->engine);
    return rc;
}

int ft_grow_enter(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing,
                  int met)
{
    growing->met = met;
    if (met != FT_OK)
        snprintf(growing->why, sizeof growing->why, "%s", ft_fail_text());
    if (met == FT_ABORTED)
        return met;
    unsigned char *blob = malloc((size_t)growing->njoiners * FT_ENDPOINT_WIRE_MAX);
    int rc = blob ? enter(parent, how, growing, blob)
                  : ft_fail(FT_NOMEM, "no memory for %d joiners", growing->njoiners);
    free(blob);
    return rc;
}

/* Takes the joiners' endpoints that the root put into the agreement. */
static int take_endpoints(const struct ft_comm *parent, const struct ft_decision *decision,
                          struct ft_growing *growing)
{
    const unsigned char *at = decision->blob;
    size_t left = decision->blob_bytes;
    for (int i = 0; i < growing->njoiners; i++) {
        int used = ft_endpoint_decode(at, left, &growing->joiners[i]);
        if (used <= 0)
            return ft_fail(FT_PROTOCOL, "the joiners' endpoints cannot be understood");
        at += used;
        left -= (size_t)used;
    }
    if (left > 0)
        return ft_fail(FT_PROTOCOL, "the joiners' endpoints cannot be understood");
    ft_engine_lock(parent->engine);
    int rc = check_joiners(parent->engine, growing);
    ft_engine_unlock(parent->engine);
    return rc;
}

/* What the ranks of the parent agreed on, the same on all of them: FT_OK and the order is there. */
static int judge(const struct ft_comm *parent, struct ft_growing *growing,
                 const struct ft_decision *decision)
{
    for (int r = 0; r < parent->view.nranks; r++)
        if (decision->excluded[r])
            return ft_fail(FT_PEER, "rank %d died during the grow", r);
    if (!ft_settings_same(decision->flags >> 1))
        return ft_fail(FT_MISMATCH, "CommGrow: the ranks have different settings of verify, "
                                    "failurePolicy or concurrentP2p");
    if (!(decision->flags & 1))
        return ft_fail(FT_TIMEOUT, "the grow failed on another rank, whose sentence says why");
    if (decision->blob_bytes == 0)
        return ft_fail(FT_USAGE, "no rank gave the unique id of the grow");
    int rc = take_endpoints(parent, decision, growing);
    if (rc == FT_OK)
        put_in_order(growing->growth, decision, growing->joiners);
    return rc;
}

static int open_on_survivor(struct ft_comm *parent, const struct ft_growing *growing,
                            const struct ft_grow *how, struct ft_comm **out)
{
    const struct ft_growth *growth = growing->growth;
    struct ft_place *places = malloc((size_t)growth->nranks * sizeof *places);
    if (!places)
        return ft_fail(FT_NOMEM, "no memory for %d ranks", growth->nranks);
    for (int r = 0; r < growth->nranks; r++) {
        const struct ft_peer *peer = r < growth->nold ? parent->peers[r] : NULL;
        if (r >= growth->nold)
            places[r] = (struct ft_place){growing->joiners[r - growth->nold].engine,
                                          growing->joiners[r - growth->nold].host};
        else
            places[r] = peer ? (struct ft_place){peer->id, peer->host}
                             : (struct ft_place){parent->engine->id, parent->engine->host};
    }
    int rc = ft_growth_child(parent->engine, growth, places, how, parent->view.epoch + 1, out);
    free(places);
    return rc;
}

int ft_grow_end(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing,
                int rc, struct ft_comm **out)
{
    struct ft_growth *growth = growing->growth;
    const struct ft_decision *decision = NULL;
    *out = NULL;
    if (rc == FT_OK)
        rc = ft_agreement_result(parent, growing->agreement, &decision);
    if (rc == FT_OK)
        rc = judge(parent, growing, decision);
    /* the root's own reason says more */
    if (rc != FT_OK && growing->met != FT_OK)
        rc = ft_fail(growing->met, "%s", growing->why);
    for (int i = 0; i < growing->njoiners; i++)
        growth->joiners[i] = growing->joiners[i].engine;
    int learnt = rc == FT_OK ? learn_joiners(parent->engine, growing) : rc;
    ft_growth_conclude(parent->engine, growth, rc, decision != NULL);
    if (rc == FT_OK)
        rc = learnt;
    if (rc == FT_OK)
        rc = open_on_survivor(parent, growing, how, out);
    if (!*out)
        ft_child_abandon(parent, growth->ctx);
    free(growing->joiners);
    return rc;
}

static int grow(struct ft_comm *parent, const struct ft_grow *how, struct ft_comm **out)
{
    struct ft_growing growing;
    *out = NULL;
    int rc = ft_grow_begin(parent, how, &growing);
    if (rc != FT_OK)
        return rc;
    rc = ft_grow_enter(parent, how, &growing,
                       how->id ? meet_joiners(parent, how, &growing) : FT_OK);
    if (rc == FT_OK)
        rc = ft_agreement_wait(parent, growing.agreement);
    return ft_grow_end(parent, how, &growing, rc, out);
}

struct turn {
    struct ft_comm *parent;
    bool mine;
};

static bool is_turn(void *arg)
{
    struct turn *turn = arg;
    int nobody = 0;
    turn->mine = atomic_compare_exchange_strong(&turn->parent->group->growing, &nobody, 1);
    return turn->mine || atomic_load(&turn->parent->failure.leaving);
}

/* Threads of one rank that grow a communicator at once do so one after another. */
int ft_grow_run(struct ft_comm *parent, const struct ft_grow *how, struct ft_comm **out)
{
    struct turn turn = {parent, false};
    *out = NULL;
    ft_engine_wait(parent->engine, is_turn, &turn,
                   (uint64_t)parent->limits.init_timeout_ms * 1000000u);
    if (!turn.mine && atomic_load(&parent->failure.leaving))
        return ft_fail(FT_ABORTED, "rank %d aborted the communicator", parent->view.rank);
    if (!turn.mine)
        return ft_fail(FT_TIMEOUT,
                       "another thread of rank %d did not end its grow of the communicator in time",
                       parent->view.rank);
    ft_retry_pin(parent);
    int rc = grow(parent, how, out);
    ft_retry_unpin(parent);
    atomic_store(&parent->group->growing, 0);
    return rc;
}
