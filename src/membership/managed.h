/*
 * Managed membership: members register a role with a coordinator and receive views. Part of
 * membership.h, which other folders include. docs/managed.md explains the protocol.
 *
 * A *replica* is a number of ranks that belong together. A *role* is a place in a replica: its name
 * and a local rank. A *member* is a process with a role. A *view* lists the replicas that go on
 * together. All ranks with one local rank form a communicator across the replicas of the view; the
 * ranks of one replica form another.
 *
 * coord.h is the coordinator without sockets; coord_server.c gives it a port and a thread. client.c
 * is the side of a member. managed_wire.c has the formats.
 */
#ifndef FT_MANAGED_H
#define FT_MANAGED_H

#include "membership/membership.h"
#include "transport/transport.h"

#define FT_MEMBERS_SERVICE 3   /* in messages of daemons, see base/wire.h */
#define FT_NAME_BYTES 64       /* of a group or a replica, with the 0 at its end */
#define FT_LOCAL_MOST 1024     /* most ranks of a replica */
#define FT_COORDINATORS_MOST 8 /* most addresses of coordinators that a member knows */
#define FT_MEMBERS_MESSAGE_MOST ((size_t)64 << 20) /* longest message to a member */
#define FT_MEMBERS_REQUEST_MOST ((size_t)64 << 10) /* longest message to a coordinator */
#define FT_DEAD_MOST 4096                          /* most dead engines that an ASK names */
#define FT_EPOCH_MOST (UINT64_C(1) << 62)          /* no member holds a later view */

/* Which place a member has. replica "": it is a standby, and has none yet. */
struct ft_role {
    char group[FT_NAME_BYTES], replica[FT_NAME_BYTES];
    uint32_t local_rank, local_size;
};

/* ---- a coordinator in this process (coord_server.c) ------------------------------------------ */

struct ft_coordinator;
/* Listens on `listen` (HOST:PORT; port 0: any), and serves members with one thread until it is
 * stopped. address: the first address at which members reach it, as HOST:PORT. FT_INVAL, FT_NOFILE,
 * FT_NOMEM, FT_SYSTEM, with a sentence. */
int ft_coordinator_start(const char *listen, const unsigned char key[FT_SECRET_BYTES],
                         char address[FT_NET_TEXT_BYTES], struct ft_coordinator **out);
/* How many processes have a role, in all groups; standbys do not count. */
int ft_coordinator_members(struct ft_coordinator *);
/* Members are not told; they go on, and look for another coordinator. Blocks until its thread has
 * ended. */
void ft_coordinator_stop(struct ft_coordinator *);

/* ---- a member's side (client.c) -------------------------------------------------------------- */

struct ft_client;
struct ft_client_config {
    struct ft_env *env;
    struct ft_net_address address[FT_COORDINATORS_MOST];
    int naddresses;
    unsigned char key[FT_SECRET_BYTES];
    struct ft_role role;
    const struct ft_endpoint *endpoint; /* copied */
    uint32_t min_members; /* fewer replicas make no view; the largest of a group counts */
    uint32_t window_ms;   /* how long a view waits for replicas that do not ask; likewise */
    uint32_t heartbeat_ms, suspect_ms;
    /* The view of that number is over, although this member may not see why: what runs in it must
     * end. Called by the client's thread, once for a view, and perhaps before ft_client_view() has
     * given it. It may not wait. */
    void (*broken)(void *arg, uint64_t term, uint64_t epoch, const char *why);
    void *arg;
};
/* Starts the thread of the client, which connects, registers, sends heartbeats, and registers again
 * wherever a coordinator is to be found. Does not wait. FT_NOMEM, FT_NOFILE, FT_SYSTEM. */
int ft_client_open(const struct ft_client_config *, struct ft_client **out);
/* Blocks until a coordinator has accepted this member. FT_TIMEOUT, FT_ABORTED, or why it was
 * refused: FT_USAGE, FT_MISMATCH, FT_FENCED, FT_AUTH, FT_VERSION; all with a sentence. */
int ft_client_accepted(struct ft_client *, uint64_t timeout_ns, const atomic_int *cancel);
/* The role that it has now. A standby's changes once, when it gets one. */
void ft_client_role(struct ft_client *, struct ft_role *out);

/* A view as one member gets it. Ranks are those of the communicator across replicas. */
struct ft_managed_view {
    /* term: of the coordinator that made it, a random number; with the epoch it names the view */
    uint64_t term, epoch;
    uint64_t step;
    /* It is the view that this member had before, and only the step, nhealthy, behind and the
     * sources may differ. */
    bool same;
    bool behind; /* a rank of its replica is not at `step` */
    int nranks, rank, nhealthy, nsources;
    int *sources;             /* [nsources] in the order in which this member should try them */
    struct ft_endpoint *peer; /* [nranks] */
    int local_rank, local_size;
    struct ft_endpoint *local; /* [local_size] the ranks of this replica */
};
void ft_managed_view_free(struct ft_managed_view *);

struct ft_view_ask {
    uint64_t step;
    bool failed; /* what this member had of the last view has failed: the next must be a new one */
    /* [ndead] engines whose processes have certainly ended, as far as this member knows */
    const uint64_t *dead;
    int ndead;
    uint64_t timeout_ns;
    const atomic_int *cancel;
    /* Listens to what the others may send as soon as they have the view of that term and epoch.
     * The caller of ft_client_view() calls it, before the coordinator hears that this member is
     * ready; again, if the next view is another one. What an earlier call began is over then, also
     * one of an earlier ft_client_view(). It is not called if the view of an earlier
     * ft_client_view(), which had timed out, has come since: that one's binding holds. */
    int (*bind)(void *arg, const struct ft_role *, uint64_t term, uint64_t epoch);
    void *arg;
};
/* Asks for the next view, and blocks until there is one. The caller frees it. FT_TIMEOUT, with a
 * sentence that names what the coordinator waits for; FT_ABORTED; FT_FENCED: another has this role
 * now; or what bind returned. One thread at a time. */
