/*
 * Operations: their pool, the one function that changes their state, and the signature of a call.
 */
#include "core/run/run.h"

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
    free(op->gpu);
    op->waits = NULL;
    op->gpu = NULL;
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
    ft_op_move(op, FT_OP_DONE, FT_OK);
    op->work->ops_left--;
}

/* Bits of a signature: kind 4, type 4, red 3, root 17, count 36. */
#define SIG_COUNT_MAX ((UINT64_C(1) << 36) - 1)

uint64_t ft_sig(const struct ft_coll *coll)
{
    enum ft_kind kind = coll->kind == FT_RECV ? FT_SEND : coll->kind;
    uint64_t red = ft_kind_reduces(kind) ? (uint64_t)coll->red : 0;
    uint64_t root = !ft_kind_is_collective(kind) ? 0 : (uint64_t)coll->root & 0x1ffff;
    uint64_t count = coll->count < SIG_COUNT_MAX ? coll->count : SIG_COUNT_MAX;
    return (uint64_t)kind | (uint64_t)coll->type << 4 | red << 8 | root << 11 | count << 28;
}

void ft_sig_text(uint64_t sig, char *buf, size_t len_bytes)
{
    if (ft_sig_call(sig) != sig) {
        int n = snprintf(buf, len_bytes, "comparing the results of ");
        ft_sig_text(ft_sig_call(sig), buf + ft_min((size_t)n, len_bytes),
                    len_bytes - ft_min((size_t)n, len_bytes));
        return;
    }
    enum ft_kind kind = (enum ft_kind)(sig & 15);
    enum ft_type type = (enum ft_type)(sig >> 4 & 15);
    enum ft_red red = (enum ft_red)(sig >> 8 & 7);
    unsigned root = (unsigned)(sig >> 11 & 0x1ffff);
    unsigned long long count = sig >> 28;
    if (kind == FT_ALLGATHER && root != 0) {
        snprintf(buf, len_bytes, root == FT_SPLIT_MARK ? "CommSplit" : "CommWindowRegister");
        return;
    }
    int n = snprintf(buf, len_bytes, "%s(count %llu, %s", ft_kind_name(kind), count,
                     ft_type_name(type));
    size_t at = ft_min((size_t)n, len_bytes);
    if (ft_kind_reduces(kind))
        n = snprintf(buf + at, len_bytes - at, ", %s", ft_red_name(red)),
        at = ft_min(at + (size_t)n, len_bytes);
    bool rooted = kind == FT_BROADCAST || kind == FT_REDUCE || kind == FT_GATHER ||
                  kind == FT_SCATTER;
    if (rooted)
        n = snprintf(buf + at, len_bytes - at, ", root %u", root),
        at = ft_min(at + (size_t)n, len_bytes);
    snprintf(buf + at, len_bytes - at, ")");
}
