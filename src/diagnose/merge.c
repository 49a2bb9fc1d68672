/*
 * Puts snapshots together: those of the files of a host, and those of hosts.
 */
#include "diagnose.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for the rows of `from` in `to`. */
static bool make_room(const struct ft_snap_list *to, const struct ft_snap_list *from)
{
    size_t total = (size_t)*to->n + (size_t)*from->n;
    void *grown = *from->n > 0 ? realloc(*to->at, total * to->row_bytes) : *to->at;
    if (*from->n > 0 && !grown)
        return false;
    *to->at = grown;
    return true;
}

static void append(const struct ft_snap_list *to, const struct ft_snap_list *from)
{
    char *at = (char *)*to->at + (size_t)*to->n * to->row_bytes;
    if (*from->n > 0)
        memcpy(at, *from->at, (size_t)*from->n * to->row_bytes);
    for (int i = 0; to->index >= 0 && i < *from->n; i++) {
        int *index = (void *)(at + (size_t)i * to->row_bytes + to->index);
        *index += *index >= 0 ? to->shift : 0; /* negative: unknown */
    }
    *to->n += *from->n;
}

#define ROWS(s, list, count, type, index, member)                                     \
    {                                                                                 \
        (void **)(void *)&(s)->list, &(s)->count, sizeof(struct type), index, member, \
            (member) ? (s)->nmembers : (s)->nengines                                  \
    }
#define OF_ENGINE(s, list, count, type) \
    ROWS(s, list, count, type, offsetof(struct type, engine), false)
#define OF_MEMBER(s, list, count, type) \
    ROWS(s, list, count, type, offsetof(struct type, member), true)

void ft_snapshot_lists(struct ft_snapshot *s, struct ft_snap_list lists[FT_SNAP_LISTS])
{
    const struct ft_snap_list all[FT_SNAP_LISTS] = {
        ROWS(s, engines, nengines, ft_snap_engine, -1, false),
        OF_ENGINE(s, members, nmembers, ft_snap_member),
        OF_ENGINE(s, links, nlinks, ft_snap_link),
        ROWS(s, seats, nseats, ft_snap_seat, offsetof(struct ft_snap_seat, teller), false),
        OF_ENGINE(s, paths, npaths, ft_snap_path),
        OF_MEMBER(s, steps, nsteps, ft_snap_step),
        OF_MEMBER(s, ops, nops, ft_snap_op),
        OF_ENGINE(s, threads, nthreads, ft_snap_thread),
        OF_ENGINE(s, latencies, nlatencies, ft_snap_latency),
        OF_ENGINE(s, clocks, nclocks, ft_snap_clock),
        OF_ENGINE(s, events, nevents, ft_snap_event),
        OF_ENGINE(s, validations, nvalidations, ft_snap_validation)};
    memcpy(lists, all, sizeof all);
}

int ft_snapshot_merge(struct ft_snapshot *to, const struct ft_snapshot *from)
{
    struct ft_snapshot source = *from;
    struct ft_snap_list into[FT_SNAP_LISTS], rows[FT_SNAP_LISTS];
    ft_snapshot_lists(to, into);
    ft_snapshot_lists(&source, rows);
    for (int i = 0; i < FT_SNAP_LISTS; i++)
        if (!make_room(&into[i], &rows[i]))
            return ft_fail(FT_NOMEM, "no memory to put snapshots together");
    for (int i = 0; i < FT_SNAP_LISTS; i++)
        append(&into[i], &rows[i]);
    to->unreadable += from->unreadable;
    if (to->now_ns == 0 || from->now_ns < to->now_ns) {
        to->now_ns = from->now_ns;
        to->real_ns = from->real_ns;
    }
    return FT_OK;
}
