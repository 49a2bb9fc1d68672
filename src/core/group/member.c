/*
 * A member: what a process holds while it takes part in managed membership. Its engine lives as
 * long as the member, with communicators or without. Each view has two communicators: one across
 * replicas, for the user, and one of the replica, in which its ranks agree on commits. This rank
 * listens on the contexts of the next view before the coordinator hears that it is ready. The
 * communicators of the next view are opened before those of the last one end, so peers of both keep
 * their links.
 *
 * The calls of a member come from one thread. The client's thread comes only to revoke a view that
 * is broken; `lock` keeps the communicators alive meanwhile.
 */
#include "core/group/group.h"

#include <stdlib.h>
#include <string.h>

/* A member that cannot open a view gives the others this long to hear of it. */
#define TELL_NS 100000000u
/* Of so many commits that this rank refuses in a row, it waits for the others in the last one. */
#define REFUSALS_AHEAD 4

/* A view by its name, and its communicators. across belongs to the caller of ft_member_view(). */
struct held {
    uint64_t term, epoch; /* epoch 0: there is none */
    struct ft_comm *across, *inside;
};

/* The contexts on which this rank listens for a view that it does not have yet. */
struct bound {
    uint64_t term, epoch;
    struct ft_role role;
    uint64_t across, inside;
    bool listens;
};

struct ft_member {
    struct ft_engine *engine;
    struct ft_client *client;
    struct ft_comm_limits limits;
    char name[32];
    unsigned char key[FT_KEY_BYTES]; /* of links */
    struct bound bound;
    struct ft_managed_view *view; /* NULL: there was none yet */
    bool failed;                  /* it has told the others of a view that it could not open */
    unsigned refusals;            /* commits that this rank refused */
    atomic_int cancel;            /* stays 0 */
    pthread_mutex_t lock;         /* protects the following fields */
    struct held held;
    uint64_t broken_term, broken_epoch; /* the last view of which the coordinator said so */
    char why[256];
};

/* ---- contexts -------------------------------------------------------------------------------- */

/* Every member of the view computes the same. */
static uint64_t context_of(const struct ft_member *member, uint64_t term, uint64_t epoch,
                           const char *use, const void *which, size_t bytes)
{
    unsigned char derived[FT_SECRET_BYTES];
    uint64_t view[2] = {term, epoch}, ctx;
    ft_auth_derive(derived, member->key, use,
                   ft_hash64(which, bytes, ft_hash64(view, sizeof view, 0)));
    memcpy(&ctx, derived, sizeof ctx);
    return ctx;
}

static void abandon(struct ft_member *member, struct ft_comm *last, uint64_t ctx)
{
    if (last)
        ft_child_abandon(last, ctx);
    else
        ft_engine_unbind(member->engine, ctx);
}

/* This member will never have that view. There may be one all the same, if its message was lost
 * with the coordinator: then those who have it must not wait for this rank. */
static void unbind(struct ft_member *member)
{
    if (!member->bound.listens)
        return;
    member->bound.listens = false;
    ft_engine_lock(member->engine);
    ft_agreement_decline(member->engine, member->bound.inside);
    ft_engine_unlock(member->engine);
    abandon(member, member->held.across, member->bound.across);
    abandon(member, member->held.inside, member->bound.inside);
}

static bool is_bound(const struct bound *bound, const struct ft_role *role, uint64_t term,
                     uint64_t epoch)
{
    return bound->listens && bound->term == term && bound->epoch == epoch &&
           bound->role.local_rank == role->local_rank &&
           !strcmp(bound->role.replica, role->replica);
}

