/*
 * net: the inside of the transport over a network plugin. net.c has the transport and its turn;
 * setup.c makes and ends links; send.c and recv.c move frames; plugin.c calls the plugin.
 *
 * A link has two comms of the plugin: one carries frames from the sender, the other one credits
 * back. Handles, the news that both ends are ready, goodbyes, death and silence come over a side
 * connection. A frame is a struct ft_header and up to frame_bytes of its payload, in one message of
 * the plugin. A longer message goes on in frames without a header, with no other frame between.
 *
 * The plugin sees only memory of the link, which is registered when the link is made. A slot is
 * laid out so that the payload begins at a cache line. The receiver always has receives posted: if
 * too many slots are out as views, messages are copied to the channel's own memory.
 */
#ifndef FT_NET_H
#define FT_NET_H

#include "transport/net_plugin/plugin.h"
#include "transport/rxq.h"
#include "transport/side.h"

#define NET_FRAME_BYTES 131072 /* most payload of a frame, also if chunks are longer */
#define NET_SMALL_BYTES 2048   /* longest small message; a window has more places for these */
#define NET_PLACES_FIRST FT_WINDOW_SMALL
#define NET_PLACES 16
#define NET_LARGE 8                              /* slots for long frames, on either side */
#define NET_SMALL (NET_ABI_REQUESTS - NET_LARGE) /* slots for small frames of a sender */
#define NET_POSTED_LEAST (NET_LARGE / 2)         /* receives that stay posted whatever is held */
#define NET_LONGS 4 /* buffers for reserved messages that are longer than a frame */
#define NET_QUEUE (NET_ABI_REQUESTS + NET_LONGS + 1)
#define NET_CREDITS 256      /* most channels with credits to return */
#define NET_CREDIT_SLOTS 8   /* slots for frames of credits, on either side */
#define NET_CREDITS_FRAME 32 /* most credits in a frame */
#define NET_KEEP_TURNS 256   /* turns for which credits that are not due wait at most */
#define NET_FRONT 64         /* bytes of a slot before the payload; the header is at their end */
#define NET_SETUP_NS 10000000000u /* to make a link, once its side connection is up */
/* A receive of the plugin failed: time until the side connection says what has happened. */
#define NET_WORD_NS 50000000u
/* After the peer's goodbye: time until its frames have come. After its end: time without a frame,
 * after which none is under way. */
#define NET_LAST_NS 1000000000u
#define NET_REST_NS 2000000u
/* While traffic flows, and when there has been none for NET_IDLE_NS. Then who sends rings. */
#define NET_LOOK_NS 1000000u
#define NET_LOOK_IDLE_NS 5000000u
#define NET_IDLE_NS 20000000u

enum net_kind { NET_HELLO = 1, NET_READY, NET_REFUSED, NET_GOODBYE, NET_RING };

struct net_hello {
    uint64_t chunk_bytes, first_bytes, frame_bytes;
    unsigned char handle[NET_ABI_HANDLE_BYTES];
};

struct net_credit {
    uint64_t ctx;
    uint16_t lane, count;
    uint32_t zero;
};
_Static_assert(sizeof(struct net_credit) == 16, "struct net_credit is a wire format");

/* Slots from which frames are sent, in order. */
struct net_out {
    void *comm, *registered;
    unsigned char *memory;
    size_t memory_bytes, slot_bytes; /* of large slots, which come first */
    unsigned nlarge, nsmall;
    uint32_t free; /* a bit for each slot */
    struct {
        void *request;
        uint32_t len_bytes;
        uint8_t slot;
    } ring[NET_ABI_REQUESTS];
    unsigned head, count, posted; /* the first `posted` are with the plugin */
    uint64_t frames;              /* put into the ring so far */
};

/* Slots into which frames are received, in the order of posted[]. */
struct net_in {
    void *listener, *comm, *registered;
    unsigned char *memory;
    size_t memory_bytes, slot_bytes;
    unsigned nslots;
    uint32_t idle; /* a bit for each slot that is to be posted */
    struct {
        void *request;
        uint8_t slot;
    } ring[NET_LARGE];
    unsigned head, count;
    uint64_t frames;
};

