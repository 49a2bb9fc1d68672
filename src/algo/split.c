/*
 * The common splitting of a collective. A vector of elements becomes pieces. A piece is sent as
 * `parts` messages of at most chunk_bytes. Lane l works on pieces l, l + nlanes, ... All boundaries
 * are between elements. The result depends only on nranks, the collective and the tuning, so all
 * ranks cut in the same way.
 */
#include "algo/parts.h"

#define LINE_BYTES 64
#define ALIGN_FROM_BYTES 1024 /* shorter messages are not rounded to cache lines */
/* A broadcast to so many receivers or more is cut into messages of at least so many bytes, because
 * its root copies most of them once for all. Measured with 7 receivers. */
#define COPIED_RECEIVERS 4
#define COPIED_BYTES 65536

static size_t div_up(size_t n, size_t by)
{
    return n / by + (n % by != 0);
}

static size_t chunk_elems(size_t bytes, size_t esize)
{
    if (bytes >= ALIGN_FROM_BYTES)
        bytes -= bytes % LINE_BYTES;
    return ft_max(bytes / esize, 1);
}

/* Rounds a length in elements up to whole cache lines if it is long. */
static size_t align_elems(size_t elems, size_t esize)
{
    return elems >= ALIGN_FROM_BYTES / esize ? ft_round_up(elems, LINE_BYTES / esize) : elems;
}

static size_t lanes_wanted(const struct ft_tuning *tuning)
{
    return tuning->chunks < 1 ? 1 : ft_min((size_t)tuning->chunks, FT_LANES);
}

bool ft_plan_copies(const struct ft_plan *plan)
{
    return plan->pulled && plan->coll.kind == FT_BROADCAST &&
           plan->view->nranks - 1 >= COPIED_RECEIVERS;
}

/* Messages are not cut shorter to fill lanes. */
static size_t least_elems(const struct ft_plan *plan, size_t chunk)
{
    if (ft_plan_copies(plan))
        return ft_min(COPIED_BYTES / plan->esize, chunk);
    /* pulled: shorter messages gain nothing, because no second copy could run in parallel */
    return plan->pulled ? chunk : ft_max(chunk / FT_SMALLEST_SHARE, 1);
}

/* Chooses pieces of `parts` messages each, at least `lanes` of them if the messages remain long
 * enough. */
static void cut(struct ft_plan *plan, const struct ft_tuning *tuning, size_t elems, size_t parts,
                size_t lanes)
{
    size_t chunk = chunk_elems(plan->pulled ? ft_tuning_first_bytes(tuning) : tuning->chunk_bytes,
                               plan->esize);
    size_t least = least_elems(plan, chunk);
    size_t share = div_up(elems, parts); /* elements of one part, summed over all pieces */
    size_t pieces = div_up(share, chunk);
    plan->split_elems = elems;
    if (pieces < lanes)
        pieces = ft_max(pieces, ft_min(lanes, share / least));
    else if (pieces <= SIZE_MAX - lanes)
        pieces = ft_min(ft_round_up(pieces, lanes), ft_max(share, 1));
    size_t part = pieces ? align_elems(div_up(share, pieces), plan->esize) : 1;
    plan->piece_elems = ft_min(part, chunk) * parts;
    plan->npieces = div_up(elems, plan->piece_elems);
}

void ft_plan_split(struct ft_plan *plan, const struct ft_tuning *tuning, size_t elems, size_t parts,
                   uint64_t piece_steps)
{
    size_t lanes = lanes_wanted(tuning);
    cut(plan, tuning, elems, parts, lanes);
    plan->piece_steps = piece_steps;
    plan->nlanes = (int)ft_max(ft_min(lanes, plan->npieces), 1);
    plan->nsteps = div_up(plan->npieces, (size_t)plan->nlanes) * piece_steps;
}

void ft_plan_split_items(struct ft_plan *plan, const struct ft_tuning *tuning, size_t elems,
                         uint64_t items)
{
    bool all = plan->coll.kind == FT_ALLTOALL || plan->coll.kind == FT_ALLGATHER;
    /* with one peer, the second lane would only do the local copy */
    bool each = tuning->peer_lanes && all && items > 2;
    size_t lanes = each ? ft_min(items, FT_LANES) : lanes_wanted(tuning);
    cut(plan, tuning, elems, 1, div_up(lanes, items));
    plan->piece_steps = 1;
    plan->nlanes = (int)ft_max(ft_min(lanes, plan->npieces * items), 1);
    plan->nsteps = div_up(plan->npieces * items, (size_t)plan->nlanes);
}

/* Sets the byte range of piece p->index. Returns false if there is no such piece. */
static bool piece_range(const struct ft_plan *plan, struct ft_piece *p)
{
    if (p->index >= plan->npieces)
        return false;
    size_t first = p->index * plan->piece_elems;
    p->off = first * plan->esize;
    p->len = ft_min(plan->piece_elems, plan->split_elems - first) * plan->esize;
    return true;
}

bool ft_piece_at(const struct ft_plan *plan, int lane, uint64_t index, struct ft_piece *p)
{
    p->index = (uint64_t)lane + (uint64_t)plan->nlanes * (index / plan->piece_steps);
    p->k = index % plan->piece_steps;
    return piece_range(plan, p);
}

bool ft_piece_at_items(const struct ft_plan *plan, int lane, uint64_t index, uint64_t items,
                       struct ft_piece *p)
{
    uint64_t job = (uint64_t)lane + (uint64_t)plan->nlanes * index;
    p->index = job / items;
    p->k = job % items;
    return piece_range(plan, p);
}

struct ft_range ft_piece_part(const struct ft_plan *plan, const struct ft_piece *p, size_t parts,
                              size_t i)
{
    size_t elems = p->len / plan->esize;
    size_t part = align_elems(div_up(elems, parts), plan->esize);
    size_t first = ft_min(i * part, elems);
    return (struct ft_range){p->off + first * plan->esize,
                             ft_min(part, elems - first) * plan->esize};
}

size_t ft_total_elems(const struct ft_view *view, const struct ft_coll *coll)
{
    bool whole = coll->kind == FT_ALLREDUCE || coll->kind == FT_BROADCAST ||
                 coll->kind == FT_REDUCE;
    return whole ? coll->count : coll->count * (size_t)view->nranks;
}

void ft_plan_one_piece(struct ft_plan *plan, uint64_t steps)
{
    plan->split_elems = plan->piece_elems = ft_max(plan->coll.count, 1);
    plan->npieces = 1;
    plan->nlanes = 1;
    plan->piece_steps = plan->nsteps = steps;
}

bool ft_half_fits(const struct ft_view *view, const struct ft_coll *coll,
                  const struct ft_tuning *tuning)
{
    size_t blocks = ((size_t)view->nranks + 1) / 2, esize = ft_type_size(coll->type);
    return coll->count <= tuning->chunk_bytes / esize / blocks;
}

bool ft_rounds_on_the_way(const struct ft_coll *coll)
{
    return ft_type_is_float(coll->type) && ft_type_size(coll->type) < sizeof(float) &&
           (coll->red == FT_AVG || coll->red >= FT_REDS);
}
