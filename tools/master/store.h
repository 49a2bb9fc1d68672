/*
 * store: which of several ftccld leads, by a lease in etcd, and what the leader keeps there. A
 * thread talks to etcd, because any call may take its whole time; the loop of the daemon never
 * waits for it. Whoever leads does so until its lease has run out by its own clock, which begins
 * before etcd's: two never lead at once.
 */
#ifndef FT_STORE_H
#define FT_STORE_H

#include "etcd.h"
#include "../daemon/daemon.h"

struct store;
struct store_options {
    const char *url;       /* etcd://HOST:PORT[,HOST:PORT...][/PREFIX] */
    const char *advertise; /* HOST:PORT at which members reach this program */
    double lease_s;
    /* Called by the loop: whether this program leads may have changed. */
    void (*changed)(void *arg);
    void *arg;
};
/* Starts the thread. NULL, with a sentence for ft_fail_text(). */
struct store *store_open(struct daemon *, const struct store_options *);
/* Gives the lease back, so that another leads at once; blocks for two seconds at most.
 */
void store_close(struct store *);

bool store_leads(const struct store *);
/* How another leader is reached; "": there is none, or it is not known. */
void store_holder(struct store *, char holder[ETCD_VALUE_BYTES]);
/* A sentence on how it stands. */
void store_tell(struct store *, char *text, size_t room);
/* What an earlier leader kept, once after each time that this one began to lead. The caller frees
 * it. NULL: nothing, or it was taken. */
char *store_take_kept(struct store *);
/* Keeps a text instead of the last one, soon. Takes it over; free() frees it. */
void store_keep(struct store *, char *text);

#endif
