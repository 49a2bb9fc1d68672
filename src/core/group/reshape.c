/*
 * Split and shrink make communicators from others, over the parent's engine and links. They run in
 * a user's or helper thread and block within the init bound. Each rank listens on the child's
 * context before any rank can know that there is a child, so no message of the child can come too
 * early.
 */
#include "core/group/group.h"

#include <stdlib.h>
#include <string.h>

struct child {
    uint64_t ctx, epoch;
    int nmembers;
    const int *members; /* [nmembers] ranks of the parent in the child's order */
    const char *name;
    const struct ft_comm_limits *limits;
};

/* Opens the child of those members. This rank is one of them, and listens on its context. */
static int open_child(const struct ft_comm *parent, const struct child *child, struct ft_comm **out)
{
    const struct ft_view *old = &parent->view;
    size_t n = (size_t)child->nmembers;
    int *host = malloc(n * sizeof *host);
    uint64_t *peer = malloc(n * sizeof *peer);
    struct ft_view view = {
        .epoch = child->epoch, .nranks = child->nmembers, .host = host, .peer = peer};
    int rc = host && peer ? FT_OK : ft_fail(FT_NOMEM, "no memory for %zu ranks", n);
    for (int i = 0; i < child->nmembers && rc == FT_OK; i++) {
        int same = 0;
        while (same < i && old->host[child->members[same]] != old->host[child->members[i]])
            same++;
        host[i] = same < i ? host[same] : view.nhosts++;
        peer[i] = old->peer[child->members[i]];
        if (child->members[i] == old->rank)
            view.rank = i;
    }
    if (rc == FT_OK)
        rc = ft_comm_open(parent->engine, &view, child->ctx, child->name, child->limits, out);
    free(host);
    free(peer);
    return rc;
}

/* ---- split ----------------------------------------------------------------------------------- */

#define NONE 0 /* the settings of a rank that cannot make its child */
struct choice {
    int32_t color, key, settings;
};

/* Returns NULL if memory runs out. */
static struct ft_stream *begin_exchange(struct ft_comm *comm, int32_t *all, size_t words, int mark)
{
    struct ft_stream *stream = ft_stream_new();
    struct ft_entry *entry = stream ? ft_entry_new(&stream, 1) : NULL;
    struct ft_work *work = entry ? ft_entry_work(entry, comm) : NULL;
    struct ft_op *op = work ? ft_op_new() : NULL;
    if (op) {
        op->coll = (struct ft_coll){
            .kind = FT_ALLGATHER, .type = FT_INT32, .count = words, .root = mark};
        op->in = &all[(size_t)comm->view.rank * words];
        op->out = all;
        op->epoch = comm->view.epoch;
        ft_work_add(work, op);
        ft_entry_submit(entry);
        return stream;
    }
    if (entry)
        ft_entry_free(entry);
    if (stream)
        ft_stream_release(stream);
    return NULL;
}

static int end_exchange(struct ft_stream *stream)
{
    if (!stream)
        return ft_fail(FT_NOMEM, "no memory for an exchange between the ranks");
    int rc = ft_stream_wait(stream);
    ft_stream_release(stream);
    return rc;
}

int ft_exchange(struct ft_comm *comm, int32_t *all, size_t words, int mark)
{
    return end_exchange(begin_exchange(comm, all, words, mark));
}

