/*
 * Broadcasts to several ranks of a host. Receivers read a long message in their sender's memory. If
 * that is memory of the arena, they have it mapped; otherwise each read is a system call, which
 * takes twice as long. So all lanes but the first copy their message to memory of the arena, once
 * for all receivers. Those read the first lane's message meanwhile.
 */
#include "core/run/run.h"

#include <string.h>

/* The longest messages by default. With longer ones, the copies of all lanes would need too much
 * memory. */
#define COPY_MOST_BYTES ((size_t)512 << 10)

static void free_copy(struct ft_lane *lane)
{
    if (lane->copy)
        ft_arena_free(lane->copy);
    lane->copy = NULL;
    lane->copy_bytes = 0;
}

/* Nobody reads the memory: what the lane sent in earlier steps has arrived. */
static bool has_room(struct ft_lane *lane, size_t len_bytes)
{
    void *memory;
    if (lane->copy_bytes >= len_bytes)
        return true;
    free_copy(lane);
    len_bytes = ft_max(len_bytes, FT_ARENA_LEAST);
    if (ft_arena_alloc(len_bytes, &memory) != FT_OK)
        return false;
    lane->copy = memory;
    lane->copy_bytes = len_bytes;
    return true;
}

const void *ft_lane_copied(const struct ft_comm *comm, struct ft_lane *lane, const void *data)
{
    const struct ft_plan *plan = &lane->op->plan;
    const size_t len_bytes = lane->step->send_bytes;
    uint64_t offset;
    if (lane->copied)
        return lane->copy;
    if (lane == comm->lanes.at || !ft_plan_copies(plan) || len_bytes < FT_LOAN_BYTES ||
        len_bytes > COPY_MOST_BYTES || ft_arena_has(data, len_bytes, &offset) ||
        !has_room(lane, len_bytes))
        return data;
    memcpy(lane->copy, data, len_bytes);
    lane->copied = lane->copy_used = true;
    return lane->copy;
}

void ft_lanes_trim(struct ft_comm *comm)
{
    for (struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++) {
        bool in_use = lane->copied && lane->phase != FT_LANE_IDLE;
        if (!lane->copy_used && !in_use)
            free_copy(lane);
        lane->copy_used = false;
    }
}

void ft_lanes_free(struct ft_comm *comm)
{
    for (struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++)
        free_copy(lane);
}