/* Called by ft_client_view(). */
static int bind_next(void *arg, const struct ft_role *role, uint64_t term, uint64_t epoch)
{
    struct ft_member *member = arg;
    struct bound *bound = &member->bound;
    if (is_bound(bound, role, term, epoch))
        return FT_OK;
    unbind(member);
    *bound = (struct bound){.term = term, .epoch = epoch, .role = *role};
    bound->across = context_of(member, term, epoch, "rank group", &role->local_rank,
                               sizeof role->local_rank);
    bound->inside = context_of(member, term, epoch, "replica", role->replica,
                               strlen(role->replica));
    int rc = ft_engine_bind(member->engine, bound->across);
    if (rc != FT_OK)
        return rc;
    rc = ft_engine_bind(member->engine, bound->inside);
    if (rc != FT_OK)
        ft_engine_unbind(member->engine, bound->across);
    bound->listens = rc == FT_OK;
    return rc;
}

/* ---- broken views ---------------------------------------------------------------------------- */

/* Called by the client's thread. Commits need no revoking: an agreement leaves out who is silent.
 */
static void on_broken(void *arg, uint64_t term, uint64_t epoch, const char *why)
{
    struct ft_member *member = arg;
    pthread_mutex_lock(&member->lock);
    member->broken_term = term;
    member->broken_epoch = epoch;
    snprintf(member->why, sizeof member->why, "%s", why);
    if (member->held.across && member->held.term == term && member->held.epoch == epoch)
        ft_comm_revoke(member->held.across, why);
    pthread_mutex_unlock(&member->lock);
}

