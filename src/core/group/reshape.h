/*
 * reshape: how communicators come from others. Part of core.h; other folders include that.
 */
#ifndef FT_RESHAPE_H
#define FT_RESHAPE_H

#include "core/group/group.h"

/* Shrink: who is left makes a communicator of its own over the links it has. Blocks; see
 * ftcclCommShrink(). */
struct ft_shrink {
    const int *exclude; /* [count] ranks to leave out besides the failed ones */
    int count;
    bool abort; /* pending operations are ended first */
    int64_t key;
    const char *name;
    struct ft_comm_limits limits;
};
/* Its two halves, which do not block. Before: the list is good, nothing is pending. Between: the
 * agreement, or rc says why not. */
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
/* Its parts, which do not block. Begin; on the root the rendezvous by the survivors' endpoints,
 * whose table makes it meet the joiners, and FT_AGAIN until each of them asks; enter, with what
 * came of that; the agreement; end, which consumes what begin made. */
struct ft_growth;
struct ft_growing {
    struct ft_growth *growth;
    struct ft_endpoint *joiners; /* [njoiners] once they are known */
    int njoiners;
    uint32_t instance; /* number of the agreement that the child's context belongs to */
    struct ft_agreement *agreement; /* NULL: not entered */
    int met;                        /* root: how the rendezvous ended, and why */
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

/* The part of a joiner, after the rendezvous. Blocks. */
struct ft_init;
int ft_grow_join(struct ft_engine *engine, const struct ft_init *init, const struct ft_table *table,
                 struct ft_comm **out);
/* Its parts, which do not block: turn is FT_AGAIN until the survivors have answered or none of them
 * can. The table stays in use. */
struct ft_joining {
    struct ft_engine *engine;
    const struct ft_table *table;
    struct ft_growth *growth;
    uint64_t epoch, asked_ns;
    int heard; /* answers that were looked at */
    /* when the first survivor said yes, or none could answer any more; 0: neither */
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

/* This rank listened on the context of a child that it will not open: the others, who may have it
 * already, must not wait for it (abandoned.c). Unbinds the context and tells the ranks of the
 * parent. */
void ft_child_abandon(struct ft_comm *parent, uint64_t ctx);
void ft_abandoned_tell(struct ft_engine *engine, struct ft_peer *peer,
                       uint64_t ctx); /* the caller holds the engine */
void ft_abandoned_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_head *head);
/* a communicator was opened: has one of its ranks given it up? The caller holds the engine */
void ft_abandoned_check(struct ft_comm *comm);

#endif
