/*
 * What members hold. A coordinator that has restarted knows no view; members that register again
 * tell theirs. If all who hold the highest one come within the join window, it becomes the last
 * view, as if this coordinator had made it: nothing that runs is disturbed. Otherwise those who
 * hold it are told that it is over. The same is told to whoever comes with an earlier view. A view
 * of another coordinator that is told only after the window may run on, if none is higher.
 *
 * A view that comes again was lost if its connection broke at that moment. Then the others are in
 * the next step and wait for a member that waits for them. So members count how often it has come,
 * and it is over if one of them has got it less often than the others.
 */
#include "membership/coord_parts.h"

#include <stdlib.h>
#include <string.h>

#define NS_PER_MS UINT64_C(1000000)

static bool is_view(const struct ft_held *a, const struct ft_held *b)
{
    return a->epoch != 0 && a->epoch == b->epoch && a->term == b->term && a->nranks == b->nranks;
}

static struct ft_coord_place *place_of(const struct ft_coord_member *member)
{
    return &member->replica->place[member->local_rank];
}

static bool is_in_view(const struct ft_coord_member *member)
{
    const struct ft_coord_replica *replica = member->replica;
    return replica && replica->in_view && place_of(member)->view_print == member->print;
}

bool ft_coord_has_view(const struct ft_coord_member *member)
{
    return is_in_view(member) && is_view(&member->held, &member->group->view);
}

static void tell_broken(struct ft_coord_member *member, const char *why)
{
    ft_coord_tell_view_number(member, FT_MEMBERS_BROKEN, member->held.term, member->held.epoch,
                              why);
}

/* Its view is over, and it holds none any more. */
static void let_go(struct ft_coord_member *member, const char *why)
{
    tell_broken(member, why);
    member->held = (struct ft_held){0};
}

void ft_coord_break(struct ft_coord_group *group, const char *why)
{
    if (group->view.nranks == 0 || group->broken)
        return;
    group->broken = true;
    FT_LOG(INFO, "member", -1, "group %s: view %llu is over: %s", group->name,
           (unsigned long long)group->view.epoch, why);
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        for (uint32_t at = 0; replica->in_view && at < replica->size; at++) {
            struct ft_coord_member *member = replica->place[at].member;
            if (member && ft_coord_has_view(member))
                tell_broken(member, why);
        }
    }
}

/* ---- what members tell after a restart ------------------------------------------------------- */

static bool holds_told(const struct ft_coord_member *member)
{
    const struct ft_coord_group *group = member->group;
    return group->told.nranks > 0 && is_view(&member->held, &group->told);
}

static void count_holder(const struct ft_coord_member *member)
{
    struct ft_coord_replica *replica = member->replica;
    ft_coord_weigh(replica, -1);
    if (replica->nholders == 0)
        replica->held_rank = member->held.rank;
    replica->nholders += replica->held_rank == member->held.rank;
    ft_coord_weigh(replica, 1);
}

void ft_coord_drop_held(const struct ft_coord_member *member)
{
    struct ft_coord_replica *replica = member->replica;
    if (!holds_told(member) || member->held.rank != replica->held_rank)
        return;
    ft_coord_weigh(replica, -1);
    if (--replica->nholders == 0)
        replica->held_rank = FT_NO_RANK;
    ft_coord_weigh(replica, 1);
}

/* A higher view has been told: who holds it? */
static void count_holders(struct ft_coord_group *group)
{
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        ft_coord_weigh(replica, -1);
        replica->nholders = 0;
        replica->held_rank = FT_NO_RANK;
        ft_coord_weigh(replica, 1);
        for (uint32_t at = 0; at < replica->size; at++) {
            struct ft_coord_member *member = replica->place[at].member;
            if (!member || member->held.epoch == 0)
                continue;
            if (holds_told(member))
                count_holder(member);
            else
                let_go(member, "another process has a later view");
        }
    }
}

static void hear_told(struct ft_coord_member *member)
{
    struct ft_coord_group *group = member->group;
    if (group->told.nranks == 0 || member->held.epoch > group->told.epoch) {
        group->told = member->held;
        count_holders(group);
    } else if (holds_told(member)) {
        count_holder(member);
    } else {
        let_go(member, "another process has a later view");
    }
}

static void let_go_all(const struct ft_coord_group *group, const struct ft_held *view,
                       const char *why)
{
    for (size_t i = 0; i < group->nreplicas; i++) {
        const struct ft_coord_replica *replica = group->order[i];
        for (uint32_t at = 0; at < replica->size; at++) {
            struct ft_coord_member *member = replica->place[at].member;
            if (member && is_view(&member->held, view))
                let_go(member, why);
        }
    }
}

/* Of views that are told late only the highest may run on, and if all have got it equally often. */
static void hear_late(struct ft_coord_member *member)
{
    struct ft_coord_group *group = member->group;
    const struct ft_held held = member->held;
    if (held.epoch > group->late.epoch) {
        let_go_all(group, &group->late, "another process has a later view");
        group->late = held;
    } else if (!is_view(&held, &group->late)) {
        let_go(member, "another process has a later view");
    } else if (held.times != group->late.times) {
        group->past_epoch = held.epoch;
        let_go_all(group, &held, "the last answer of an earlier coordinator has not reached all");
    }
}