/* From now on a broken view means these. */
static struct held hold(struct ft_member *member, const struct held *next)
{
    pthread_mutex_lock(&member->lock);
    struct held last = member->held;
    member->held = *next;
    if (next->epoch && member->broken_term == next->term && member->broken_epoch == next->epoch)
        ft_comm_revoke(next->across, member->why);
    pthread_mutex_unlock(&member->lock);
    return last;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int open_engine(const struct ft_member_config *config, struct ft_member *member)
{
    const struct ft_role *role = &config->role;
    uint64_t group = ft_hash64(role->group, strlen(role->group), 0);
    ft_auth_derive(member->key, config->secret, "managed links", group);
    int rc = ft_init_engine(&config->settings, (int)role->local_rank, member->key, &member->engine);
    if (rc != FT_OK)
        return rc;
    ft_engine_lock(member->engine);
    member->engine->users++; /* it lives without communicators, too */
    ft_path_finder_set_job(member->engine->paths, context_of(member, 0, 0, "job", "", 0));
    ft_engine_unlock(member->engine);
    return FT_OK;
}

/* The coordinator goes by beats of the client, which are needed whatever ranks send each other. */
static uint32_t beat_ms(const struct ft_comm_limits *limits)
{
    uint32_t most_ms = (uint32_t)limits->suspect_ms / 4, own_ms = (uint32_t)limits->heartbeat_ms;
    return own_ms > 0 && own_ms < most_ms ? own_ms : most_ms;
}

static int open_client(const struct ft_member_config *config, struct ft_member *member)
{
    struct ft_endpoint endpoint;
    int rc = ft_engine_endpoint(member->engine, &endpoint);
    if (rc != FT_OK)
        return rc;
    ft_endpoint_settings(&endpoint, &member->limits);
    struct ft_client_config with = {.env = ft_env_real(),
                                    .naddresses = config->naddresses,
                                    .role = config->role,
                                    .endpoint = &endpoint,
                                    .min_members = config->min_members,
                                    .window_ms = config->window_ms,
                                    .heartbeat_ms = beat_ms(&member->limits),
                                    .suspect_ms = (uint32_t)member->limits.suspect_ms,
                                    .broken = on_broken,
                                    .arg = member};
    memcpy(with.address, config->address, sizeof with.address);
    ft_auth_derive(with.key, config->secret, "daemons", 0); /* ftccld may be the coordinator */
    rc = ft_client_open(&with, &member->client);
    if (rc == FT_OK)
        rc = ft_client_accepted(member->client, (uint64_t)member->limits.init_timeout_ms * 1000000u,
                                &member->cancel);
    return rc;
}

static void close_engine(struct ft_engine *engine)
{
    ft_engine_lock(engine);
    bool last = --engine->users == 0; /* otherwise the user has communicators split from it */
    ft_engine_unlock(engine);
    if (last)
        ft_rank_close(engine);
    ft_engine_unref(engine);
}

int ft_member_open(const struct ft_member_config *config, struct ft_member **out)
{
    struct ft_member *member = calloc(1, sizeof *member);
    if (!member)
        return ft_fail(FT_NOMEM, "no memory for a member");
    pthread_mutex_init(&member->lock, NULL);
    member->limits = config->settings.limits;
    snprintf(member->name, sizeof member->name, "%s", config->name);
    int rc = open_engine(config, member);
    if (rc == FT_OK)
        rc = open_client(config, member);
    if (rc == FT_OK)
        *out = member;
    else
        ft_member_close(member);
    return rc;
}

static void close_inside(struct ft_comm *inside)
{
    if (!inside)
        return;
    if (!ft_comm_is_quiet(inside))
        ft_comm_abort(inside);
    ft_comm_close(inside);
}

void ft_member_release(struct ft_member *member)
{
    pthread_mutex_lock(&member->lock);
    member->held.across = NULL;
    pthread_mutex_unlock(&member->lock);
}

void ft_member_close(struct ft_member *member)
{
    char why[FT_FAIL_BYTES]; /* the caller's sentence */
    snprintf(why, sizeof why, "%s", ft_fail_text());
    if (member->client)
        ft_client_close(member->client, true);
    struct held none = {0}, last = hold(member, &none);
    /* Other ranks of the replica may wait for the end of a commit that this one knows. */
    if (last.inside && ft_comm_is_quiet(last.inside))
        ft_comm_flush(last.inside);
    close_inside(last.inside);
    if (member->engine) {
        unbind(member);
        close_engine(member->engine);
    }
    ft_managed_view_free(member->view);
    pthread_mutex_destroy(&member->lock);
    free(member);
    ft_fail(FT_OK, "%s", why);
}

void ft_member_role(struct ft_member *member, struct ft_role *out)
{
    ft_client_role(member->client, out);
}

/* ---- the peers of a view --------------------------------------------------------------------- */

/* Nobody tells about the peers of a view that is over, except the next view. */
static void unlearn(struct ft_engine *engine, const struct ft_comm *comm)
{
    for (int r = 0; comm && r < comm->view.nranks; r++)
        if (comm->peers[r])
            ft_engine_unlearn(engine, comm->peers[r]);
}

static bool is_known(const struct ft_peer *peer, const struct ft_endpoint *endpoint)
{
    return peer->address && peer->address_bytes == endpoint->address_bytes &&
           !memcmp(peer->address, endpoint->address, endpoint->address_bytes);
}

/* returns: the peer may have been in views without this rank. */
static int learn_peer(struct ft_engine *engine, const struct ft_endpoint *endpoint, int rank,
                      bool returns)
{
    struct ft_peer *peer = ft_engine_peer(engine, endpoint->engine);
    int rc = FT_OK;
    if (!peer)
        return ft_fail(FT_NOMEM, "no memory for a peer");
    if (!is_known(peer, endpoint))
        rc = ft_engine_learn(engine, endpoint->engine, endpoint->host, endpoint->address,
                             endpoint->address_bytes, rank);
    if (rc != FT_OK)
        return rc;
    peer->rank = rank;
    peer->told = true;
    if (returns || ft_peer_is_gone(peer) || peer->departed)
        ft_engine_readmit(engine, peer);
    return FT_OK;
}

static int learn_ranks(struct ft_engine *engine, const struct ft_endpoint *endpoint, int nranks,
                       int rank, bool returns)
{
    int rc = FT_OK;
    for (int r = 0; r < nranks && rc == FT_OK; r++)
        if (r != rank)
            rc = learn_peer(engine, &endpoint[r], r, returns);
    return rc;
}

static int learn_view(struct ft_member *member, const struct ft_managed_view *view)
{
    struct ft_engine *engine = member->engine;
    const struct held *held = &member->held;
    bool returns = held->epoch && (view->term != held->term || view->epoch != held->epoch + 1);
    ft_engine_lock(engine);
    unlearn(engine, held->across);
    unlearn(engine, held->inside);
    engine->rank = view->rank; /* for messages to people */
    int rc = learn_ranks(engine, view->peer, view->nranks, view->rank, returns);
    if (rc == FT_OK)
        rc = learn_ranks(engine, view->local, view->local_size, view->local_rank, returns);
    ft_engine_unlock(engine);
    return rc;
}

/* Starts the links to the ranks that get this one's heartbeats, as far as they are near or not.
 * Others are made when they are needed. */
static void connect_to(struct ft_comm *comm, bool near)
{
    struct ft_engine *engine = comm->engine;
    struct ft_link *link;
    int watcher[FT_WATCHERS_MAX];
    int n = ft_detect_watchers(comm->view.nranks, comm->view.rank, watcher, FT_WATCHERS_MAX);
    for (int i = 0; i < n; i++) {
        struct ft_peer *peer = comm->peers[watcher[i]];
        if ((peer->host == engine->host) == near)
            ft_engine_link(engine, peer, &link);
    }
}

/* The coordinator may not know yet that a process of the view has ended. */
static void look_for_dead(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (peer && (peer->state == FT_PEER_DEAD || ft_death_watch_ended(peer)))
            ft_comm_peer_lost(comm, peer, FT_LINK, true);
    }
}

