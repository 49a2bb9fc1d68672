/*
 * Operations: their pool, the one function that changes their state, and the signature of a call.
 */
#include "core/run/run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define POOL_MAX 8192
#define TMP_KEPT_BYTES (1u << 20) /* the pool does not keep larger scratch buffers */

/* ---- pools: structs that are used again, so that the data path does not allocate ------------- */

void *ft_pool_get(struct ft_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct ft_pooled *item = pool->free;
    if (item) {
        pool->free = item->next;
        pool->count--;
    }
    pthread_mutex_unlock(&pool->lock);
    return item;
}

bool ft_pool_put(struct ft_pool *pool, void *memory)
{
    struct ft_pooled *item = memory;
    pthread_mutex_lock(&pool->lock);
    bool keep = pool->count < POOL_MAX;
    if (keep) {
        item->next = pool->free;
        pool->free = item;
        pool->count++;
    }
    pthread_mutex_unlock(&pool->lock);
    return keep;
}

/* ---- operations ------------------------------------------------------------------------------ */

static struct ft_pool ops = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct ft_op *ft_op_new(void)
{
    struct ft_op *op = ft_pool_get(&ops);
    if (!op)
        return calloc(1, sizeof *op);
    ft_op_reset(op);
    return op;
}

void ft_op_reset(struct ft_op *op)
{
    char *tmp = op->tmp;
    size_t tmp_bytes = op->tmp_bytes;
    memset(op, 0, sizeof *op);
    op->tmp = tmp;
    op->tmp_bytes = tmp_bytes;
}

void ft_op_trim(struct ft_op *op)
{
    if (op->tmp_bytes <= TMP_KEPT_BYTES)
        return;
    free(op->tmp);
    op->tmp = NULL;
    op->tmp_bytes = 0;
}

static void free_members(struct ft_op *whole)
{
    for (struct ft_op *op = whole->members, *next; op; op = next) {
        next = op->next;
        ft_op_free(op);
    }
    whole->members = NULL;
    free(whole->joint);
    whole->joint = NULL;
}

void ft_op_free(struct ft_op *op)
{
    ft_op_trim(op);
    free_members(op);
    free(op->waits);
    free(op->on_queue);
    op->waits = NULL;
    op->on_queue = NULL;
    char *tmp = op->tmp;
    if (ft_pool_put(&ops, op))
        return;
    free(tmp);
    free(op);
}

/* Legal moves: the row is the old state, the bit is the new state. */
static const unsigned char moves[FT_OP_STATE_COUNT] = {
    [FT_OP_NEW] = 1 << FT_OP_QUEUED,
    [FT_OP_QUEUED] = 1 << FT_OP_RUNNING | 1 << FT_OP_SKIPPED,
    [FT_OP_RUNNING] = 1 << FT_OP_DONE | 1 << FT_OP_DRAINING,
    [FT_OP_DRAINING] = 1 << FT_OP_FAILED | 1 << FT_OP_QUEUED |
                       1 << FT_OP_DONE, /* policy retry makes the latter two moves */
};

void ft_op_move(struct ft_op *op, enum ft_op_state to, int status)
{
    if (!(moves[op->state] & 1 << to)) {
        ft_comm_fail(op->work->comm, FT_INTERNAL, op->work->comm->view.rank,
                     "internal error: operation %llu moved from %s to %s",
                     (unsigned long long)op->seq, ft_op_state_name((int)op->state),
                     ft_op_state_name((int)to));
        return;
    }
    struct ft_engine *engine = op->work->comm->engine;
    for (struct ft_op *member = op->members; member; member = member->next)
        ft_op_move(member, to, status);
    op->state = to;
    if (status != FT_OK)
        op->status = status;
    /* The record belongs to the collective, or to the members. */
    if (!engine->telemetry || op->verifies || op->members)
        return;
    /* For RUNNING, the clock was read just before. */
    uint64_t now = to == FT_OP_RUNNING ? op->work->started_ns : ft_now_ns(engine->env);
    ft_telemetry_op_state(engine->telemetry, op->record, (int)to, op->status, now);
}

void ft_op_done(struct ft_op *op)
{
    assert(op->work->ops_left > 0);
    ft_op_move(op, FT_OP_DONE, FT_OK);
    op->work->ops_left--;
}
