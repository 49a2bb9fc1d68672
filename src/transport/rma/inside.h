/*
 * The inside of rma. rma.c has the transport and its turn; link.c makes and ends links; ways.c
 * keeps their ways and moves traffic between them; side_messages.c speaks over the side connection;
 * post.c gives writes to ways; send.c and recv.c have the two ends of a link; memory.c lends it
 * memory of the user.
 *
 * Memory. The receiver of a link has places, into which the sender writes messages: RMA_SMALLS
 * descriptors for short ones, and some data slots, which begin with a descriptor. The sender keeps
 * a copy of each place, in which it builds what it writes; both lie at the same offset. In the
 * other direction the receiver writes lines, which return places and parts of windows. Every
 * message and every line is one write with an immediate, which names the place and the low half of
 * its turn, the number of the message or line from 1. Arrival is known by immediates only.
 *
 * Order. Writes go over several ways, and arrive in any order; they are handled in the order of
 * their turns. So no channel is ever out of order, and at most RMA_TURNS turns are on the way.
 *
 * Long messages. If plans were made for another network (ft_transport_config.first_bytes), a
 * message may be longer than a slot. Then it fills several that lie together. The receiver copies
 * such messages at once, and from then on all messages of the link when they are received, so that
 * slots become free together.
 *
 * Credits. A place belongs to the sender until it has written there, and again when it is returned.
 * So at most the slots' bytes are in flight.
 */
#ifndef FT_RMA_INSIDE_H
#define FT_RMA_INSIDE_H

#include "transport/news.h"
#include "transport/rma/rma.h"
#include "transport/rxq.h"
#include "transport/side.h"

#include <pthread.h>

#define RMA_SMALLS 256
#define RMA_SLOTS_MOST 32
#define RMA_PLACES_MOST (RMA_SMALLS + RMA_SLOTS_MOST)
/* Places of lines, and most numbers on the way. Messages are fewer, because each has a place. A
 * line that returns places has one at least that the sender cannot use before it has handled the
 * line. Lines that only return windows have no such bound: there are at most RMA_WINDOW_LINES lines
 * when one is written, of which the sender has not said that it has handled them. It says so for
 * each RMA_TELL of them. */
#define RMA_TURNS 1024
#define RMA_WINDOW_LINES (RMA_TURNS - RMA_PLACES_MOST)
#define RMA_TELL 128
_Static_assert(RMA_PLACES_MOST <= RMA_TURNS, "numbers of messages on the way fit into their ring");
_Static_assert(2 * RMA_TELL <= RMA_WINDOW_LINES, "the sender speaks before the receiver must wait");

#define RMA_CONNECT_NS 10000000000u
#define RMA_STOP_NS 1000000000u /* longest time for what ends a link to end by itself */
/* Likewise after a goodbye: a network that loses packets repeats the last writes meanwhile. */
#define RMA_LEAVE_NS 4000000000u
/* After the loss of all ways a goodbye may still come, for so long. */
#define RMA_GOODBYE_NS 20000000u
#define RMA_LENT_NS 50000000u /* longest time that disconnect waits for memory that is lent */
#define RMA_LOOK_NS 2000000u  /* look_ns while a link is not calm */
#define RMA_LEND_BYTES 4096   /* shorter payloads are copied from the user's memory */
#define RMA_NO_WAY 0xff
#define RMA_WHY_BYTES 256 /* of a sentence */

/* Before each payload; a small one lies in it. */
struct rma_desc {
    struct ft_header header;
    unsigned char small[FT_RXQ_SMALL_BYTES];
    uint32_t zero;
    uint32_t turn;
};
_Static_assert(sizeof(struct rma_desc) == FT_CACHE_LINE, "a wire format");

#define RMA_LINE_SLOTS 12
#define RMA_LINE_CHANNELS 2
/* Set in an entry of rma_line.slot: the place is free, but the message still fills its window. */
#define RMA_SPILLED 0x8000u
struct rma_line {
    uint32_t turn;
    uint8_t nslots, nchannels;
    uint16_t zero;
    uint16_t slot[RMA_LINE_SLOTS];
    /* Windows of messages whose places were returned before. */
    struct {
        uint64_t ctx;
        uint16_t lane, places;
        uint32_t zero;
    } channel[RMA_LINE_CHANNELS];
};
_Static_assert(sizeof(struct rma_line) == FT_CACHE_LINE, "a wire format");