/* A message that has been accepted, and that is not in the ring completely. */
struct net_item {
    struct ft_header header;
    int slot; /* it lies there; -1: it is longer than a frame, and lies at data */
    const void *data;
    struct ft_send *req; /* NULL: the message was reserved */
    int buffer;          /* where it was reserved; -1: nowhere */
    size_t done_bytes;
};

enum net_stage { NET_SIDE, NET_MEETING, NET_WAITING, NET_UP, NET_ENDING, NET_OVER };

struct net_link {
    struct ft_link base; /* must be the first field */
    struct net *net;
    struct net_link *next;
    struct ft_side_conn *side; /* NULL: it has ended */
    enum net_stage stage;
    bool announce, announced_down;
    bool ready, peer_ready;                     /* what this side and the peer have said */
    uint64_t deadline_ns;                       /* of the stage, unless it is NET_UP */
    unsigned char handle[NET_ABI_HANDLE_BYTES]; /* the peer's */
    struct net_out out;
    struct net_in in;
    uint64_t active_ns;        /* when a frame was last sent or received */
    int broken;                /* a status: the plugin failed; FT_OK: it did not */
    uint64_t last_frame;       /* number of frames before the peer's goodbye; UINT64_MAX: none */
    char text[NET_TEXT_BYTES]; /* why it goes down */
    /* of a sending link: */
    struct ft_txq txq;
    struct net_item queue[NET_QUEUE];
    unsigned queue_head, queue_count;
    unsigned char *longs;
    uint32_t longs_free; /* a bit per buffer */
    /* of a receiving link: */
    struct ft_rxq rxq;
    struct ft_rxq_node *node; /* of the message that goes on in the next frame; NULL: dropped */
    size_t rest_bytes;        /* of it */
    struct ft_header dropping;
    struct net_credit credits[NET_CREDITS];
    unsigned ncredits;
    bool due;
};

struct net {
    struct ft_transport base; /* must be the first field */
    const struct net_plugin *plugin;
    void *context;
    struct ft_side *side;
    struct ft_rxq_set set;
    size_t frame_bytes;
    uint64_t token; /* peers with another plugin have another one */
    uint64_t now_ns, active_ns;
    struct net_link *links, *dying;
    unsigned kept; /* turns since all credits were returned */
    unsigned nmaking;
};

/* setup.c. Statuses: FT_OK, FT_AGAIN, or why the link goes down. */
/* Memory that a child of fork does not inherit. NULL: there is none. */
unsigned char *net_map(size_t len_bytes);
int net_connect(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                struct ft_link **out);
void net_accepted(struct net *, struct ft_side_conn *);
void net_side_message(struct net_link *, const struct ft_side_event *);
void net_side_down(struct net_link *, const struct ft_side_event *);
void net_setup_turn(struct net_link *);
/* Down at once. `status` is the reason; the sentence is ft_fail_text(). */
void net_down(struct net_link *, int status);
void net_disconnect(struct ft_link *);
/* Ends links that were disconnected when their last frames are gone. `all`: at once. */
void net_bury(struct net *, bool all);

/* send.c */
int net_out_open(struct net_link *, unsigned nlarge, size_t large_bytes, unsigned nsmall);
void net_out_close(struct net_link *);
void net_out_turn(struct net_link *, bool *moved);
int net_send(struct ft_link *, const struct ft_header *, const void *data, struct ft_send *);
int net_reserve(struct ft_link *, const struct ft_header *, void **slot);
void net_commit(struct ft_link *, const struct ft_header *, void *slot);
void net_cancel(struct ft_link *, const struct ft_header *, void *slot);
void net_drop_queue(struct net_link *);
void net_return_credits(struct net_link *);
void net_credit(struct net_link *, const struct ft_header *);
void net_take_credits(struct net_link *, const void *frame, size_t len_bytes);

/* recv.c */
int net_in_open(struct net_link *, unsigned nslots, size_t slot_bytes);
void net_in_close(struct net_link *);
void net_in_turn(struct net_link *, bool *moved);
void net_consumed(struct ft_rxq *, struct ft_rxq_node *);

/* The plugin failed, or the peer broke the rules (FT_PROTOCOL): the link ends soon or at once. */
void net_broken(struct net_link *, int status);

#endif
