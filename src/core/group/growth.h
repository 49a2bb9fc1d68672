/*
 * growth: what the files of a grow share. growth.c has the records, questions and answers; grow.c
 * is the side of the parent's ranks, grow_join.c the side of a joiner.
 */
#ifndef FT_GROWTH_H
#define FT_GROWTH_H

#include "core/group/group.h"

#define FT_GROW_ASK_NS 20000000u /* between a joiner's questions */
#define FT_GROW_PART "grow"      /* the part of the first survivor's endpoint with the facts */

struct ft_grow_facts {
    uint64_t ctx, epoch;
    uint32_t nold;
};
enum { FT_SAID_NOTHING, FT_SAID_NEVER, FT_SAID_YES }; /* NEVER: that rank will never know */

/* A grow that this engine takes part in. */
struct ft_growth {
    struct ft_growth *next;
    uint64_t ctx;
    int nold, nranks;
    /* FT_AGAIN: open; FT_OK; or why it failed. Written with release after the fields below, read
     * with acquire. */
    atomic_int status;
    /* number of engines that have asked; more than there are joiners if users gave two ids */
    atomic_int asked;
    uint64_t *askers;    /* [2 * (nranks - nold)] their ids */
    uint64_t *joiners;   /* [nranks - nold] ids of the agreed joiners, when status is FT_OK */
    int32_t *order;      /* [nranks] places of the table in the child's order */
    bool ordered;        /* joiner: `order` came with the first yes */
    bool joining;        /* this rank is a joiner; its status is FT_AGAIN or a failure */
    bool agreed;         /* status is what the parent's ranks agreed on; written before status */
    atomic_int heard;    /* joiner: number of answers; written with release after told and order */
    unsigned char *told; /* [nold] joiner: FT_SAID_... */
};

int ft_growth_open(struct ft_engine *engine, const struct ft_grow_facts *facts, int nranks,
                   bool joining, struct ft_growth **out);
/* The grow has ended, and those that asked are told. agreed: the same on all ranks of the parent.
 */
void ft_growth_conclude(struct ft_engine *engine, struct ft_growth *growth, int status,
                        bool agreed);
/* Tells one rank what is known of the grow. The caller holds the engine. */
void ft_growth_tell(struct ft_engine *engine, struct ft_peer *peer, const struct ft_growth *growth);
bool ft_growth_has(const uint64_t *ids, int n, uint64_t id);

/* A place in the table of endpoints: first the survivors by their old ranks, then the joiners. */
struct ft_place {
    uint64_t engine, host;
};
int ft_growth_child(struct ft_engine *engine, const struct ft_growth *growth,
                    const struct ft_place *places, const struct ft_grow *how, uint64_t epoch,
                    struct ft_comm **out);

#endif