/* Immediates of writes that carry nothing. One is sent only to know that all before it have ended;
 * the other by a sender, with the low half of the number of the line that it handles next. */
#define RMA_NOTHING 0xffffffffu
#define RMA_HANDLED 0xfffeu
static inline uint32_t rma_immediate(unsigned place, uint32_t turn)
{
    return (uint32_t)place << 16 | (turn & 0xffff);
}

/* A place that this side writes, and what is written there. */
struct rma_post {
    enum rma_post_state {
        RMA_FREE,    /* of lines: also what has been sent */
        RMA_FILLING, /* of messages: reserved */
        RMA_QUEUED,  /* waits for a way */
        RMA_SENT,
        RMA_RETURNED /* likewise, but the write that reads memory of the user has not ended here */
    } state;
    uint8_t way;          /* over which it was sent */
    uint8_t lane, window; /* of a message: places of its channel's window that it fills */
    uint32_t turn;
    uint32_t len_bytes; /* of the write */
    uint32_t len;       /* of a message's payload */
    uint64_t ctx;
    /* of a message whose payload lies in memory of the user: */
    const struct ft_fabric_region
        *from; /* NULL: in the place, or the memory is not lent any more */
    size_t from_offset;
    struct ft_send *req; /* pending while `from` is set */
    uint32_t number;     /* the write's, of those that were given to its way */
    bool bare;           /* the payload is not in the place */
};

/* What this side writes: messages or lines. */
struct rma_out {
    struct rma_post *post;
    unsigned places;
    uint32_t next; /* the turn of the next one */
    unsigned head, count;
    uint16_t queue[RMA_TURNS]; /* places that wait for a way */
};

/* What the other side writes. */
struct rma_in {
    uint32_t expected;        /* the next turn to handle */
    uint16_t ring[RMA_TURNS]; /* by turn: 1 + the place of what has arrived too early */
};

/* What a side says when its end of a way is stopped: which turns have arrived, over any way. */
struct rma_answer {
    uint32_t expected;
    unsigned char early[RMA_TURNS / 8]; /* a bit for each turn from `expected` on */
};

enum rma_way_state {
    RMA_WAY_NONE,
    RMA_WAY_OPENING, /* the two sides exchange infos */
    RMA_WAY_READY,
    RMA_WAY_STOPPING, /* until this side's end is stopped */
    RMA_WAY_STOPPED   /* until the other side has said what arrived */
};
/* What is to be said about a way, in this order. */
enum { RMA_SAY_DEAD = 1, RMA_SAY_STOPPED = 2, RMA_SAY_OPEN = 4, RMA_SAY_READY = 8 };
struct rma_way {
    struct ft_fabric_way *fabric;
    enum rma_way_state state;
    uint32_t generation; /* how often it was opened */
    uint32_t given;      /* writes */
    unsigned unwritten;  /* of them, those that have not ended */
    unsigned silent;     /* the last ones, none of which was asked for */
    unsigned say;
    bool connected, probed; /* OPENING: this end is connected; a first write was given to it */
    bool answered;          /* by the other side: `answer` */
    bool heard;             /* the other side knows that it is dead */
    bool unsaid;            /* STOPPING: the other side does not know that it was opened */
    unsigned attempts;      /* to open it since it was ready */
    /* OPENING: when it is given up; NONE: when it is opened again; 0: never */
    uint64_t deadline_ns;
    struct rma_answer answer;
    char why[RMA_WHY_BYTES]; /* it was lost, or cannot be opened */
};

enum rma_link_phase {
    RMA_MAKING,
    RMA_OPEN,
    RMA_CLOSING, /* no more writes; DOWN when all ways are stopped */
    RMA_CLOSED   /* DOWN */
};