static void begin_links(struct ft_member *member, const struct held *held)
{
    ft_engine_lock(member->engine);
    for (int near = 1; near >= 0; near--) {
        connect_to(held->inside, near);
        connect_to(held->across, near);
    }
    look_for_dead(held->across);
    look_for_dead(held->inside);
    ft_engine_unlock(member->engine);
    ft_engine_kick(member->engine);
}

/* ---- the next view --------------------------------------------------------------------------- */

static int open_across(struct ft_member *member, const struct ft_managed_view *view,
                       struct held *next)
{
    struct ft_opening opening = {.endpoint = view->peer,
                                 .nranks = view->nranks,
                                 .rank = view->rank,
                                 .ctx = member->bound.across,
                                 .epoch = view->epoch,
                                 .name = member->name,
                                 .limits = &member->limits};
    return ft_init_open(member->engine, &opening, &next->across);
}

static int open_inside(struct ft_member *member, const struct ft_managed_view *view,
                       struct held *next)
{
    struct ft_opening opening = {.endpoint = view->local,
                                 .nranks = view->local_size,
                                 .rank = view->local_rank,
                                 .ctx = member->bound.inside,
                                 .epoch = view->epoch,
                                 .name = "replica",
                                 .limits = &member->limits};
    return ft_init_open(member->engine, &opening, &next->inside);
}

static void tell_ranks(struct ft_member *member, const struct ft_endpoint *endpoint, int nranks,
                       int rank, uint64_t ctx)
{
    for (int r = 0; r < nranks; r++) {
        struct ft_peer *peer = r == rank ? NULL
                                         : ft_engine_peer(member->engine, endpoint[r].engine);
        if (peer)
            ft_abandoned_tell(member->engine, peer, ctx);
    }
}

/* As unlearn(), of a view that has no communicators. */
static void unlearn_ranks(struct ft_engine *engine, const struct ft_endpoint *endpoint, int nranks,
                          int rank)
{
    for (int r = 0; r < nranks; r++) {
        struct ft_peer *peer = r == rank ? NULL : ft_engine_peer(engine, endpoint[r].engine);
        if (peer)
            ft_engine_unlearn(engine, peer);
    }
}

static bool is_posted(void *arg)
{
    struct ft_engine *engine = arg;
    return atomic_load_explicit(&engine->unsent, memory_order_relaxed) == 0;
}

