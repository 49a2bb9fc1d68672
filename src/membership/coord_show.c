/*
 * What a coordinator knows, for pages and metrics. Nothing here changes anything.
 */
#include "membership/coord_parts.h"

#include <string.h>

static void show_member(const struct ft_coord_visitor *v, const struct ft_coord_member *member)
{
    const struct ft_coord *coord = member->group->coord;
    struct ft_endpoint endpoint;
    struct ft_coord_member_row row = {.engine = member->engine,
                                      .step = member->step,
                                      .silence_ns = coord->now_ns - member->conn->heard_ns,
                                      .ready = member->asked};
    if (ft_endpoint_decode(member->endpoint, member->endpoint_bytes, &endpoint) > 0)
        row.host = endpoint.host;
    memcpy(row.role.group, member->group->name, sizeof(row.role.group));
    if (member->replica) {
        memcpy(row.role.replica, member->replica->name, sizeof(row.role.replica));
        row.role.local_rank = member->local_rank;
        row.role.local_size = member->replica->size;
    }
    v->member(v->arg, &row);
}

/* The lowest of its ranks. */
static uint64_t step_of(const struct ft_coord_replica *replica)
{
    uint64_t step = UINT64_MAX;
    for (uint32_t i = 0; i < replica->size; i++)
        if (replica->place[i].member)
            step = ft_min(step, replica->place[i].member->step);
    return step == UINT64_MAX ? 0 : step;
}

static void show_replica(const struct ft_coord_visitor *v, const struct ft_coord_replica *replica)
{
    const struct ft_coord_replica_row row = {.name = replica->name,
                                             .place = replica->in_view ? (int)replica->view_rank
                                                                       : -1,
                                             .local_size = replica->size,
                                             .alive = replica->nmembers,
                                             .ready = replica->nasked,
                                             .step = step_of(replica)};
    if (v->replica)
        v->replica(v->arg, &row);
    for (uint32_t i = 0; v->member && i < replica->size; i++)
        if (replica->place[i].member)
            show_member(v, replica->place[i].member);
}

static void show_group(const struct ft_coord_visitor *v, const struct ft_coord_group *group)
{
    char waits[FT_FAIL_BYTES] = "";
    struct ft_coord_group_row row = {.name = group->name,
                                     .replicas = (int)group->nreplicas,
                                     .alive = (int)group->ncomplete,
                                     .ready = (int)group->nready,
                                     .standbys = (int)group->nstandbys,
                                     .min_members = group->min_members.value,
                                     .window_ms = group->window_ms.value,
                                     .waits = waits};
    if (group->view.nranks > 0) {
        row.term = group->view.term;
        row.epoch = group->view.epoch;
        row.step = group->view_step;
        row.age_ns = group->coord->now_ns - group->view_ns;
        row.view_replicas = (int)group->view.nranks;
    }
    if (group->nasked > 0)
        ft_coord_write_waits(group, waits);
    if (v->group)
        v->group(v->arg, &row);
    for (size_t i = 0; (v->replica || v->member) && i < group->nreplicas; i++)
        show_replica(v, group->order[i]);
    for (const struct ft_coord_member *m = group->standbys; v->member && m; m = m->next)
        show_member(v, m);
}

void ft_coord_visit(const struct ft_coord *coord, const struct ft_coord_visitor *visitor)
{
    for (const struct ft_coord_group *group = coord->group; group; group = group->next)
        show_group(visitor, group);
}
