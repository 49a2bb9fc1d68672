/*
 * Many members of managed membership against one coordinator, over loopback. main.c forks the
 * coordinator and the load processes, tells them what to do and prints what it took; load.c is a
 * load process; conn.c its connections, each with the members of a host as an agent relays them;
 * member.c says what members send, and checks what they get.
 *
 * Members are numbered through: member m has local rank m % local of replica m / local, and slot
 * m % slots of connection m / slots.
 */
#ifndef FT_TESTS_SCALE_H
#define FT_TESTS_SCALE_H

#include "membership/membership.h"
#include "membership/managed.h"

#include "base/auth.h"
#include "base/wire.h"

#define TYPES 32           /* of messages: more than there are */
#define LOADS_MOST 8       /* load processes */
#define KEPT_BYTES 512     /* what is kept of a message; members that are samples keep all of it */
#define SAMPLES 4          /* connections of a load process whose members are samples */
#define HANDSHAKES_MOST 48 /* at a time over all processes, without burst */

struct shape {
    uint32_t members, local, slots, endpoint_bytes, loads, rounds;
    /* The members hold a view of an earlier coordinator when they join, so the first view is a
     * change of that one. */
    bool held;
    bool burst;         /* all connect at once, as after a restart of the coordinator */
    uint32_t spread_ms; /* over which a round of heartbeats is spread */
};

/* What all processes share. Times and sums are those of the present phase. */
struct shared {
    struct shape shape;
    struct ft_net_address at;
    unsigned char key[FT_SECRET_BYTES];
    uint32_t replaced;    /* the replica that the next drop ends */
    bool changes;         /* the next view is another one */
    uint32_t asks, round; /* one heartbeat in so many asks for an answer, which ones: by round */
    uint64_t old_epoch;   /* of the last view */
    atomic_uint_fast64_t term, epoch;                /* of the view that members get; 0: none yet */
    atomic_uint_fast64_t first_ns, sent_ns, last_ns; /* the first byte out, the last one, the end */
    atomic_uint_fast64_t bytes_in[TYPES], bytes_out[TYPES];
    atomic_uint_fast64_t messages_in[TYPES];
    atomic_uint faults, again; /* again: handshakes that the coordinator did not finish */
    uint32_t *generation;      /* [replicas] which processes have the replica now */
    atomic_uint *rank;         /* [replicas] 1 + rank in the view; 0: not known yet */
};

static inline uint32_t shape_replicas(const struct shape *shape)
{
    return shape->members / shape->local;
}
static inline uint32_t shape_conns(const struct shape *shape)
{
    return (shape->members + shape->slots - 1) / shape->slots;
}

/* What a load process does, one after another. It answers when it is done. */
enum command {
    COMMAND_JOIN = 'j',  /* connects what is not connected, and registers its members */
    COMMAND_BEAT = 'b',  /* a heartbeat on each connection; the last one asks for an answer */
    COMMAND_ASK = 'a',   /* every member asks for a view */
    COMMAND_DROP = 'd',  /* connections of the replaced replica end */
    COMMAND_CHECK = 'c', /* compares the lists of samples */
    COMMAND_END = 'e'
};
/* The process number `index`. Commands come on one descriptor, answers go to the other. */
int load_run(struct shared *, uint32_t index, int commands, int answers);

/* ---- conn.c ---------------------------------------------------------------------------------- */

struct load;
struct member {
    uint64_t term, epoch, step; /* of the last view; before it, what the coordinator has said */
    bool waits;                 /* for an answer */
    uint32_t rank, nlist;
    uint64_t *list; /* of a sample: digests of the endpoints of its view */
};
struct conn {
    uint32_t number;
    int fd;
    enum { CONN_CLOSED, CONN_CONNECTS, CONN_PROVES, CONN_OPEN } state;
    bool sample;
    struct ft_auth auth;
    unsigned char *out; /* what could not be sent yet */
    size_t out_bytes, out_done;
    unsigned char head[FT_DAEMON_HEADER_BYTES], kept[KEPT_BYTES];
    unsigned char *whole; /* of a sample's message that is longer than kept[] */
    size_t head_done, len, done;
    uint16_t type;
};
/* A process's part of the connections and members. */
struct load {
    struct shared *shared;
    struct ft_env *env;
    int epoll;
    uint32_t index, first, nconns, first_member, nmembers;
    struct conn *conn;
    struct member *member;
    uint32_t handshakes, handshakes_most, next; /* under way; the next connection to be made */
    uint32_t waits;                             /* answers that are missing in this phase */
    bool joins;
    unsigned char *scratch;
};
/* Begins connections, as many at a time as the coordinator likes. */
void conn_start_some(struct load *);
void conn_turn(struct load *, struct conn *, uint32_t events);
void conn_close(struct load *, struct conn *);
/* Messages that are built in `bytes`, headers included. Keeps what cannot go out now. */
void conn_send(struct load *, struct conn *, const unsigned char *bytes, size_t len);
/* Writes a header; returns its length. */
size_t conn_header(unsigned char *out, size_t len, uint16_t type);
void scale_fault(struct load *, const char *fmt, ...) FT_PRINTF(2, 3);

/* ---- member.c -------------------------------------------------------------------------------- */

void member_join_all(struct load *, struct conn *);
void member_ask_all(struct load *, struct conn *);
/* A message has come; `kept` of its bytes are here. */
void member_take(struct load *, struct conn *, const unsigned char *bytes, size_t kept);
/* Compares the lists of a connection's members with those that there should be. */
void member_check(struct load *, struct conn *);
size_t member_endpoint(const struct shape *, uint32_t number, uint32_t generation,
                       unsigned char out[FT_ENDPOINT_WIRE_MAX]);

static inline uint32_t member_count(const struct load *load, const struct conn *c)
{
    const struct shape *shape = &load->shared->shape;
    const uint32_t left = shape->members - c->number * shape->slots;
    return left < shape->slots ? left : shape->slots;
}
static inline struct member *member_of(struct load *load, const struct conn *c, uint32_t slot)
{
    return &load->member[c->number * load->shared->shape.slots + slot - load->first_member];
}
static inline void atomic_most(atomic_uint_fast64_t *to, uint64_t value)
{
    uint_fast64_t old = atomic_load(to);
    while (old < value && !atomic_compare_exchange_weak(to, &old, value))
        ;
}

#endif
