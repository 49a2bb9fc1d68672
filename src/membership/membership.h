/*
 * membership: how ranks find each other, and how those that are left agree on who that is. The
 * process that makes a unique id serves it (one thread and one port for all ids of the process)
 * until every rank has its answer or the id expires; ranks hand in who they are and get the table
 * of all.
 */
#ifndef FT_MEMBERSHIP_H
#define FT_MEMBERSHIP_H

#include "base/base.h"

#define FT_UNIQUE_ID_BYTES 128
#define FT_ENDPOINT_BYTES 1024

/* What a rank tells the others. `config` is a digest of everything that must be equal (parameters,
 * tuning, version), `config_text` the same for people, so that a mismatch can be named. */
struct ft_endpoint {
    uint64_t engine, host, config;
    char config_text[160];
    uint32_t address_bytes;
    unsigned char address[FT_ENDPOINT_BYTES]; /* transports' addresses, packed by core */
};

#define FT_ENDPOINT_TEXT_MAX 159
#define FT_ENDPOINT_FIXED_BYTES 32
#define FT_ENDPOINT_WIRE_MAX (FT_ENDPOINT_FIXED_BYTES + FT_ENDPOINT_TEXT_MAX + FT_ENDPOINT_BYTES)
/* bytes written */
size_t ft_endpoint_encode(unsigned char out[FT_ENDPOINT_WIRE_MAX], const struct ft_endpoint *);
/* > 0: bytes taken. 0: there is more to come. FT_PROTOCOL. */
int ft_endpoint_decode(const unsigned char *in, size_t len_bytes, struct ft_endpoint *);

struct ft_table {
    int nranks;
    /* for the links of this job, derived from the id's secret */
    unsigned char key[FT_SECRET_BYTES];
    uint64_t job; /* first context id, derived likewise */
    struct ft_endpoint endpoint[];
};

/* Fills 128 bytes: addresses, port, secret. Starts the service if need be. FT_NOFILE, FT_SYSTEM.
 * Does not wait. With FTCCL_COMM_ID the address is that one and the secret comes from FTCCL_SECRET
 * or FTCCL_SECRET_FILE; then the rank 0 that joins serves it. */