struct rma_link {
    struct ft_link base; /* must be the first field */
    struct rma *rma;
    struct rma_link *next;
    struct ft_news news;
    enum rma_link_phase phase;
    bool known;   /* the user has been told of it, or made it */
    bool left;    /* the user has disconnected it: it ends in the background */
    bool goodbye; /* the other side said goodbye, after `last` turns */
    bool calm;    /* nothing is to be done for it but messages and returns */
    bool say_hello, say_goodbye, say_refuse;
    char why[RMA_WHY_BYTES]; /* it is refused */
    uint32_t last;
    uint64_t deadline_ns;
    uint64_t lost_ns;          /* CLOSING: when all ways were lost; 0: it ends for another reason */
    struct ft_side_conn *side; /* NULL: ended */
    unsigned nways, rotation;
    struct rma_way way[FT_FABRIC_WAYS_MAX];
    /* inside: written by the other side. outside: what this side writes. */
    unsigned char *inside, *outside;
    size_t inside_bytes, outside_bytes;
    struct ft_fabric_region *inside_region, *outside_region;
    struct rma_out out;
    struct rma_in in;
    struct rma_post post[RMA_TURNS];
    /* of the sender: */
    struct ft_txq txq;
    uint64_t smalls_free[RMA_SMALLS / 64];
    uint32_t slots_free;
    uint32_t lent;     /* a bit per data slot: its message lies in memory of the user */
    unsigned reserved; /* data slots in reservations */
    uint32_t told;     /* the next line to handle, as the receiver was told */
    /* of the receiver: */
    struct ft_rxq rxq;
    struct rma_line line;   /* returns that are not written yet */
    bool due;               /* the other side may wait for them */
    unsigned idle;          /* turns since the last one */
    uint32_t handled;       /* the line that the sender handles next, as far as it has said */
    bool longs;             /* it has got messages that fill several slots */
    unsigned nsmalls;       /* small places that hold unconsumed messages */
    uint32_t held, claimed; /* a bit per data slot: a message lies there; a view of it is in use */
    unsigned crowded;       /* turns in which half of the slots or more were held */
    uint64_t occupied[RMA_PLACES_MOST / 64 + 1]; /* a bit per place: not returned yet */
    uint32_t filled; /* a bit per data slot: likewise, with the slots behind the first */
    struct ft_rxq_node *holder[RMA_PLACES_MOST];
};

/* Memory of the user that is registered. */
struct rma_memory {
    struct rma_memory *next;
    struct ft_fabric_region *region;
    unsigned users;
};

struct rma {
    struct ft_transport base; /* must be the first field */
    struct ft_fabric *fabric;
    struct ft_side *side;
    int epoll_fd;
    struct ft_rxq_set set;
    size_t chunk_bytes, stride_bytes; /* of a slot: payload, and from one to the next */
    unsigned slots;
    struct rma_link *links;
    struct ft_news_list news;
    bool calm;        /* all links are */
    unsigned skipped; /* turns since the side connections were looked at */
    pthread_mutex_t memory_lock;
    struct rma_memory *memories; /* protected by the lock */
    _Atomic unsigned nmemories;  /* changed under the lock */
};

static inline struct rma *rma_of(struct ft_transport *t)
{
    return FT_CONTAINER(t, struct rma, base);
}
static inline struct rma_link *rma_link_of(struct ft_link *l)
{
    return FT_CONTAINER(l, struct rma_link, base);
}

/* layout: offset of a message's place, and bytes of all */
static inline size_t rma_offset(const struct rma *t, unsigned place)
{
    return place < RMA_SMALLS
               ? place * sizeof(struct rma_desc)
               : RMA_SMALLS * sizeof(struct rma_desc) + (place - RMA_SMALLS) * t->stride_bytes;
}
static inline size_t rma_places_bytes(const struct rma *t)
{
    return rma_offset(t, RMA_SMALLS + t->slots);
}
/* A bit for each data slot that a message fills. One that is longer than a chunk fills several. */
static inline uint32_t rma_slots_of(const struct rma *t, unsigned place, size_t len_bytes)
{
    const size_t n = (sizeof(struct rma_desc) + len_bytes + t->stride_bytes - 1) / t->stride_bytes;
    return place < RMA_SMALLS ? 0 : (uint32_t)((((uint64_t)1 << n) - 1) << (place - RMA_SMALLS));
}
#define RMA_LINES_BYTES (RMA_TURNS * sizeof(struct rma_line))