int ft_client_view(struct ft_client *, const struct ft_view_ask *, struct ft_managed_view **out);
/* leave: the coordinator is told that this member ends; bounded by 100 ms. Ends the thread. */
void ft_client_close(struct ft_client *, bool leave);

/* ---- formats (managed_wire.c) ---------------------------------------------------------------- */

/* After the header of base/wire.h. A connection may carry many members, those of a host: `slot` is
 * a number of the sender's choice (below FT_SLOTS_MOST) that tells them apart. Names are a length
 * (1) and bytes. */
#define FT_SLOTS_MOST 4096
enum ft_members_message {
    /* From a member or the agent of its host. */
    FT_MEMBERS_JOIN = 1, /* struct ft_members_join */
    FT_MEMBERS_ASK,      /* struct ft_members_ask: it is ready for the view after this epoch */
    FT_MEMBERS_BEAT,     /* nothing: all members of the connection are alive; it is answered */
    FT_MEMBERS_LEAVE,    /* slot (4): it ends */
    /* From an agent. slot (4): its process has ended. slot (4), ms (4): it has been silent for so
     * long. */
    FT_MEMBERS_GONE,
    /* Nothing: as BEAT, but it is not answered. Answers cost a coordinator more than heartbeats, so
     * BEAT is for who has heard nothing for a part of the silence that it bears. */
    FT_MEMBERS_QUIET_BEAT,
    /* From the coordinator. */
    FT_MEMBERS_JOINED = 16, /* slot (4), term (8), epoch (8), struct ft_role: accepted; or a standby
                             * has got this role */
    FT_MEMBERS_REFUSED,     /* slot (4), status (4), a sentence (rest). FT_AGAIN: try again */
    FT_MEMBERS_EPOCH,       /* slot (4), term (8), epoch (8): the last view now; ask again */
    FT_MEMBERS_VIEW,        /* struct ft_members_view */
    FT_MEMBERS_BROKEN,      /* slot (4), term (8), epoch (8), a sentence (rest) */
    FT_MEMBERS_WAITS,       /* slot (4), a sentence (rest): for what the coordinator waits */
    FT_MEMBERS_ALIVE        /* nothing: answers BEAT */
};

/* What a member says when it registers. held: the view that it has, and how many times that has
 * come, since an unchanged view comes before each step; nranks 0: it has none, but a coordinator
 * told it of that one; epoch 0: neither. */
struct ft_members_join {
    uint32_t slot;
    struct ft_role role;
    uint64_t engine; /* of the endpoint; tells apart processes that claim one role */
    uint64_t step, held_term, held_epoch;
    uint32_t held_nranks, held_rank, held_times;
    uint32_t min_members, window_ms, suspect_ms;
    const unsigned char *endpoint; /* encoded by ft_endpoint_encode() */
    size_t endpoint_bytes;
};
struct ft_members_ask {
    uint32_t slot;
    uint64_t step, term, epoch; /* of the last view as it knows it: it has bound the next */
    bool failed;
    const unsigned char *dead; /* [ndead] engine ids, 8 bytes each */
    uint32_t ndead;
};
/* The change from a view to the next. base_epoch 0: everything is listed. Else the members of the
 * base, less those at `gone` (ranks of the base, ascending), keep their order; those of `added` are
 * put in at their new ranks, in ascending order. */
struct ft_members_view {
    uint32_t slot;
    uint64_t term, epoch, base_term, base_epoch, step;
    uint32_t nranks, rank, nhealthy;
    bool behind;
    uint32_t nsources, ngone, nadded;
    const unsigned char *sources; /* [nsources] ranks, 4 bytes each */
    const unsigned char *gone;    /* [ngone] ranks, 4 bytes each */
    const unsigned char *added;   /* [nadded] rank (4), length (4), the encoded endpoint */
    size_t added_bytes;
    /* The ranks of the replica; 0: as in the base. */
    uint32_t nlocal;
    const unsigned char *local; /* [nlocal] length (4), the encoded endpoint */
    size_t local_bytes;
};
/* Each encode returns the length of the message without its header; out NULL: only counts. Each
 * decode returns FT_OK or FT_PROTOCOL, and what it gives points into `in`; everything in it,
 * lengths of lists included, has been checked against `len`. */
size_t ft_members_join_encode(unsigned char *out, const struct ft_members_join *);
int ft_members_join_decode(const unsigned char *in, size_t len, struct ft_members_join *);
size_t ft_members_ask_encode(unsigned char *out, const struct ft_members_ask *);
int ft_members_ask_decode(const unsigned char *in, size_t len, struct ft_members_ask *);
size_t ft_members_role_encode(unsigned char *out, const struct ft_role *);
/* *used: the bytes that it took. */
int ft_members_role_decode(const unsigned char *in, size_t len, struct ft_role *, size_t *used);
size_t ft_members_view_encode(unsigned char *out, const struct ft_members_view *);
/* Only what comes before `gone`. `gone`, `added` and `local` follow it, one after another. */
size_t ft_members_view_encode_head(unsigned char *out, const struct ft_members_view *);
int ft_members_view_decode(const unsigned char *in, size_t len, struct ft_members_view *);

#endif