int ft_unique_id_make(unsigned char id[FT_UNIQUE_ID_BYTES]);
/* Is it one of ours (magic, version, checksum)? FT_INVAL or FT_VERSION with a sentence. */
int ft_unique_id_check(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The key of the links of the job with this id: the same on every rank, known before anybody
 * answers. Derived from the id's secret and nonce; a grow's id gives the key of the job that grows,
 * unchanged. */
int ft_unique_id_key(const unsigned char id[FT_UNIQUE_ID_BYTES],
                     unsigned char key[FT_SECRET_BYTES]);
/* tells ids apart; 0: not one of ours */
uint64_t ft_unique_id_nonce(const unsigned char id[FT_UNIQUE_ID_BYTES]);
int ft_unique_ids_served(void); /* how many ids this process holds; for leak tests */

struct ft_join {
    /* InitRankScalable passes several, the same on every rank */
    const unsigned char (*ids)[FT_UNIQUE_ID_BYTES];
    int nids;
    int nranks, rank;
    const struct ft_endpoint *endpoint;
    uint64_t timeout_ns;
    const atomic_int *cancel; /* another thread's abort; looked at at least every 50 ms */
    /* a joiner of a grow: one id, made by ft_unique_id_grow(); else none such. FT_USAGE */
    bool grow;
};
/* Blocks until every rank is known or the bound: FT_TIMEOUT names the ranks that never came,
 * FT_USAGE two that claim one rank or different sizes, FT_MISMATCH different configurations,
 * FT_AUTH, FT_VERSION, FT_PEER (a rank died meanwhile, or the id's process), FT_ABORTED. Retries
 * refused connections while the bound lasts only if the id is an explicit address. The table is the
 * caller's to free(). */
int ft_bootstrap_join(const struct ft_join *, struct ft_table **out);
/* ---- ranks that join an existing job (grow.c). One of the survivors, the root, makes the id and
 * serves it; joiners call ft_bootstrap_join() with it, before or after the root has supplied the
 * survivors' endpoints. An id is good for one attempt. ---- */

/* Like ft_unique_id_make(), for joiners of a job of `survivors` ranks whose links have this key.
 * FTCCL_COMM_ID has no say. Whoever has the id knows the job's key. `owner` is an address by which
 * it can be withdrawn, or NULL. */
int ft_unique_id_grow(unsigned char id[FT_UNIQUE_ID_BYTES],
                      const unsigned char key[FT_SECRET_BYTES], int survivors, const void *owner);
/* false also if it is not one of ours */
bool ft_unique_id_is_grow(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The root gives up, or will never begin: joiners that wait or come later learn it (FT_PEER),
 * unless all have come. */
void ft_unique_id_withdraw(const unsigned char id[FT_UNIQUE_ID_BYTES], const char *why);
/* The owner goes: the same for all its ids that were not used. A few seconds later nothing of them
 * is left. */
void ft_unique_ids_withdraw(const void *owner, const char *why);
/* Any thread of the process that made the id. `endpoints` are those of ranks 0 to count - 1, all
 * survivors; joiners have the ranks from there to nranks - 1, and one that claims a lower one is
 * refused alone. Does not wait. FT_USAGE: not a grow's id, made for another number of survivors,
 * used before, or made elsewhere: such a call changes nothing. Otherwise the grow has failed for
 * joiners too: FT_MISMATCH, FT_PEER (a joiner died), FT_USAGE (of two joiners, or of sizes),
 * FT_NOMEM. */
int ft_bootstrap_supply(const unsigned char id[FT_UNIQUE_ID_BYTES], int nranks,
                        const struct ft_endpoint *endpoints, int count);
/* Then blocks until every joiner has come, a failure or the bound: FT_TIMEOUT names those that
 * never came. Joiners learn of a failure whatever it is, FT_ABORTED (*cancel, looked at every 50
 * ms) too. The table is the caller's to free(). */
int ft_bootstrap_collect(const unsigned char id[FT_UNIQUE_ID_BYTES], uint64_t timeout_ns,
                         const atomic_int *cancel, struct ft_table **out);

/* Forgets every id and stops the thread; at exit and in tests. */
void ft_bootstrap_stop(void);

/* ---- agreement (agree.c; the protocol and its argument: docs/membership.md) ------------------ */

/* What a rank knows of another one. Only DEAD has a proof: an exit seen on the same host, or an
 * authenticated goodbye. The others are suspicion and may be taken back. */
enum ft_evidence { FT_ALIVE, FT_SILENT, FT_UNREACHABLE, FT_DEAD };

enum ft_agree_kind {
    FT_AGREE_FLAGS = 1,
    FT_AGREE_SHRINK,
    FT_AGREE_GROW,
    FT_AGREE_COMMIT,
    FT_AGREE_RETRY,
    FT_AGREE_KINDS
};

/* What a rank brings into an agreement. */
struct ft_agree_input {
    enum ft_agree_kind kind;
    uint64_t flags;               /* the decision has the bitwise AND over the survivors */
    uint64_t last_op;             /* the last operation that is complete here */
    int64_t key;                  /* orders the survivors; ties by rank */
    const unsigned char *exclude; /* [nranks] 1: to be left out; NULL: nobody */
    const void *blob;             /* at most one rank brings one */
    uint32_t blob_bytes;
};

struct ft_agree_config {
    struct ft_env *env;
    int nranks, rank;
    /* identity of the instance: the same on all ranks, mixed into the nonce */
    uint64_t seed;
    size_t message_bytes; /* the longest message that `send` takes */
    /* a rank that has not answered for so long is left out; this and the next in this process's own
     * time */
    uint64_t silent_ns;
    /* a rank whose engine answers but whose user has not come for so long is left out */
    uint64_t enter_ns;
    /* copies; may lose, delay and reorder */
    void (*send)(void *arg, int to, const void *data, size_t len_bytes);
    void *arg;
};

/* What was agreed; the same bytes on every rank. Arrays belong to the instance. */
struct ft_decision {
    /* FT_OK; FT_MIXED: different kinds were called; FT_USAGE: everyone was to be left out */
    int status;
    enum ft_agree_kind kind;
    uint64_t flags, first_op, last_op, nonce; /* ops: least and greatest last_op of the survivors */
    const unsigned char *failed;   /* [nranks] 1: dead, silent, not reachable, or never came */
    const unsigned char *excluded; /* [nranks] 1: failed or on a list */
    int nsurvivors;
    const int *order; /* [nsurvivors] ranks of this view by key */
    /* [nsurvivors] of those, in that order; FT_MIXED: the kind that each of them called */
    const int64_t *keys;
    const void *blob;
    uint32_t blob_bytes;
};

/* One agreement among the ranks of a view. Not thread-safe, never blocks, does no input or output
 * of its own. */
struct ft_agree;
/* FT_NOMEM; FT_NOTSUP: too many ranks for a message */
int ft_agree_open(const struct ft_agree_config *, struct ft_agree **out);
void ft_agree_close(struct ft_agree *);
/* this rank's user has come; copies. Once. FT_NOMEM, FT_NOTSUP */
int ft_agree_enter(struct ft_agree *, const struct ft_agree_input *);
/* any bytes; answers if it can */
void ft_agree_receive(struct ft_agree *, int from, const void *data, size_t len_bytes);
/* the latest word counts, but DEAD stays */
void ft_agree_learn(struct ft_agree *, int rank, enum ft_evidence);
/* timers and repetitions; at least every 10 ms while undecided */
void ft_agree_tick(struct ft_agree *);
/* Of a gap between two looks at the clock no more counts as this process's own time; twice the
 * longest between ticks at least. */
static inline uint64_t ft_agree_gap_ns(uint64_t silent_ns)
{
    return ft_max(silent_ns / 8, 20000000u);
}
/* FT_AGAIN: not yet. FT_OK: decided. FT_NOQUORUM: this side is too small and has waited long
 * enough. */
int ft_agree_state(const struct ft_agree *);
/* NULL until decided; then for good */
const struct ft_decision *ft_agree_decision(const struct ft_agree *);

/* ---- suspicion by heartbeats (detect.c) ------------------------------------------------------ */

#define FT_WATCHERS_MAX 32 /* more than log2 of any number of ranks */
/* Who is to get this rank's heartbeats (rank + 2^k), and whose it gets (rank - 2^k): about log2
 * nranks. Returns how many. */
int ft_detect_watchers(int nranks, int rank, int *out, int capacity);
int ft_detect_watched(int nranks, int rank, int *out, int capacity);

struct ft_detect {
    uint64_t beat_ns, suspect_ns;
    uint64_t ticked_ns;  /* the last tick */
    uint64_t running_ns; /* our own time, in which gaps between ticks are no longer than beat_ns */
};

/* A peer whose heartbeats come, embedded in its owner; all zero: none has come yet. */
struct ft_pulse {
    uint64_t heard_ns; /* in running time */
    bool watched, suspected;
};

void ft_detect_open(struct ft_detect *, uint64_t beat_ns, uint64_t suspect_ns, uint64_t now_ns);
/* oftener than beat_ns, after what came was taken */
void ft_detect_tick(struct ft_detect *, uint64_t now_ns);
/* true: it was suspected until now */
bool ft_detect_heard(const struct ft_detect *, struct ft_pulse *, uint64_t now_ns);
/* after a tick; true: suspected from now on */
bool ft_detect_missed(const struct ft_detect *, struct ft_pulse *);

#endif
