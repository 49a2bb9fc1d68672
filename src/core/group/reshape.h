/*
 * reshape: shrink, grow and what joins: how communicators are made from others. Part of core.h,
 * which other folders include.
 */
#ifndef FT_RESHAPE_H
#define FT_RESHAPE_H

#include "core/group/group.h"

/* Shrink: the live ranks make a communicator over the links they have. Blocks; see
 * ftcclCommShrink(). */
struct ft_shrink {
    const int *exclude; /* [count] ranks to leave out besides the failed ones */
    int count;
    bool abort; /* pending operations are ended first */
    int64_t key;
    const char *name;
    struct ft_comm_limits limits;
};
/* Its two halves, which do not block. Before the first, the list is checked and nothing is pending.
 * Between the two is the agreement, or rc says why there is none. */
struct ft_shrinking {
    uint64_t ctx;
    struct ft_agreement *agreement;
};
int ft_shrink_begin(struct ft_comm *parent, const struct ft_shrink *how,
                    struct ft_shrinking *shrinking);
int ft_shrink_end(struct ft_comm *parent, const struct ft_shrink *how,
                  const struct ft_shrinking *shrinking, int rc, struct ft_comm **out);
int ft_shrink_run(struct ft_comm *parent, const struct ft_shrink *how, struct ft_comm **out);

/* Grow: see ftcclCommGrow(). Blocks. */
struct ft_grow {
    int nranks; /* of the child */
    /* the root's; NULL on the other ranks of the parent */
    const unsigned char (*id)[FT_UNIQUE_ID_BYTES];
    int64_t key;
    const char *name;
    struct ft_comm_limits limits;
};
int ft_grow_run(struct ft_comm *parent, const struct ft_grow *how, struct ft_comm **out);
/* Its parts, which do not block: begin; on the root, endpoints (of the survivors, for the
 * rendezvous), meet (takes the joiners from the rendezvous' table) and met (FT_AGAIN until every
 * joiner has asked); enter, with the outcome of met; the agreement; end, which frees what begin
 * made. */
struct ft_growth;
struct ft_growing {
    struct ft_growth *growth;
    struct ft_endpoint *joiners; /* [njoiners] once they are known */
    int njoiners;
    uint32_t instance; /* number of the agreement to which the child's context belongs */
    struct ft_agreement *agreement; /* NULL: not entered */
    int met;                        /* root: how the rendezvous ended; a sentence says why */
    char why[512];
    uint64_t looked_ns; /* root: when it last looked for them, and how many had asked */
    int asked;
};
int ft_grow_begin(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing);
int ft_grow_endpoints(struct ft_comm *parent, const struct ft_grow *how,
                      const struct ft_growing *growing, struct ft_endpoint *endpoints);
int ft_grow_meet(struct ft_comm *parent, struct ft_growing *growing, const struct ft_table *table);
int ft_grow_met(struct ft_comm *parent, struct ft_growing *growing);
int ft_grow_enter(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing,
                  int met);
int ft_grow_end(struct ft_comm *parent, const struct ft_grow *how, struct ft_growing *growing,
                int rc, struct ft_comm **out);

/* The side of a joiner after the rendezvous. Blocks. */
struct ft_init;
int ft_grow_join(struct ft_engine *engine, const struct ft_init *init, const struct ft_table *table,
                 struct ft_comm **out);
/* Its parts, which do not block. turn is FT_AGAIN until the survivors have answered or none of them
 * can. The table must outlive them. */
struct ft_joining {
    struct ft_engine *engine;
    const struct ft_table *table;
    struct ft_growth *growth;
    uint64_t epoch, asked_ns;
    int heard; /* number of answers that were read */
    /* when the first survivor said yes or the last could no longer answer; 0: neither */
    uint64_t since_ns;
    size_t endpoint_bytes;
    unsigned char endpoint[FT_ENDPOINT_WIRE_MAX];
};
int ft_grow_join_begin(struct ft_engine *engine, const struct ft_table *table,
                       struct ft_joining *joining);
int ft_grow_join_turn(struct ft_joining *joining);
int ft_grow_join_end(struct ft_joining *joining, const struct ft_grow *how, int rc,
                     struct ft_comm **out);
void ft_grow_receive(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_in *in);
void ft_grow_close(struct ft_engine *engine);
#define FT_ENDPOINT_KEY "key" /* part of a joiner's endpoint: its rankKey, if it has one */

/* This rank listened on the context of a child that it will not open. The others may have the child
 * already and must not wait for this rank (abandoned.c). Stops listening, and tells the ranks of
 * the parent. */
void ft_child_abandon(struct ft_comm *parent, uint64_t ctx);
void ft_abandoned_tell(struct ft_engine *engine, struct ft_peer *peer,
                       uint64_t ctx); /* the caller holds the engine */
void ft_abandoned_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_head *head);
/* Fails a communicator that was just opened if one of its ranks has given it up. The caller holds
 * the engine. */
void ft_abandoned_check(struct ft_comm *comm);

#endif