/* The others have the view already, and must not wait for this rank in it. */
static void give_up(struct ft_member *member, const struct ft_managed_view *view,
                    const struct held *next)
{
    char why[FT_FAIL_BYTES]; /* the caller's sentence */
    snprintf(why, sizeof why, "%s", ft_fail_text());
    member->failed = true;
    learn_view(member, view); /* it may have failed at one of them */
    ft_engine_lock(member->engine);
    tell_ranks(member, view->peer, view->nranks, view->rank, member->bound.across);
    tell_ranks(member, view->local, view->local_size, view->local_rank, member->bound.inside);
    ft_agreement_decline(member->engine, member->bound.inside);
    ft_engine_unlock(member->engine);
    ft_engine_wait(member->engine, is_posted, member->engine, TELL_NS);
    /* A communicator that is open listens on its context, and its end ends that. */
    member->bound.listens = false;
    if (next->across) {
        ft_comm_abort(next->across);
        ft_comm_close(next->across);
    } else
        ft_engine_unbind(member->engine, member->bound.across);
    ft_engine_unbind(member->engine, member->bound.inside);
    ft_engine_lock(member->engine);
    unlearn_ranks(member->engine, view->peer, view->nranks, view->rank);
    unlearn_ranks(member->engine, view->local, view->local_size, view->local_rank);
    ft_engine_unlock(member->engine);
    ft_fail(FT_OK, "%s", why);
}

static int open_view(struct ft_member *member, const struct ft_managed_view *view,
                     struct held *next)
{
    *next = (struct held){.term = view->term, .epoch = view->epoch};
    if (!member->bound.listens || member->bound.term != view->term ||
        member->bound.epoch != view->epoch)
        return ft_fail(FT_PROTOCOL,
                       "the coordinator sent view %llu, but this member listens for view %llu",
                       (unsigned long long)view->epoch, (unsigned long long)member->bound.epoch);
    int rc = learn_view(member, view);
    if (rc == FT_OK)
        rc = open_across(member, view, next);
    if (rc == FT_OK)
        rc = open_inside(member, view, next);
    if (rc != FT_OK) {
        give_up(member, view, next);
        return rc;
    }
    member->bound.listens = false; /* from now on the communicators do */
    return FT_OK;
}

static void keep_view(struct ft_member *member, struct ft_managed_view *view)
{
    ft_managed_view_free(member->view);
    member->view = view;
}

static int take_view(struct ft_member *member, struct ft_managed_view *view)
{
    struct held next;
    if (view->same && member->held.across && !member->failed) {
        keep_view(member, view);
        return FT_OK;
    }
    int rc = open_view(member, view, &next);
    if (rc != FT_OK) {
        ft_managed_view_free(view);
        return rc;
    }
    member->failed = false;
    struct held last = hold(member, &next);
    begin_links(member, &next);
    close_inside(last.inside);
    keep_view(member, view);
    FT_LOG(INFO, "init", view->rank,
           "view %llu: %d replicas, step %llu, %d ranks of the group have it%s",
           (unsigned long long)view->epoch, view->nranks, (unsigned long long)view->step,
           view->nhealthy, view->behind ? "; this one is behind" : "");
    return FT_OK;
}

/* The engines of the view whose processes have ended. Returns their number. */
static int list_dead(const struct ft_comm *comm, uint64_t *dead)
{
    int n = 0;
    for (int r = 0; comm && r < comm->view.nranks; r++)
        if (comm->peers[r] &&
            (comm->peers[r]->state == FT_PEER_DEAD || ft_death_watch_ended(comm->peers[r])))
            dead[n++] = comm->peers[r]->id;
    return n;
}

static bool has_failed(const struct ft_comm *comm)
{
    return comm && ft_comm_state(comm) != FT_COMM_OPEN;
}