void ft_coord_hear_held(struct ft_coord_member *member, const struct ft_held *held)
{
    struct ft_coord_group *group = member->group;
    member->held = *held;
    if (ft_coord_has_view(member) && held->rank == member->replica->view_rank && !group->broken &&
        held->times == group->view.times)
        return;
    /* also one of this coordinator, if all members of the group were gone for a moment */
    if (held->epoch != 0 && !group->settled) {
        hear_told(member);
        return;
    }
    if (held->epoch != 0 && (held->term == group->coord->term || held->epoch <= group->past_epoch))
        let_go(member, "the others have gone on without this process");
    else if (held->epoch != 0)
        hear_late(member);
    if (is_in_view(member)) {
        char why[FT_FAIL_BYTES];
        snprintf(why, sizeof(why), "rank %u of replica %s has not got the view", member->local_rank,
                 member->replica->name);
        ft_coord_break(group, why);
    }
}

/* ---- all who hold the view are back, or their time is over ----------------------------------- */

static int compare_held(const void *left, const void *right)
{
    const struct ft_coord_replica *a = *(struct ft_coord_replica *const *)left;
    const struct ft_coord_replica *b = *(struct ft_coord_replica *const *)right;
    if (a->held_rank != b->held_rank)
        return a->held_rank < b->held_rank ? -1 : 1;
    return strcmp(a->name, b->name);
}

static void sort_by_held(const struct ft_coord_group *group)
{
    qsort(group->order, group->nreplicas, sizeof(*group->order), compare_held);
}

/* Sorted, they hold all ranks of the view, each once. */
static bool all_hold(const struct ft_coord_group *group)
{
    for (uint32_t i = 0; i < group->told.nranks; i++) {
        const struct ft_coord_replica *replica = group->order[i];
        if (replica->held_rank != i || replica->nholders != replica->size)
            return false;
    }
    return true;
}

/* The last coordinator may have ended before all of them got it again. */
static bool is_as_often(const struct ft_coord_group *group)
{
    for (uint32_t i = 0; i < group->told.nranks; i++) {
        const struct ft_coord_replica *replica = group->order[i];
        for (uint32_t at = 0; at < replica->size; at++)
            if (replica->place[at].member->held.times != group->told.times)
                return false;
    }
    return true;
}

static void settle_held(struct ft_coord_group *group)
{
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        ft_coord_weigh(replica, -1);
        replica->nholders = 0;
        replica->held_rank = FT_NO_RANK;
        ft_coord_weigh(replica, 1);
    }
    group->past_epoch = group->told.epoch;
    group->told = (struct ft_held){0};
    group->settled = true;
}

/* Those whom an earlier coordinator remembers are in it, or have left it since. */
static void adopt(struct ft_coord_group *group)
{
    for (size_t i = 0; i < group->nreplicas; i++) {
        ft_coord_weigh(group->order[i], -1);
        group->order[i]->recalled = false;
        ft_coord_weigh(group->order[i], 1);
    }
    for (uint32_t i = 0; i < group->told.nranks; i++) {
        struct ft_coord_replica *replica = group->order[i];
        ft_coord_weigh(replica, -1);
        replica->in_view = true;
        replica->view_rank = i;
        replica->nsame = replica->size;
        for (uint32_t at = 0; at < replica->size; at++) {
            const struct ft_coord_member *member = replica->place[at].member;
            replica->place[at].view_print = member->print;
            group->view_step = ft_max(group->view_step, member->step);
        }
        ft_coord_weigh(replica, 1);
    }
    group->view = group->told;
    group->view_ns = group->coord->now_ns;
    group->broken = false;
}

/* Roles that were held in the view and that nobody has claimed: standbys may have them. */
static void vacate(struct ft_coord_replica *replica)
{
    ft_coord_weigh(replica, -1);
    for (uint32_t at = 0; at < replica->size; at++) {
        struct ft_coord_place *place = &replica->place[at];
        if (!place->member && !place->vacant) {
            place->vacant = true;
            replica->nvacant++;
        }
    }
    ft_coord_weigh(replica, 1);
}

static void give_up(struct ft_coord_group *group, const char *why)
{
    let_go_all(group, &group->told, why);
    for (size_t i = 0; i < group->nreplicas; i++)
        if (group->order[i]->nholders > 0)
            vacate(group->order[i]);
}

void ft_coord_check_held(struct ft_coord_group *group)
{
    if (group->settled || group->nmembers == 0)
        return;
    if (group->told.nranks > 0 && group->nheld == group->told.nranks) {
        sort_by_held(group);
        if (all_hold(group)) {
            if (is_as_often(group))
                adopt(group);
            else
                give_up(group, "the coordinator has restarted, and its last answer has not reached "
                               "all members");
            settle_held(group);
            return;
        }
    }
    if (group->coord->now_ns - group->began_ns < group->window_ms.value * NS_PER_MS)
        return;
    if (group->told.nranks > 0) {
        char why[FT_FAIL_BYTES];
        snprintf(why, sizeof(why),
                 "the coordinator has restarted, and %u of %u replicas of the view have registered "
                 "again",
                 group->nheld, group->told.nranks);
        sort_by_held(group);
        give_up(group, why);
    }
    settle_held(group);
}
