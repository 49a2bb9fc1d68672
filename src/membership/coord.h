/*
 * The coordinator without sockets, threads and files: who has which role, who is alive, who has
 * asked for the next view, and when there is one. Its owner (coord_server.c, or ftccld)
 * delivers messages and events, sends what it says, and calls ft_coord_tick(). Nothing blocks. It
 * keeps nothing: after a restart it learns everything from the members that register again.
 *
 * The quorum rule, for each group; a replica counts as alive when all its ranks are, and as ready
 * when all of them have asked for the view after the last epoch:
 * - all replicas of the last view are ready, as the same processes: a view at once, with all others
 *   that are ready. If nobody is new and nothing has failed, it is the same view again.
 * - otherwise: at least minMembers are ready, and more than half of those alive, and either all
 *   that are alive are ready or the first one asked longer ago than the join window.
 * After a restart there is none before all who hold the last view are here, or the join window has
 * passed. All replicas of a group have the same number of ranks. A role is vacant, and a standby
 * gets it, when the process that had it has ended or is silent; not when it has left, nor before
 * anybody has claimed it.
 */
#ifndef FT_COORD_H
#define FT_COORD_H

#include "membership/managed.h"

struct ft_coord;
struct ft_coord_conn;
/* Bytes that several messages have in common. The last one who lets go frees them. One thread. */
struct ft_blob {
    uint32_t holders;
    size_t len_bytes;
    unsigned char bytes[];
};
void ft_blob_hold(struct ft_blob *);
void ft_blob_let_go(struct ft_blob *);

/* What waits to be sent on a connection (coord_out.c): own bytes, and bytes that are shared with
 * other connections. */
struct ft_coord_chunk;
struct ft_coord_out {
    struct ft_coord_chunk *first, *last;
    size_t len_bytes, done; /* len_bytes: in all; done: those of the first chunk that have gone */
};
/* What ft_coord_out_own() returns has room for that many bytes, which the caller writes. NULL, or
 * false: no memory. */
unsigned char *ft_coord_out_own(struct ft_coord_out *, size_t len_bytes);
bool ft_coord_out_share(struct ft_coord_out *, struct ft_blob *);
/* FT_OK: all has gone; FT_AGAIN; or FT_LINK with errno. moved: whether any has gone. */
int ft_coord_out_flush(struct ft_coord_out *, int fd, bool *moved);
void ft_coord_out_clear(struct ft_coord_out *);

struct ft_coord_config {
    struct ft_env *env;
    /* Copies the bytes of a message, without its header. False: the connection is over, and the
     * owner will call ft_coord_closed() after this call has returned. It calls nothing itself. */
    bool (*send)(void *arg, void *owner_conn, enum ft_members_message, const void *bytes,
                 size_t len);
    /* Like send, for a view, whose bytes are `head`, then those of the blobs. The owner holds those
     * that it does not send at once: a large list is in memory once, and not once for each member.
     * NULL: send() is used. */
    bool (*send_view)(void *arg, void *owner_conn, const void *head, size_t head_bytes,
                      struct ft_blob *const *blobs, int nblobs);
    void *arg;
};
int ft_coord_open(const struct ft_coord_config *, struct ft_coord **out); /* FT_NOMEM */
void ft_coord_close(struct ft_coord *);
/* An earlier coordinator kept what ft_coord_visit() showed: the group's last view had this replica.
 * To be called before members come. If its members do not come either, standbys get its roles. Rank
 * numbers of the role are not looked at. FT_NOMEM, FT_INVAL. */
int ft_coord_recall(struct ft_coord *, const struct ft_role *);
/* Those whose group has not come until now are not waited for any more. */
void ft_coord_forget_recalled(struct ft_coord *);
/* An authenticated connection begins. NULL: no memory. */
struct ft_coord_conn *ft_coord_connected(struct ft_coord *, void *owner_conn);
/* False: it breaks the rules, with a sentence; the owner ends it and calls ft_coord_closed(). */
bool ft_coord_message(struct ft_coord_conn *, uint16_t type, const unsigned char *bytes,
                      size_t len);
/* It has ended: members of it that did not leave before are gone. */
void ft_coord_closed(struct ft_coord_conn *);
/* At least every 20 ms while there are connections: silence, join windows. Returns the owner_conn
 * of a connection to be ended for its silence, or NULL; call it until it is NULL. Of a longer gap
 * between calls only a tenth of a second counts: the coordinator may have been stopped. */
void *ft_coord_tick(struct ft_coord *);

/* For pages, metrics and tests. */
struct ft_coord_counts {
    int groups, replicas, members, standbys, connections; /* members: without standbys */
    uint64_t views; /* made, without those that were sent again */
};
void ft_coord_count(const struct ft_coord *, struct ft_coord_counts *);

/* ---- what it knows, for pages (coord_show.c) ------------------------------------------------- */

struct ft_coord_group_row {
    const char *name;
    /* The last view; epoch 0: there was none. age_ns: since it was made, or sent again. After a
     * restart the one that members hold, since the last of them has told so. */
    uint64_t term, epoch, step, age_ns;
    int view_replicas;
    int replicas, alive, ready, standbys; /* replicas: all that are known */
    uint32_t min_members, window_ms;
    const char *waits; /* a sentence: what the next view waits for; "": nobody has asked for it */
};
struct ft_coord_replica_row {
    const char *name;
    int place;                         /* in the last view; -1: it is not in it */
    uint32_t local_size, alive, ready; /* ranks */
    uint64_t step;                     /* the lowest of its ranks */
};
struct ft_coord_member_row {
    struct ft_role role;                     /* replica "": a standby */
    uint64_t engine, host, step, silence_ns; /* of its connection, or that of its agent */
    bool ready;
};
/* Each function is called in the order group, its replicas, each followed by its members that are
 * alive, its standbys. The rows hold until it returns. NULL: it does not want them. */
struct ft_coord_visitor {
    void (*group)(void *arg, const struct ft_coord_group_row *);
    void (*replica)(void *arg, const struct ft_coord_replica_row *);
    void (*member)(void *arg, const struct ft_coord_member_row *);
    void *arg;
};
void ft_coord_visit(const struct ft_coord *, const struct ft_coord_visitor *);

#endif