static int ask_for_view(struct ft_member *member, uint64_t step, struct ft_managed_view **view)
{
    const struct held *held = &member->held; /* only this thread changes it */
    int most = (held->across ? held->across->view.nranks : 0) +
               (held->inside ? held->inside->view.nranks : 0);
    uint64_t *dead = calloc((size_t)most + 1, sizeof *dead);
    if (!dead)
        return ft_fail(FT_NOMEM, "no memory to ask for a view");
    ft_engine_lock(member->engine);
    int ndead = list_dead(held->across, dead);
    ndead += list_dead(held->inside, dead + ndead);
    ft_engine_unlock(member->engine);
    struct ft_view_ask ask = {.step = step,
                              .failed = member->failed || ndead > 0 || has_failed(held->across) ||
                                        has_failed(held->inside),
                              .dead = dead,
                              .ndead = ndead,
                              .timeout_ns = (uint64_t)member->limits.init_timeout_ms * 1000000u,
                              .cancel = &member->cancel,
                              .bind = bind_next,
                              .arg = member};
    int rc = ft_client_view(member->client, &ask, view);
    free(dead);
    return rc;
}

int ft_member_view(struct ft_member *member, uint64_t step, const struct ft_managed_view **view,
                   struct ft_comm **comm)
{
    struct ft_managed_view *next = NULL;
    int rc = ask_for_view(member, step, &next);
    if (rc == FT_OK)
        rc = take_view(member, next);
    if (rc != FT_OK)
        return rc;
    *view = member->view;
    *comm = member->held.across;
    return FT_OK;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* Of the flags, bit 0 says that all ranks have succeeded. The others say whether all gave the same
 * step: 31 bits of it, and the same bits inverted, of which an AND leaves all only then. */
#define STEP_MASK 0x7fffffffu
static uint64_t flags_of(uint64_t step, bool ok)
{
    uint64_t bits = step & STEP_MASK;
    return bits << 1 | (bits ^ STEP_MASK) << 32 | (ok ? 1 : 0);
}

static int judge(const struct ft_member *member, const struct ft_decision *decision, uint64_t step,
                 bool *commit)
{
    int all = member->held.inside->view.nranks;
    if (decision->nsurvivors == all && (decision->flags | 1) != (flags_of(step, true) | 1))
        return ft_fail(FT_USAGE,
                       "MemberCommit: the ranks of the replica gave different steps; this one "
                       "gave %llu",
                       (unsigned long long)step);
    *commit = decision->nsurvivors == all && (decision->flags & 1);
    return FT_OK;
}

static int agree(const struct ft_member *member, uint64_t step, bool ok, bool *commit)
{
    const struct ft_decision *decision;
    struct ft_comm *inside = member->held.inside;
    struct ft_agree_input input = {
        .kind = FT_AGREE_FLAGS, .flags = flags_of(step, ok), .key = inside->view.rank};
    int rc = ft_comm_agree(inside, &input, &decision);
    if (rc == FT_OK)
        return judge(member, decision, step, commit);
    if (rc == FT_FENCED) /* the others have left this rank out, so they have not committed */
        return FT_OK;
    char why[FT_FAIL_BYTES];
    snprintf(why, sizeof why, "%s", ft_fail_text());
    return ft_fail(rc == FT_NOQUORUM ? FT_PEER : rc, "MemberCommit: %s", why);
}

/* Whatever the others say, and even if they leave this rank out, nobody commits. So this rank need
 * not wait for them. */
static int refuse(const struct ft_member *member, uint64_t step)
{
    struct ft_agreement *agreement;
    struct ft_comm *inside = member->held.inside;
    struct ft_agree_input input = {
        .kind = FT_AGREE_FLAGS, .flags = flags_of(step, false), .key = inside->view.rank};
    int rc = ft_agreement_enter(inside, &input, &agreement);
    ft_engine_kick(inside->engine);
    return rc == FT_FENCED ? FT_OK : rc;
}

int ft_member_commit(struct ft_member *member, uint64_t step, bool ok, bool *commit)
{
    *commit = false;
    if (!member->held.inside) /* only this thread changes it */
        return ft_fail(FT_USAGE, "MemberCommit: this member has no view yet");
    /* other ranks answer only a few agreements that they have not come to */
    bool waits = ok || ++member->refusals % REFUSALS_AHEAD == 0;
    return waits ? agree(member, step, ok, commit) : refuse(member, step);
}
