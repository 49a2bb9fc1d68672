/*
 * The members of managed membership on this host: they connect to the agent as to a coordinator,
 * and the agent carries what they say over one connection to the coordinator, each with a slot of
 * its own. It answers their heartbeats, for as long as the coordinator is not silent, and tells
 * at once when a member has ended.
 *
 * The agent keeps no membership. When the coordinator goes, the connections of all members end;
 * they register again, as they would with the coordinator itself.
 */
#ifndef FT_AGENT_MEMBERS_H
#define FT_AGENT_MEMBERS_H

#include "../daemon/daemon.h"
#include "membership/managed.h"

struct carrier;
/* coordinators: HOST:PORT[,HOST:PORT..]. NULL, with a sentence on stderr. */
struct carrier *carrier_open(struct daemon *, const char *coordinators);
void carrier_add(struct carrier *);
void carrier_close(struct carrier *);

/* ---- inside ---------------------------------------------------------------------------------- */

struct local;
/* A number on the connection to the coordinator. */
struct slot {
    enum { SLOT_FREE, SLOT_USED, SLOT_LEFT } state;
    struct local *local;
    uint32_t theirs;   /* the member's own number for it */
    struct slot *next; /* of the same member */
    struct ft_role role;
    bool accepted, told; /* told: that there is no coordinator */
    uint64_t reusable;   /* SLOT_LEFT: after so many answers nothing comes for it any more */
    unsigned char *held; /* its JOIN, while there is no coordinator */
    size_t held_bytes;
};

/* The connection of a member. */
struct local {
    struct daemon_peer *peer;
    struct local *next, **link;
    struct slot *slot;
    uint32_t suspect_ms; /* 0: it has not joined */
    uint64_t heard_ns;
};

/* Of the name of a coordinator. It may never end, so there is one at most for each. */
struct carrier_lookup {
    struct carrier *carrier;
    struct daemon_lookup *running; /* NULL: none is */
    uint64_t since_ns;
};

struct carrier {
    struct daemon *daemon;
    struct daemon_timer timer;
    char name[FT_COORDINATORS_MOST][300];
    struct carrier_lookup lookup[FT_COORDINATORS_MOST];
    int nnames, tried;        /* tried: the name of the present attempt */
    struct daemon_peer *peer; /* to the coordinator, or on the way there */
    bool is_open;
    unsigned dials;
    uint64_t wait_ns, dial_ns;
    /* On this connection: heartbeats that ask for an answer, and answers; when the last heartbeat
     * was sent, since when an answer is missing, and when the coordinator was heard last. */
    uint64_t asked, answers, beat_ns, asked_ns, heard_ns;
    bool must_ask;   /* the next heartbeat asks, as slots wait for its answer */
    uint64_t now_ns; /* of this program: the time in which it was stopped is left out */
    uint64_t turned_ns;
    struct local *local;
    int nlocal, nused; /* connections; slots */
    uint32_t last;     /* the slot that was given last */
    struct slot slot[FT_SLOTS_MOST];
    char trouble[300]; /* with the coordinator; "": none */
};
/* members_show.c */
void carrier_page(void *arg, FILE *out);
void carrier_json(void *arg, struct ft_text *out);
void carrier_metrics(void *arg, FILE *out);

#endif
