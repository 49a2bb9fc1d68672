/*
 * Who has asked, and whether there is a view. Counters of the group follow each change of a
 * replica, so that an ask costs the same in groups of all sizes.
 */
#include "membership/coord_parts.h"

#include "base/wire.h"

#define NS_PER_MS UINT64_C(1000000)

void ft_coord_weigh(const struct ft_coord_replica *replica, int sign)
{
    struct ft_coord_group *group = replica->group;
    uint32_t weight = (uint32_t)sign; /* counters wrap around as they should */
    bool ready = replica->nasked == replica->size;
    if (replica->nmembers == replica->size)
        group->ncomplete += weight;
    if (ready)
        group->nready += weight;
    if (ready && replica->in_view && replica->nsame == replica->size)
        group->nprevious += weight;
    if (replica->nholders == replica->size)
        group->nheld += weight;
    if (replica->nmembers == 0 && !replica->in_view && !replica->recalled)
        group->nempty += weight;
    group->nvacant += weight * replica->nvacant;
}

/* ---- asks ------------------------------------------------------------------------------------ */

static void end_dead(struct ft_coord_member *teller, const struct ft_members_ask *ask)
{
    const unsigned char *at = ask->dead;
    for (uint32_t i = 0; i < ask->ndead; i++) {
        struct ft_coord_member *dead = ft_coord_find_engine(teller->group, get64(&at));
        if (!dead || dead == teller)
            continue;
        ft_coord_refuse(dead->conn, dead->slot, FT_AGAIN,
                        "another member has told that this process has ended");
        ft_coord_end(dead, FT_END_DEAD);
    }
}

void ft_coord_ask(struct ft_coord_member *member, const struct ft_members_ask *ask)
{
    struct ft_coord_group *group = member->group;
    end_dead(member, ask);
    if (ask->term != group->coord->term || ask->epoch != group->epoch) {
        ft_coord_tell_view_number(member, FT_MEMBERS_EPOCH, group->coord->term, group->epoch, NULL);
        return;
    }
    member->step = ask->step;
    if (!member->replica) {
        ft_coord_tell_wait(member, "this process is a standby, and no role is vacant");
        return;
    }
    member->failed = ask->failed;
    member->waits_about = 0;
    if (!member->asked) {
        ft_coord_weigh(member->replica, -1);
        member->asked = true;
        member->replica->nasked++;
        ft_coord_weigh(member->replica, 1);
        if (group->nasked++ == 0)
            group->asked_ns = group->coord->now_ns;
    }
    ft_coord_changed(group);
}

void ft_coord_unask(struct ft_coord_member *member)
{
    if (!member->asked)
        return;
    ft_coord_weigh(member->replica, -1);
    member->asked = member->failed = false;
    member->replica->nasked--;
    ft_coord_weigh(member->replica, 1);
    member->group->nasked--;
}

void ft_coord_ask_again(struct ft_coord_group *group)
{
    for (size_t i = 0; i < group->nreplicas && group->nasked > 0; i++) {
        struct ft_coord_replica *replica = group->order[i];
        for (uint32_t at = 0; at < replica->size && replica->nasked > 0; at++) {
            struct ft_coord_member *member = replica->place[at].member;
            if (!member || !member->asked)
                continue;
            ft_coord_unask(member);
            ft_coord_tell_view_number(member, FT_MEMBERS_EPOCH, group->coord->term, group->epoch,
                                      NULL);
        }
    }
}

void ft_coord_raise(struct ft_coord_group *group, uint64_t epoch)
{
    if (epoch <= group->epoch)
        return;
    group->epoch = epoch;
    ft_coord_ask_again(group);
}

/* ---- the rule -------------------------------------------------------------------------------- */

bool ft_coord_is_due(const struct ft_coord_group *group)
{
    if (group->nready == 0 || (group->restarted && !group->settled))
        return false;
    if (group->view.nranks > 0 && group->nprevious == group->view.nranks)
        return true;
    if (group->nready < group->min_members.value || 2 * group->nready <= group->ncomplete)
        return false;
    return group->nready == group->ncomplete ||
           group->coord->now_ns - group->asked_ns >= group->window_ms.value * NS_PER_MS;
}

void ft_coord_largest_add(struct ft_coord_largest *largest, uint32_t value)
{
    if (largest->count == 0 || largest->value < value) {
        largest->value = value;
        largest->count = 0;
    }
    largest->count += value == largest->value;
}

void ft_coord_largest_remove(struct ft_coord_largest *largest, uint32_t value)
{
    if (value == largest->value && largest->count > 0 && --largest->count == 0)
        largest->stale = true;
}

void ft_coord_find_largest(struct ft_coord_group *group)
{
    if (!group->min_members.stale && !group->window_ms.stale)
        return;
    group->min_members = group->window_ms = (struct ft_coord_largest){0};
    for (size_t i = 0; i < group->nreplicas; i++) {
        const struct ft_coord_replica *replica = group->order[i];
        for (uint32_t at = 0; at < replica->size; at++) {
            const struct ft_coord_member *member = replica->place[at].member;
            if (!member)
                continue;
            ft_coord_largest_add(&group->min_members, member->min_members);
            ft_coord_largest_add(&group->window_ms, member->window_ms);
        }
    }
}
