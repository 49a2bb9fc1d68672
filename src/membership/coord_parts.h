/*
 * Private to the coordinator: what its files share. coord.c has connections, messages and time;
 * coord_roles.c says who has which role; coord_held.c learns after a restart what members hold;
 * coord_quorum.c decides when there is a view; coord_view.c makes and sends it; coord_waits.c tells
 * members for what it waits; coord_table.c finds things by hash.
 *
 * Every event changes roles and marks groups as changed. At its end coord.c looks at
 * those groups: so what belongs to one event, as the end of a connection with eight members, counts
 * as one change.
 */
#ifndef FT_COORD_PARTS_H
#define FT_COORD_PARTS_H

#include "membership/coord.h"

#define FT_GROUPS_MOST 4096
#define FT_SOURCES_MOST 64 /* most ranks that one member is told to fetch from */
#define FT_NO_RANK UINT32_MAX
#define FT_WAITS_BYTES 512

/* ---- tables (coord_table.c) ------------------------------------------------------------------ */

struct ft_coord_node {
    struct ft_coord_node *next;
    uint64_t hash;
};
/* Does not own its nodes. Zeroed before its first use. */
struct ft_coord_table {
    struct ft_coord_node **bucket;
    size_t nbuckets, count;
};
/* Makes room for one more. False: no memory, and no room at all. */
bool ft_coord_table_reserve(struct ft_coord_table *);
void ft_coord_table_add(struct ft_coord_table *, struct ft_coord_node *, uint64_t hash);
void ft_coord_table_remove(struct ft_coord_table *, struct ft_coord_node *);
/* The first node of that hash; `from` not NULL: the next one after it. */
struct ft_coord_node *ft_coord_table_find(const struct ft_coord_table *,
                                          const struct ft_coord_node *from, uint64_t hash);
void ft_coord_table_close(struct ft_coord_table *);

/* The largest of some numbers that come and go, and how many have it. */
struct ft_coord_largest {
    uint32_t value, count;
    bool stale; /* who had it has gone: to be found again */
};

/* ---- members --------------------------------------------------------------------------------- */

/* A view that a member has. epoch 0: none. times: how often it has come: once, and again for each
 * step before which nothing had changed. */
struct ft_held {
    uint64_t term, epoch;
    uint32_t nranks, rank, times;
};

struct ft_coord_member {
    struct ft_coord_node by_engine; /* in group->engines */
    struct ft_coord_conn *conn;
    struct ft_coord_group *group;
    struct ft_coord_replica *replica; /* NULL: a standby */
    uint32_t slot, local_rank;
    bool asked, failed;   /* for the view after group->epoch */
    uint64_t waits_about; /* a hash of what it was told for what it waits; 0: nothing */
    uint64_t engine, step;
    uint64_t print; /* a hash of its endpoint, never 0 */
    struct ft_held held;
    uint32_t min_members, window_ms, suspect_ms;
    uint32_t silent_ms; /* its agent has not heard it for so long; 0: it has not told so */
    struct ft_coord_member *next, **link; /* standbys of the group, longest there first */
    uint32_t endpoint_bytes;
    unsigned char endpoint[];
};

struct ft_coord_place {
    struct ft_coord_member *member;
    uint64_t view_print; /* of who had it in the last view; 0: nobody */
    /* The engine that wants it while another process has it, and since when. */
    uint64_t wanted_by, wanted_ns;
    bool vacant; /* who had it is gone: a standby may get it */
};

/* Known while it has members, is in the last view, or is recalled. */
struct ft_coord_replica {
    struct ft_coord_node by_name; /* in group->replicas */
    struct ft_coord_group *group;
    char name[FT_NAME_BYTES];
    bool in_view;                  /* in the last one */
    bool recalled;                 /* of a view before this coordinator; none was made since */
    uint32_t view_rank, next_rank; /* in the last one, and in the one that is being made */
    uint32_t held_rank;            /* which its members tell after a restart */
    uint32_t size, nmembers, nasked, nvacant;
    uint32_t nsame;    /* members that had their role in the last view too */
    uint32_t nholders; /* members that hold group->told with held_rank */
    struct ft_coord_place place[];
};

struct ft_coord_group {
    struct ft_coord_node by_name; /* in coord->groups */
    struct ft_coord *coord;
    struct ft_coord_group *next, **link; /* all of the coordinator */
    struct ft_coord_group *next_changed;
    bool changed;
    char name[FT_NAME_BYTES];
    struct ft_coord_table engines, replicas;
    /* [nreplicas] in the order of their ranks; those not in the last view as they came */
    struct ft_coord_replica **order;
    size_t nreplicas, capacity;
    struct ft_coord_member *standbys, **last_standby;
    uint32_t nmembers, nstandbys, nasked; /* members: without standbys */
    uint32_t local_size;                  /* of all its replicas */
    uint32_t endpoint_most;               /* length of the longest endpoint */
    uint64_t config;
    char config_text[FT_ENDPOINT_TEXT_MAX + 1];
    struct ft_coord_largest min_members, window_ms;
    /* Replicas: with all their members; of which all have asked; of those, in the last view as the
     * same processes; of which all hold `told`; to be forgotten. And roles that are vacant. */
    uint32_t ncomplete, nready, nprevious, nheld, nempty, nvacant;
    /* The number that the next view will exceed. It is that of the last view, or greater. */
    uint64_t epoch;
    struct ft_held view;         /* the last one; nranks 0: none; rank is not used */
    uint64_t view_step, view_ns; /* its step, and when it was sent last; for pages */
    bool broken;                 /* the next one must be another */
    /* The highest view that members told, while it is not known whether all who hold it come. */
    struct ft_held told;
    bool restarted;      /* members told of views of another coordinator */
    bool settled;        /* that is over: `told` is empty, and stays so */
    uint64_t past_epoch; /* of the view that was told, when that is over */
    struct ft_held late; /* the highest one that was told after that, and may run on */
    bool no_memory;      /* for the view that is due */
    /* When the first member came; when the first of those who wait asked. */
    uint64_t began_ns, asked_ns;
    uint64_t waits_ns; /* when they were told last for what; 0: never */
};

