/*
 * Managed membership: members and coordinators. Handles are listed while they live, so a handle
 * that is not one, or has ended, is refused.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

struct ftcclMember {
    struct ftcclMember *next;
    bool busy; /* a call is inside */
    struct ft_member *core;
    struct ftcclComm settings; /* of the communicators: name, limits, blocking, transports */
    ftcclComm_t comm;          /* of the last view; NULL: there was none */
    ftcclComm_t spare;         /* the handle for the next one */
};

struct ftcclCoordinator {
    struct ftcclCoordinator *next;
    struct ft_coordinator *core;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the lists and `busy` */
static struct ftcclMember *members;
static struct ftcclCoordinator *coordinators;

/* ---- handles --------------------------------------------------------------------------------- */

static void list_member(ftcclMember_t member)
{
    pthread_mutex_lock(&lock);
    member->next = members;
    members = member;
    pthread_mutex_unlock(&lock);
}

static int enter_held(ftcclMember_t member)
{
    ftcclMember_t at = members;
    while (at && at != member)
        at = at->next;
    if (!at)
        return ft_fail(FT_INVAL, "%p is not a member, or has left", (void *)member);
    if (at->busy)
        return ft_fail(FT_USAGE, "another thread is in a call of this member");
    at->busy = true;
    return FT_OK;
}

/* FT_OK: the call is inside until leave_call() or unlist_member(). */
static int enter_call(ftcclMember_t member)
{
    int rc = ft_enter_library();
    if (rc != FT_OK)
        return rc;
    if (ft_group_is_open())
        return ft_fail(FT_USAGE, "a call of a member cannot be part of a group");
    pthread_mutex_lock(&lock);
    rc = enter_held(member);
    pthread_mutex_unlock(&lock);
    return rc;
}

static void leave_call(ftcclMember_t member)
{
    pthread_mutex_lock(&lock);
    member->busy = false;
    pthread_mutex_unlock(&lock);
}

static void unlist_member(ftcclMember_t member)
{
    pthread_mutex_lock(&lock);
    ftcclMember_t *at = &members;
    while (*at != member)
        at = &(*at)->next;
    *at = member->next;
    pthread_mutex_unlock(&lock);
}

/* ---- join ------------------------------------------------------------------------------------ */

/* One coordinator of a list; *list moves behind it. */
static int take_address(const char **list, struct ft_member_config *config)
{
    char text[300];
    size_t len = strcspn(*list, ",");
    int room = FT_COORDINATORS_MOST - config->naddresses;
    if (len >= sizeof text)
        return ft_fail(FT_INVAL, "the address of a coordinator has %zu characters", len);
    memcpy(text, *list, len);
    text[len] = '\0';
    *list += len + ((*list)[len] == ',');
    if (room == 0)
        return ft_fail(FT_INVAL, "the coordinators have more than %d addresses",
                       FT_COORDINATORS_MOST);
    int n = ft_net_resolve(text, &config->address[config->naddresses], room);
    if (n < 0)
        return n;
    config->naddresses += n;
    return FT_OK;
}

static int take_addresses(const char *coordinator, struct ft_member_config *config)
{
    const char *list = coordinator ? coordinator : ft_param_str(FT_PARAM_COORDINATOR);
    if (!*list)
        return ft_fail(FT_USAGE, "MemberJoin: no coordinator is given, and FTCCL_COORDINATOR is "
                                 "not set");
    int rc = FT_OK;
    while (*list && rc == FT_OK)
        rc = take_address(&list, config);
    return rc;
}

static int take_name(const char *what, const char *name, char to[FT_NAME_BYTES])
{
    if (!name || !*name)
        return ft_fail(FT_INVAL, "MemberJoin: the %s has no name", what);
    if (snprintf(to, FT_NAME_BYTES, "%s", name) >= FT_NAME_BYTES)
        return ft_fail(FT_INVAL, "MemberJoin: the name of the %s is longer than %d characters",
                       what, FT_NAME_BYTES - 1);
    return FT_OK;
}

static int take_place(int local_rank, int local_size, struct ft_role *role)
{
    if (local_size < 1 || local_size > FT_LOCAL_MOST || local_rank < 0 || local_rank >= local_size)
        return ft_fail(FT_INVAL, "MemberJoin: local rank %d of %d; a replica has at most %d ranks",
                       local_rank, local_size, FT_LOCAL_MOST);
    role->local_rank = (uint32_t)local_rank;
    role->local_size = (uint32_t)local_size;
    return FT_OK;
}

static int take_settings(ftcclMember_t member, const ftcclConfig_t *config)
{
    struct ftcclComm *settings = &member->settings;
    ft_config_defaults(settings);
    int rc = ft_config_take(settings, config);
    ft_config_override(settings);
    if (rc == FT_OK && settings->limits.retry)
        rc = ft_fail(FT_USAGE, "MemberJoin: failurePolicy is retry, but views come from the "
                               "coordinator alone");
    return rc;
}

static void complete(const struct ftcclMember *member, struct ft_member_config *config)
{
    const struct ftcclComm *settings = &member->settings;
    config->name = *settings->name ? settings->name : config->role.group;
    config->settings.limits = settings->limits;
    config->min_members = (uint32_t)settings->min_members;
    config->window_ms = (uint32_t)settings->join_window_ms;
    config->settings.transports = *settings->transports ? settings->transports : NULL;
    config->settings.gpu = ft_device_gpu_of_thread();
}

static int prepare(ftcclMember_t member, struct ft_member_config *config, const ftcclConfig_t *user)
{
    int rc = take_settings(member, user);
    if (rc == FT_OK)
        rc = ft_secret_of_job("a coordinator is given", config->secret);
    member->spare = rc == FT_OK ? ft_comm_handle_new() : NULL;
    if (rc == FT_OK && !member->spare)
        rc = FT_NOMEM;
    if (rc == FT_OK)
        complete(member, config);
    return rc;
}

static int join(struct ft_member_config *config, const ftcclConfig_t *user, ftcclMember_t *out)
{
    ftcclMember_t member = calloc(1, sizeof *member);
    if (!member)
        return ft_fail(FT_NOMEM, "no memory for a member");
    int rc = prepare(member, config, user);
    if (rc == FT_OK)
        rc = ft_member_open(config, &member->core);
    if (rc == FT_OK) {
        list_member(member);
        *out = member;
        return FT_OK;
    }
    if (member->spare)
        ft_comm_handle_free(member->spare);
    free(member);
    return rc;
}

FT_EXPORT ftcclResult_t ftcclMemberJoin(const char *coordinator, const char *group,
                                        const char *replica, int localRank, int localSize,
                                        ftcclConfig_t *config, ftcclMember_t *member)
{
    ft_thread_enters(FT_THREAD_MEMBER_JOIN, __builtin_return_address(0));
    struct ft_member_config with = {.naddresses = 0};
    int rc = ft_enter_library();
    if (rc == FT_OK && !member)
        rc = ft_fail(FT_INVAL, "MemberJoin: member is NULL");
    if (rc == FT_OK)
        rc = take_name("group", group, with.role.group);
    if (rc == FT_OK && replica)
        rc = take_name("replica", replica, with.role.replica);
    if (rc == FT_OK && replica)
        rc = take_place(localRank, localSize, &with.role);
    if (rc == FT_OK)
        rc = take_addresses(coordinator, &with);
    if (rc == FT_OK)
        rc = join(&with, config, member);
    return ft_return(NULL, rc);
}

/* ---- view ------------------------------------------------------------------------------------ */

static enum ft_end end_of(ftcclComm_t comm, enum ft_end quietly)
{
    return ft_comm_is_quiet(comm->core) ? quietly : FT_END_ABORT;
}

static void take_comm(ftcclMember_t member, struct ft_comm *core)
{
    ftcclComm_t comm = member->spare, last = member->comm;
    const struct ftcclComm *settings = &member->settings;
    if (last && last->core == core)
        return;
    comm->owner = member;
    comm->core = core;
    comm->blocking = settings->blocking;
    comm->limits = settings->limits;
    memcpy(comm->name, settings->name, sizeof comm->name);
    memcpy(comm->transports, settings->transports, sizeof comm->transports);
    atomic_store_explicit(&comm->state, FT_HANDLE_READY, memory_order_release);
    member->comm = comm;
    member->spare = NULL;
    if (last)
        ft_comm_end(last, end_of(last, FT_END_CLOSE), member);
}

static void fill(const struct ft_managed_view *view, ftcclView_t *out)
{
    ftcclView_t all = {.size = out->size,
                       .epoch = view->epoch,
                       .step = view->step,
                       .nranks = view->nranks,
                       .rank = view->rank,
                       .nhealthy = view->nhealthy,
                       .behind = view->behind,
                       .nsources = view->nsources,
                       .sources = view->sources};
    memcpy(out, &all, ft_min(out->size, sizeof all));
}

static int next_view(ftcclMember_t member, uint64_t step, ftcclView_t *view, ftcclComm_t *comm)
{
    const struct ft_managed_view *next;
    struct ft_comm *core;
    if (!member->spare)
        member->spare = ft_comm_handle_new();
    int rc = member->spare ? ft_member_view(member->core, step, &next, &core) : FT_NOMEM;
    if (rc != FT_OK)
        return rc;
    take_comm(member, core);
    fill(next, view);
    *comm = member->comm;
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclMemberView(ftcclMember_t member, uint64_t step, ftcclView_t *view,
                                        ftcclComm_t *comm)
{
    ft_thread_enters(FT_THREAD_MEMBER_VIEW, __builtin_return_address(0));
    int rc = enter_call(member);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!view || !comm)
        rc = ft_fail(FT_INVAL, "MemberView: view or comm is NULL");
    else if (view->size < offsetof(ftcclView_t, sources) + sizeof view->sources)
        rc = ft_fail(FT_INVAL, "MemberView: view->size is %zu, not sizeof(ftcclView_t)",
                     view->size);
    else
        rc = next_view(member, step, view, comm);
    leave_call(member);
    return ft_return(NULL, rc);
}

/* ---- commit, role, leave --------------------------------------------------------------------- */

FT_EXPORT ftcclResult_t ftcclMemberCommit(ftcclMember_t member, uint64_t step, int ok, int *commit)
{
    ft_thread_enters(FT_THREAD_MEMBER_COMMIT, __builtin_return_address(0));
    bool committed = false;
    int rc = enter_call(member);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (commit) {
        rc = ft_member_commit(member->core, step, ok != 0, &committed);
        *commit = committed;
    } else
        rc = ft_fail(FT_INVAL, "MemberCommit: commit is NULL");
    leave_call(member);
    return ft_return(NULL, rc);
}

static int tell_role(const struct ft_role *role, char *replica, size_t capacity, int *local_rank,
                     int *local_size)
{
    bool has_one = *role->replica != '\0';
    size_t bytes = strlen(role->replica) + 1;
    if (replica && capacity < bytes)
        return ft_fail(FT_INVAL, "MemberRole: a replica's name of %zu bytes does not fit %zu",
                       bytes, capacity);
    if (replica)
        memcpy(replica, role->replica, bytes);
    if (local_rank)
        *local_rank = has_one ? (int)role->local_rank : -1;
    if (local_size)
        *local_size = has_one ? (int)role->local_size : 0;
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclMemberRole(ftcclMember_t member, char *replica, size_t capacity,
                                        int *localRank, int *localSize)
{
    int rc = enter_call(member);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    struct ft_role role;
    ft_member_role(member->core, &role);
    rc = tell_role(&role, replica, capacity, localRank, localSize);
    leave_call(member);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclMemberLeave(ftcclMember_t member)
{
    ft_thread_enters(FT_THREAD_MEMBER_LEAVE, __builtin_return_address(0));
    int rc = enter_call(member);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    unlist_member(member);
    ft_member_release(member->core);
    if (member->comm)
        ft_comm_end(member->comm, end_of(member->comm, FT_END_FLUSH), member);
    ft_member_close(member->core);
    if (member->spare)
        ft_comm_handle_free(member->spare);
    free(member);
    return ftcclSuccess;
}

/* ---- coordinators ---------------------------------------------------------------------------- */

static int start(const char *listen, char address[FT_NET_TEXT_BYTES], ftcclCoordinator_t *out)
{
    unsigned char secret[FT_SECRET_BYTES], key[FT_SECRET_BYTES];
    ftcclCoordinator_t coordinator = calloc(1, sizeof *coordinator);
    int rc = coordinator ? ft_secret_of_job("a coordinator is to be started", secret)
                         : ft_fail(FT_NOMEM, "no memory for a coordinator");
    if (rc == FT_OK) {
        ft_auth_derive(key, secret, "daemons", 0);
        rc = ft_coordinator_start(listen, key, address, &coordinator->core);
    }
    if (rc != FT_OK) {
        free(coordinator);
        return rc;
    }
    pthread_mutex_lock(&lock);
    coordinator->next = coordinators;
    coordinators = coordinator;
    pthread_mutex_unlock(&lock);
    *out = coordinator;
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclCoordinatorStart(const char *listen, char *address, size_t capacity,
                                              ftcclCoordinator_t *coordinator)
{
    char reached[FT_NET_TEXT_BYTES];
    int rc = ft_enter_library();
    if (rc == FT_OK && (!listen || !coordinator))
        rc = ft_fail(FT_INVAL, "CoordinatorStart: listen or coordinator is NULL");
    if (rc == FT_OK && address && capacity < sizeof reached)
        rc = ft_fail(FT_INVAL, "CoordinatorStart: address has room for %zu bytes, not %zu",
                     capacity, sizeof reached);
    if (rc == FT_OK)
        rc = start(listen, reached, coordinator);
    if (rc == FT_OK && address)
        memcpy(address, reached, sizeof reached);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclCoordinatorStop(ftcclCoordinator_t coordinator)
{
    int rc = ft_enter_library();
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    pthread_mutex_lock(&lock);
    ftcclCoordinator_t *at = &coordinators;
    while (*at && *at != coordinator)
        at = &(*at)->next;
    if (*at)
        *at = coordinator->next;
    else
        rc = ft_fail(FT_INVAL, "%p is not a coordinator, or was stopped", (void *)coordinator);
    pthread_mutex_unlock(&lock);
    if (rc == FT_OK) {
        ft_coordinator_stop(coordinator->core);
        free(coordinator);
    }
    return ft_return(NULL, rc);
}
