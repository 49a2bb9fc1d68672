/*
 * side: authenticated side connections between engines, for transports whose network has no
 * connection of its own that tells who the other side is, that it has died, or that it leaves. All
 * conversations between two engines share one pair of links of an inner tcp transport, one in each
 * direction; the engine that is dialled dials back. So authentication, several addresses, limits
 * against strangers, silence and goodbyes are those of tcp. The faults of FTCCL_FAULT do not touch
 * it. It declares no death: `proof` of a link is never set because of it.
 *
 * A conversation belongs to one link of the caller. The caller holds the engine in all calls, and
 * they never block. A conversation's pointer is valid until the poll after its disconnect.
 */
#ifndef FT_SIDE_H
#define FT_SIDE_H

#include "transport/transport.h"

#define FT_SIDE_BYTES 4096 /* most bytes of one message */
#define FT_SIDE_QUEUE 8    /* most messages of a conversation that wait to be sent; then FT_AGAIN */
#define FT_SIDE_EVENTS 32  /* most events of one poll */
/* Most conversations that this side opens with one peer. */
#define FT_SIDE_CONNS 128

struct ft_side;

struct ft_side_conn {
    uint64_t peer; /* engine id of the other side, authenticated once there is an event */
    void *user;    /* for the caller. disconnect sets it to NULL. */
};

enum ft_side_what {
    FT_SIDE_UP,       /* the other side has accepted it */
    FT_SIDE_ACCEPTED, /* the other side has opened it; it is UP, and `user` is NULL */
    FT_SIDE_MESSAGE,
    FT_SIDE_DOWN, /* nothing more comes. The caller disconnects it. */
};

struct ft_side_event {
    enum ft_side_what what;
    /* If the caller has disconnected it since the poll, its `user` is NULL, and the event is to be
     * ignored. */
    struct ft_side_conn *conn;
    /* Of a message. `data` is valid until the next poll, and not aligned. */
    unsigned kind;
    const void *data;
    size_t len_bytes;
    /* Of DOWN. orderly: the other side said goodbye. Otherwise reason is FT_LINK (broken, or the
     * other side ended it without a goodbye), FT_AUTH, FT_VERSION, FT_PROTOCOL, FT_TIMEOUT,
     * FT_NOFILE, FT_NOMEM. silent: FT_LINK because its host does not answer any more. `text`, a
     * sentence, is valid until the conversation is disconnected. */
    int reason;
    bool orderly, silent;
    const char *text;
};

/* Opens listeners of its own. Fails like open of tcp. */
int ft_side_open(const struct ft_transport_config *, struct ft_side **out);
/* Says goodbye in all conversations that are left, and frees everything. */
void ft_side_close(struct ft_side *);
/* Like address and reaches of a transport. */
int ft_side_address(struct ft_side *, void *buf, size_t capacity_bytes);
bool ft_side_reaches(struct ft_side *, const void *address, size_t len_bytes);
/* Starts a conversation with an engine. It gets UP or, within 20 s, DOWN. Messages may be sent at
 * once: they wait, and nothing leaves before both sides are authenticated. FT_NOMEM, FT_NOFILE,
 * FT_NOTSUP. */
int ft_side_connect(struct ft_side *, uint64_t peer, const void *address, size_t len_bytes,
                    void *user, struct ft_side_conn **out);
/* Copies at most FT_SIDE_BYTES. In order, and reliable while the conversation is up. FT_AGAIN: too
 * many wait. FT_LINK: it is down. FT_INVAL: too long. */
int ft_side_send(struct ft_side_conn *, unsigned kind, const void *data, size_t len_bytes);
/* True when everything that was sent will arrive even if this process ends now. */
bool ft_side_flushed(struct ft_side_conn *);
/* Ends a conversation, after what waits to be sent. The other side gets DOWN: orderly after a
 * goodbye, otherwise broken. */
void ft_side_disconnect(struct ft_side_conn *, bool goodbye);
/* Makes progress and writes up to max events, at most FT_SIDE_EVENTS. Returns their number. Sets
 * *busy if anything moved. It looks at its sockets at most every 20 us, so that it may be called in
 * every turn. */
int ft_side_poll(struct ft_side *, struct ft_side_event *events, int max, bool *busy);
/* Like fd, arm and look_ns of a transport. */
int ft_side_fd(struct ft_side *);
bool ft_side_arm(struct ft_side *, bool on);
uint64_t ft_side_look_ns(const struct ft_side *);
/* What the network does with the messages to that peer; like measure of a transport. */
bool ft_side_measure(struct ft_side_conn *, struct ft_link_path *out);

#endif