struct ft_coord_conn {
    struct ft_coord *coord;
    void *owner;
    struct ft_coord_conn *next, *prev; /* the longest silent one first */
    uint64_t heard_ns;
    uint32_t suspect_ms; /* the largest of its members */
    bool over;           /* sends have failed; its owner knows */
    bool silent;         /* the owner was told to end it */
    uint32_t nslots;
    struct ft_coord_member **slot;
};

/* A replica of the last view of a group that has not come yet. */
struct ft_coord_recalled {
    struct ft_coord_recalled *next;
    struct ft_role role;
};

struct ft_coord {
    struct ft_coord_config config;
    struct ft_coord_recalled *recalled;
    uint64_t term, seed, now_ns, read_ns; /* now_ns: time in which this process ran */
    uint64_t epoch_floor;                 /* of groups that are forgotten */
    struct ft_coord_table groups;
    struct ft_coord_group *group, *changed;
    struct ft_coord_conn *oldest, *youngest; /* connections by when they were heard */
    uint32_t least_suspect_ms;               /* no member has told less; 0: none has told */
    struct ft_coord_counts counts;
};

/* ---- coord.c --------------------------------------------------------------------------------- */

void ft_coord_tell(struct ft_coord_conn *, enum ft_members_message, const void *bytes, size_t len);
/* slot, term, epoch, and a sentence if it is not NULL */
void ft_coord_tell_view_number(const struct ft_coord_member *, enum ft_members_message,
                               uint64_t term, uint64_t epoch, const char *why);
void ft_coord_refuse(struct ft_coord_conn *, uint32_t slot, int status, const char *fmt, ...)
    FT_PRINTF(4, 5);
void ft_coord_changed(struct ft_coord_group *);

/* ---- coord_roles.c --------------------------------------------------------------------------- */

enum ft_coord_end { FT_END_LEFT, FT_END_CLOSED, FT_END_SILENT, FT_END_DEAD, FT_END_REPLACED };
void ft_coord_join(struct ft_coord_conn *, const struct ft_members_join *);
/* The member is no more. */
void ft_coord_end(struct ft_coord_member *, enum ft_coord_end);
struct ft_coord_member *ft_coord_find_engine(const struct ft_coord_group *, uint64_t engine);
/* Gives vacant roles to standbys. */
void ft_coord_fill(struct ft_coord_group *);
/* Forgets replicas of which nothing is to be known any more. */
void ft_coord_sweep(struct ft_coord_group *);
/* It has no members. */
void ft_coord_forget(struct ft_coord_group *);

/* ---- coord_held.c ---------------------------------------------------------------------------- */

/* A member that registers holds this view, or says so. */
void ft_coord_hear_held(struct ft_coord_member *, const struct ft_held *);
/* Before it leaves its role. */
void ft_coord_drop_held(const struct ft_coord_member *);
/* Tells those who hold the last view that it is over. */
void ft_coord_break(struct ft_coord_group *, const char *why);
/* Makes the view that members told the last one if all who hold it are here; if its time is over
 * it is broken. */
void ft_coord_check_held(struct ft_coord_group *);
/* It is in the last view, and has it. */
bool ft_coord_has_view(const struct ft_coord_member *);

/* ---- coord_quorum.c -------------------------------------------------------------------------- */

/* What a replica counts for its group. Call it with -1 before and +1 after a change of a replica.
 */
void ft_coord_weigh(const struct ft_coord_replica *, int sign);
void ft_coord_ask(struct ft_coord_member *, const struct ft_members_ask *);
/* Its ask does not count any more. */
void ft_coord_unask(struct ft_coord_member *);
/* All who have asked must ask again, since the number of the next view is another. */
void ft_coord_ask_again(struct ft_coord_group *);
bool ft_coord_is_due(const struct ft_coord_group *);
void ft_coord_raise(struct ft_coord_group *, uint64_t epoch);
void ft_coord_largest_add(struct ft_coord_largest *, uint32_t value);
void ft_coord_largest_remove(struct ft_coord_largest *, uint32_t value);
/* Finds those that are stale again. */
void ft_coord_find_largest(struct ft_coord_group *);

/* ---- coord_view.c, coord_waits.c ------------------------------------------------------------- */

/* Sends the view that is due. Without memory for it nothing changes, and no_memory is set. */
void ft_coord_make_view(struct ft_coord_group *);
void ft_coord_tell_waits(struct ft_coord_group *);
/* For what the view waits for which members have asked, as a sentence. */
void ft_coord_write_waits(const struct ft_coord_group *, char out[FT_FAIL_BYTES]);
void ft_coord_tell_wait(const struct ft_coord_member *, const char *why);

#endif
