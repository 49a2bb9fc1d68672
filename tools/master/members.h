/*
 * The coordinator of managed membership as a service of ftccld: members of all jobs register with
 * it and get their views from it. membership/coord.h decides everything and keeps nothing; after a
 * restart members tell it again what they have.
 */
#ifndef FT_MASTER_MEMBERS_H
#define FT_MASTER_MEMBERS_H

#include "../daemon/daemon.h"
#include "membership/coord.h"

struct members;
struct members *members_open(struct daemon *); /* NULL: no memory, or a sentence on stderr */
void members_add(struct members *);
void members_close(struct members *);

/* ---- inside ---------------------------------------------------------------------------------- */

struct members {
    struct daemon *daemon;
    struct ft_coord *coord;
    struct daemon_timer timer; /* runs while there are connections */
    int connections;
    /* With a store. leads: it serves members. stale: it led before, and connections of that time
     * are still to be forgotten. */
    struct members_lead *lead;
    bool leads, stale;
    char trouble[200]; /* "": none */
};
/* Another one has led since, and knows better. It stays stale if there is no memory. */
void members_begin_anew(struct members *);
/* members_lead.c; members_alone.c in a build without a store. */
bool members_lead_open(struct members *); /* false: with a sentence on stderr */
void members_lead_close(struct members *);
void members_lead_tick(struct members *); /* once an interval: keeps what the next must know */
void members_look(struct members *); /* it may have become the leader, or have ceased to be it */
/* False: another one serves members, and the peer has been told so. */
bool members_serves(struct members *, struct daemon_peer *, const struct daemon_message *);
/* Who leads, as a sentence; "": there is no store. */
void members_lead_tell(const struct members *, char *text, size_t room);
/* members_show.c */
void members_page(void *arg, FILE *out);
void members_json(void *arg, struct ft_text *out);
void members_metrics(void *arg, FILE *out);

#endif