/* link.c */
int rma_link_connect(struct rma *, uint64_t peer, const void *address, size_t len_bytes,
                     struct rma_link **out);
void rma_link_add(struct rma *, struct rma_link *, uint64_t peer, bool sender);
int rma_link_allocate(struct rma_link *); /* memory, regions, queues */
/* Sender: the side connection is up. */
void rma_link_begin(struct rma_link *);
void rma_link_up(struct rma_link *);
/* Begins to end it: what has arrived until its ways are stopped can still be received. The sentence
 * is in ft_fail_text(). Only the first call has an effect. */
void rma_link_close(struct rma_link *, int reason, bool orderly);
void rma_link_turn(struct rma_link *, uint64_t now_ns); /* deadlines, and steps of ending */
void rma_link_free(struct rma_link *);                  /* at once, in any phase */

/* ways.c */
int rma_way_open(struct rma_link *, unsigned k, uint64_t now_ns);
void rma_way_fail(struct rma_link *, unsigned k, const char *why);
void rma_way_stop(struct rma_link *, unsigned k);
void rma_way_stopped(struct rma_link *, unsigned k);
void rma_way_finish(struct rma_link *, unsigned k);
bool rma_ways_stopped(const struct rma_link *);
void rma_ways_turn(struct rma_link *, uint64_t now_ns);
/* The first write over it has ended. */
void rma_way_probed(struct rma_link *, unsigned k);
void rma_way_ready(struct rma_link *, unsigned k);
unsigned rma_ways_ready(const struct rma_link *);

/* side_messages.c */
void rma_side_event(struct rma *, const struct ft_side_event *);
bool rma_side_say(struct rma_link *); /* says what there is to say; true: all of it */

/* post.c */
void rma_post_open(struct rma_link *);
/* Writes a filled place, now or when a way has room for it. */
void rma_post(struct rma_link *, unsigned place, size_t len_bytes);
bool rma_post_queued(struct rma_link *); /* goes on with those that wait; true: something moved */
void rma_post_again(struct rma_link *, unsigned k); /* what way k has not delivered */
/* Writes nothing, with an immediate. False: no way has room. */
bool rma_post_nothing(struct rma_link *, uint32_t immediate);
bool rma_post_flushed(struct rma_link *);
void rma_written(struct rma_link *, unsigned k, unsigned count);
void rma_answer(const struct rma_link *, struct rma_answer *);
/* Notes that a turn has arrived in a place, and returns FT_PROTOCOL if that cannot be. */
int rma_arrive(struct rma_in *, uint32_t turn, unsigned place);

/* send.c */
void rma_put_place(struct rma_link *, unsigned place); /* it is free again */
int rma_take_line(struct rma_link *, uint32_t immediate);
void rma_tell_handled(struct rma_link *); /* if it is time to */

/* memory.c */
/* Whether the payload is written from where it lies, which the fabric knows. Then req is pending
 * until rma_lent_end(). */
bool rma_lend(struct rma_link *, unsigned place, const void *data, struct ft_send *req);
/* Nothing, if it is not lent. A place that has been returned becomes free. */
void rma_lent_end(struct rma_link *, unsigned place, int status);
void rma_lent_written(struct rma_link *, unsigned k); /* writes of way k have ended */
void rma_lent_end_all(struct rma_link *, int status);

/* rma.c */
void rma_fabric_turn(struct rma *, bool *busy);

/* recv.c */
int rma_take_message(struct rma_link *, uint32_t immediate);
int rma_take_handled(struct rma_link *, uint32_t immediate);
void rma_consumed(struct ft_rxq *, struct ft_rxq_node *);
bool rma_return(struct rma_link *, bool all); /* writes what is to be returned */
bool rma_spill(struct rma_link *, bool now);

#endif