static bool before(const struct choice *all, int a, int b)
{
    return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

/* Lists the ranks of this rank's color in the child's order. Returns their number. */
static int members_of(const struct choice *all, int nranks, int rank, int *members)
{
    int n = 0;
    for (int r = 0; r < nranks; r++) {
        if (all[r].color != all[rank].color)
            continue;
        int at = n++;
        for (; at > 0 && before(all, r, members[at - 1]); at--)
            members[at] = members[at - 1];
        members[at] = r;
    }
    return n;
}

/* Checks the settings that must be the same on all ranks of the child. */
static int check_settings(const struct ft_comm *parent, const struct choice *all)
{
    int mine = parent->view.rank;
    for (int r = 0; r < parent->view.nranks; r++)
        if (all[r].color == all[mine].color && all[r].settings == NONE)
            return ft_fail(FT_PEER, "CommSplit: rank %d could not take part", r);
    for (int r = 0; r < parent->view.nranks; r++)
        if (all[r].color == all[mine].color && all[r].settings != all[mine].settings)
            return ft_fail(FT_MISMATCH,
                           "CommSplit: rank %d has verify=%d and failurePolicy=%d, rank %d "
                           "verify=%d and failurePolicy=%d",
                           mine, all[mine].settings & 1, all[mine].settings >> 2 & 1, r,
                           all[r].settings & 1, all[r].settings >> 2 & 1);
    return FT_OK;
}

static int split(struct ft_comm *parent, int color, int key, const char *name,
                 const struct ft_comm_limits *limits, struct ft_comm **out)
{
    struct ft_engine *engine = parent->engine;
    size_t n = (size_t)parent->view.nranks;
    struct choice *all = calloc(n, sizeof *all);
    int *members = calloc(n, sizeof *members);
    /* the n-th exchange belongs to the n-th child, whatever other threads split */
    pthread_mutex_lock(&parent->group->split_lock);
    ft_engine_lock(engine);
    uint32_t child = ++parent->group->children;
    ft_engine_unlock(engine);
    int32_t salt[2] = {(int32_t)child, color};
    uint64_t ctx = ft_hash64(salt, sizeof salt, parent->ctx);
    int rc = all && members ? ft_engine_bind(engine, ctx) : FT_NOMEM;
    bool bound = rc == FT_OK;
    struct ft_stream *stream = NULL;
    *out = NULL;
    if (all) { /* also if this rank cannot go on, because the others wait for its words */
        all[parent->view.rank] = (struct choice){color, key,
                                                 bound ? (int32_t)ft_settings_flags(limits) : NONE};
        stream = begin_exchange(parent, (int32_t *)all, sizeof *all / sizeof(int32_t),
                                FT_SPLIT_MARK);
    }
    pthread_mutex_unlock(&parent->group->split_lock);
    int told = end_exchange(stream);
    rc = bound ? told : ft_fail(FT_NOMEM, "no memory for a split");
    if (rc == FT_OK && color >= 0)
        rc = check_settings(parent, all);
    if (rc == FT_OK && color >= 0) {
        struct child of_color = {.ctx = ctx,
                                 .epoch = parent->view.epoch,
                                 .members = members,
                                 .name = name,
                                 .limits = limits};
        of_color.nmembers = members_of(all, parent->view.nranks, parent->view.rank, members);
        rc = open_child(parent, &of_color, out);
    }
    if (bound && rc != FT_OK)
        ft_child_abandon(parent, ctx);
    else if (bound && !*out)
        ft_engine_unbind(engine, ctx); /* no color */
    free(members);
    free(all);
    return rc;
}

int ft_split_run(struct ft_comm *parent, int color, int key, const char *name,
                 const struct ft_comm_limits *limits, struct ft_comm **out)
{
    ft_retry_pin(parent);
    int rc = split(parent, color, key, name, limits, out);
    ft_retry_unpin(parent);
    return rc;
}

/* ---- shrink ---------------------------------------------------------------------------------- */

static bool has_no_work(void *arg)
{
    return atomic_load_explicit(&((struct ft_comm *)arg)->works.queued, memory_order_acquire) == 0;
}

/* Operations under way end first: by themselves, or with FT_REVOKED if `abort` is set. */
static int end_pending(struct ft_comm *parent, bool abort)
{
    if (abort)
        ft_comm_revoke(parent, "shrunk");
    if (ft_engine_wait(parent->engine, has_no_work, parent,
                       (uint64_t)parent->limits.init_timeout_ms * 1000000u))
        return FT_OK;
    return ft_fail(FT_TIMEOUT, "operations of rank %d did not end within %lld ms before the shrink",
                   parent->view.rank, (long long)parent->limits.init_timeout_ms);
}

static int check_list(const struct ft_comm *parent, const struct ft_shrink *how)
{
    for (int i = 0; i < how->count; i++) {
        if (how->exclude[i] < 0 || how->exclude[i] >= parent->view.nranks)
            return ft_fail(FT_INVAL, "shrink: rank %d of %d is to be excluded", how->exclude[i],
                           parent->view.nranks);
        if (how->exclude[i] == parent->view.rank)
            return ft_fail(FT_USAGE, "shrink: rank %d excludes itself", parent->view.rank);
    }
    return FT_OK;
}

static int open_shrunk(struct ft_comm *parent, const struct ft_shrink *how, uint64_t ctx,
                       const struct ft_decision *decision, struct ft_comm **out)
{
    struct child child = {.ctx = ctx,
                          .epoch = parent->view.epoch + 1,
                          .nmembers = decision->nsurvivors,
                          .members = decision->order,
                          .name = how->name,
                          .limits = &how->limits};
    if (decision->nsurvivors >= how->limits.min_ranks)
        return open_child(parent, &child, out);
    return ft_fail(FT_NOQUORUM, "%d ranks are left, fewer than minRanks %lld", decision->nsurvivors,
                   (long long)how->limits.min_ranks);
}

int ft_shrink_begin(struct ft_comm *parent, const struct ft_shrink *how,
                    struct ft_shrinking *shrinking)
{
    unsigned char *marks = calloc((size_t)parent->view.nranks, 1);
    struct ft_agree_input input = {.kind = FT_AGREE_SHRINK,
                                   .flags = ft_settings_flags(&how->limits),
                                   .key = how->key,
                                   .exclude = marks};
    int rc = marks ? FT_OK : ft_fail(FT_NOMEM, "no memory to shrink");
    for (int i = 0; i < how->count && rc == FT_OK; i++)
        marks[how->exclude[i]] = 1;
    ft_engine_lock(parent->engine);
    *shrinking = (struct ft_shrinking){.ctx = ft_agreement_child_held(parent, FT_AGREE_SHRINK)};
    if (rc == FT_OK)
        rc = ft_engine_bind_held(parent->engine, shrinking->ctx);
    if (rc == FT_OK) {
        rc = ft_agreement_enter_next_held(parent, &input, &shrinking->agreement);
        if (rc != FT_OK)
            ft_engine_unbind_held(parent->engine, shrinking->ctx);
    }
    ft_engine_unlock(parent->engine);
    free(marks);
    return rc;
}

int ft_shrink_end(struct ft_comm *parent, const struct ft_shrink *how,
                  const struct ft_shrinking *shrinking, int rc, struct ft_comm **out)
{
    const struct ft_decision *decision;
    *out = NULL;
    if (rc == FT_OK)
        rc = ft_agreement_result(parent, shrinking->agreement, &decision);
    if (rc == FT_OK && !ft_settings_same(decision->flags))
        rc = ft_fail(FT_MISMATCH,
                     "CommShrink: the ranks have different settings of verify or failurePolicy");
    if (rc == FT_OK)
        rc = open_shrunk(parent, how, shrinking->ctx, decision, out);
    if (!*out)
        ft_child_abandon(parent, shrinking->ctx);
    return rc;
}

int ft_shrink_run(struct ft_comm *parent, const struct ft_shrink *how, struct ft_comm **out)
{
    struct ft_shrinking shrinking;
    *out = NULL;
    ft_retry_pin(parent);
    int rc = check_list(parent, how);
    if (rc == FT_OK)
        rc = end_pending(parent, how->abort);
    if (rc == FT_OK)
        rc = ft_shrink_begin(parent, how, &shrinking);
    if (rc == FT_OK)
        rc = ft_shrink_end(parent, how, &shrinking, ft_agreement_wait(parent, shrinking.agreement),
                           out);
    ft_retry_unpin(parent);
    if (rc == FT_OK) {
        ft_engine_lock(parent->engine);
        ft_gpu_let_go(parent);
        ft_engine_unlock(parent->engine);
    }
    return rc;
}
