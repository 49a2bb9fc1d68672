/*
 * membership: how ranks find each other, and how the survivors agree on who they are. The process
 * that makes a unique id serves it, with one thread and one port for all ids of the process, until
 * every rank has its answer or the id expires. Each rank sends its endpoint and gets the table of
 * all endpoints.
 */
#ifndef FT_MEMBERSHIP_H
#define FT_MEMBERSHIP_H

#include "base/base.h"

#define FT_UNIQUE_ID_BYTES 128
#define FT_ENDPOINT_BYTES 1024

/* What a rank tells the others about itself. `config` is a digest of everything that must be equal
 * on all ranks (parameters, tuning, version). `config_text` is the same as text, so that an error
 * can name a mismatch. */
struct ft_endpoint {
    uint64_t engine, host, config;
    char config_text[160];
    uint32_t address_bytes;
    unsigned char address[FT_ENDPOINT_BYTES]; /* the addresses of all transports, packed by core */
};

#define FT_ENDPOINT_TEXT_MAX 159
#define FT_ENDPOINT_FIXED_BYTES 32
#define FT_ENDPOINT_WIRE_MAX (FT_ENDPOINT_FIXED_BYTES + FT_ENDPOINT_TEXT_MAX + FT_ENDPOINT_BYTES)
/* returns the number of bytes written */
size_t ft_endpoint_encode(unsigned char out[FT_ENDPOINT_WIRE_MAX], const struct ft_endpoint *);
/* Returns > 0: the number of bytes used; 0: more bytes are needed; or FT_PROTOCOL. */
int ft_endpoint_decode(const unsigned char *in, size_t len_bytes, struct ft_endpoint *);

struct ft_table {
    int nranks;
    /* key for the links of this job, derived from the id's secret */
    unsigned char key[FT_SECRET_BYTES];
    uint64_t job; /* first context id, derived in the same way */
    struct ft_endpoint endpoint[];
};

/* Fills 128 bytes: addresses, port, secret. Starts the service if necessary. Does not wait. Returns
 * FT_NOFILE or FT_SYSTEM on failure. If FTCCL_COMM_ID is set, it is the address, and the secret
 * comes from FTCCL_SECRET or FTCCL_SECRET_FILE; then rank 0 serves the id when it joins. */
int ft_unique_id_make(unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The same, but FTCCL_COMM_ID is ignored, and the id is served until it is used or released. */
int ft_unique_id_keep(unsigned char id[FT_UNIQUE_ID_BYTES]);
/* Those who come for the id from now on are told that it was released. */
int ft_unique_id_release(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* Checks that the id is one of FTCCL's (magic, version, checksum). Returns FT_INVAL or FT_VERSION
 * with a sentence if it is not. */
int ft_unique_id_check(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The key of the links of the job with this id. It is the same on every rank and known without a
 * network. It is derived from the id's secret and nonce. The id of a grow gives the key of the job
 * that grows, unchanged. */
int ft_unique_id_key(const unsigned char id[FT_UNIQUE_ID_BYTES],
                     unsigned char key[FT_SECRET_BYTES]);
/* a number that differs between ids; 0: not one of FTCCL's ids */
uint64_t ft_unique_id_nonce(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The key that a file holds which only its owner can use (at least 16 characters). name: the option
 * or variable that names the file. FT_USAGE, with a sentence. */
int ft_secret_of_file(const char *name, const char *path, unsigned char secret[FT_SECRET_BYTES]);
/* The job's secret, from FTCCL_SECRET or FTCCL_SECRET_FILE. what: begins the sentence if there is
 * none, for example "FTCCL_COMM_ID is set". FT_USAGE. */
int ft_secret_of_job(const char *what, unsigned char secret[FT_SECRET_BYTES]);
int ft_unique_ids_served(void); /* number of ids that this process serves; for leak tests */

struct ft_join {
    /* InitRankScalable passes several ids, the same on every rank */
    const unsigned char (*ids)[FT_UNIQUE_ID_BYTES];
    int nids;
    int nranks, rank;
    const struct ft_endpoint *endpoint;
    uint64_t timeout_ns;
    const atomic_int *cancel; /* set by another thread that aborts; read at least every 50 ms */
    /* This rank joins a grow: the one id comes from ft_unique_id_grow(). Otherwise no id may be
     * such. FT_USAGE if it is wrong. */
    bool grow;
    /* NULL, or called several times a second while this rank waits for the others. arrived: how
     * many have checked in, if this process serves the id; else -1. */
    void (*waits)(void *arg, int arrived);
    void *waits_arg;
};
/* Blocks until every rank is known, or until the timeout. FT_TIMEOUT names the ranks that never
 * came. FT_USAGE names two ranks that claim the same rank or different sizes. FT_MISMATCH names
 * different configurations. FT_PEER: a rank or the process of the id died meanwhile. Also FT_AUTH,
 * FT_VERSION and FT_ABORTED. It retries a refused connection until the timeout only if the id is an
 * explicit address. The caller frees the table with free(). */
int ft_bootstrap_join(const struct ft_join *, struct ft_table **out);
/* ---- ranks that join an existing job (grow.c). One of the survivors, the root, makes the id and
 * serves it. Joiners call ft_bootstrap_join() with it, before or after the root has supplied the
 * survivors' endpoints. An id is good for one attempt. ---- */

/* Like ft_unique_id_make(), for ranks that join a job of `survivors` ranks whose links have this
 * key. FTCCL_COMM_ID is ignored. Whoever has the id knows the job's key. `owner` is an address by
 * which ft_unique_ids_withdraw() finds the id, or NULL. */
int ft_unique_id_grow(unsigned char id[FT_UNIQUE_ID_BYTES],
                      const unsigned char key[FT_SECRET_BYTES], int survivors, const void *owner);
/* also false if it is not one of FTCCL's ids */
bool ft_unique_id_is_grow(const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* The root gives up, or will never begin. Joiners that wait or come later get FT_PEER, unless all
 * have already come. */
void ft_unique_id_withdraw(const unsigned char id[FT_UNIQUE_ID_BYTES], const char *why);
/* The owner ends: the same for all its ids that were not used. A few seconds later these ids are
 * forgotten. */
void ft_unique_ids_withdraw(const void *owner, const char *why);
/* Supplies the survivors' endpoints. Any thread of the process that made the id may call it.
 * `endpoints` belong to ranks 0 to count - 1, all survivors. Joiners have the ranks from `count` to
 * nranks - 1; a joiner that claims a lower rank is refused, and the others are not affected. Does
 * not wait. FT_USAGE: this is not the id of a grow, or it was made for another number of survivors,
 * was used before, or was made in another process; then nothing changes. On any other error the
 * grow has failed for joiners too: FT_MISMATCH, FT_PEER (a joiner died), FT_USAGE (two joiners
 * claim one rank, or different sizes), FT_NOMEM. */
int ft_bootstrap_supply(const unsigned char id[FT_UNIQUE_ID_BYTES], int nranks,
                        const struct ft_endpoint *endpoints, int count);
/* Then blocks until every joiner has come, the grow fails, or the timeout. FT_TIMEOUT names the
 * joiners that never came. Joiners learn of every failure, also of FT_ABORTED (*cancel, read every
 * 50 ms). The caller frees the table with free(). */
int ft_bootstrap_collect(const unsigned char id[FT_UNIQUE_ID_BYTES], uint64_t timeout_ns,
                         const atomic_int *cancel, struct ft_table **out);

/* Forgets every id and stops the thread; at exit and in tests. */
void ft_bootstrap_stop(void);

/* ---- agreement (agree.c; the protocol and its argument: docs/membership.md) ------------------ */

/* What a rank knows about another rank. Only DEAD is proof: an exit seen on the same host, or an
 * authenticated goodbye. The others are suspicion and may be taken back. REDIALLED: the link to it
 * was lost and is being made anew; it becomes UNREACHABLE after a quarter of silent_ns, and this
 * rank does not enter before. */
enum ft_peer_evidence { FT_ALIVE, FT_SILENT, FT_UNREACHABLE, FT_DEAD, FT_REDIALLED };

enum ft_agree_kind {
    FT_AGREE_FLAGS = 1,
    FT_AGREE_SHRINK,
    FT_AGREE_GROW,
    FT_AGREE_COMMIT,
    FT_AGREE_RETRY,
    FT_AGREE_KINDS
};

/* The input of a rank to an agreement. */
struct ft_agree_input {
    enum ft_agree_kind kind;
    uint64_t flags;               /* the decision contains the bitwise AND over the survivors */
    uint64_t last_op;             /* number of the last operation that is complete on this rank */
    int64_t key;                  /* survivors are ordered by key, then by rank */
    const unsigned char *exclude; /* [nranks] 1: leave this rank out; NULL: leave out nobody */
    const void *blob;             /* data for the decision; at most one rank may have some */
    uint32_t blob_bytes;
};

struct ft_agree_config {
    struct ft_env *env;
    int nranks, rank;
    /* identity of the instance: the same on all ranks; part of the nonce */
    uint64_t seed;
    size_t message_bytes; /* longest message that `send` accepts */
    /* A rank that has not answered for so long is left out. silent_ns and enter_ns count only time
     * in which this process ran. */
    uint64_t silent_ns;
    /* a rank whose engine answers but whose user has not entered for so long is left out */
    uint64_t enter_ns;
    /* copies the data; may lose, delay and reorder messages */
    void (*send)(void *arg, int to, const void *data, size_t len_bytes);
    void *arg;
};

/* The decision: the same bytes on every rank. Its arrays belong to the instance. */
struct ft_decision {
    /* FT_OK; FT_MIXED: ranks called different kinds; FT_USAGE: every rank was to be left out */
    int status;
    enum ft_agree_kind kind;
    /* first_op, last_op: lowest and highest last_op of the survivors */
    uint64_t flags, first_op, last_op, nonce;
    const unsigned char *failed;   /* [nranks] 1: dead, silent, unreachable, or never entered */
    const unsigned char *excluded; /* [nranks] 1: failed, or on a list */
    int nsurvivors;
    const int *order; /* [nsurvivors] ranks of this view, ordered by key */
    /* [nsurvivors] their keys in that order; with FT_MIXED: the kind that each of them called */
    const int64_t *keys;
    const void *blob;
    uint32_t blob_bytes;
};

/* One agreement among the ranks of a view. Not thread-safe. Never blocks. It does no input or
 * output itself. */
struct ft_agree;
/* returns FT_NOMEM, or FT_NOTSUP if there are too many ranks for a message */
int ft_agree_open(const struct ft_agree_config *, struct ft_agree **out);
void ft_agree_close(struct ft_agree *);
/* This rank's user enters, with its input, which is copied. Call it once. Returns FT_NOMEM or
 * FT_NOTSUP on failure. */
int ft_agree_enter(struct ft_agree *, const struct ft_agree_input *);
/* A message from a peer: any bytes. May send answers. */
void ft_agree_receive(struct ft_agree *, int from, const void *data, size_t len_bytes);
/* Evidence about a rank. The latest evidence replaces earlier evidence, but DEAD is final. */
void ft_agree_learn(struct ft_agree *, int rank, enum ft_peer_evidence);
/* Runs timers and repeats messages. Call it at least every 10 ms while undecided. */
void ft_agree_tick(struct ft_agree *);
/* Longest part of a gap between two reads of the clock that counts as this process's own time. It
 * is at least twice the longest interval between ticks. */
static inline uint64_t ft_agree_gap_ns(uint64_t silent_ns)
{
    return ft_max(silent_ns / 8, 20000000u);
}
/* FT_AGAIN: undecided. FT_OK: decided. FT_NOQUORUM: this side is too small and has waited long
 * enough. */
int ft_agree_state(const struct ft_agree *);
/* NULL while undecided; later it never changes */
const struct ft_decision *ft_agree_decision(const struct ft_agree *);

/* ---- suspicion by heartbeats (detect.c) ------------------------------------------------------ */

#define FT_WATCHERS_MAX 32 /* more than log2 of any number of ranks */
/* The ranks to which this rank sends heartbeats (rank + 2^k), and those from which it gets them
 * (rank - 2^k): about log2 nranks each. Returns their number. */
int ft_detect_watchers(int nranks, int rank, int *out, int capacity);
int ft_detect_watched(int nranks, int rank, int *out, int capacity);

struct ft_detect {
    uint64_t beat_ns, suspect_ns;
    uint64_t ticked_ns; /* time of the last tick */
    /* this process's own time: a gap between ticks counts as beat_ns at most */
    uint64_t running_ns;
};

/* State of a peer that sends heartbeats, embedded in its owner. All zero: none has arrived yet. */
struct ft_pulse {
    uint64_t heard_ns; /* running time of the last heartbeat */
    bool watched, suspected;
};

void ft_detect_open(struct ft_detect *, uint64_t beat_ns, uint64_t suspect_ns, uint64_t now_ns);
/* call it more often than every beat_ns, after received heartbeats were processed */
void ft_detect_tick(struct ft_detect *, uint64_t now_ns);
/* returns true if the peer was suspected until now */
bool ft_detect_heard(const struct ft_detect *, struct ft_pulse *, uint64_t now_ns);
/* Returns how long the peer had been silent at the last tick. It must have been heard before. */
uint64_t ft_detect_silence_ns(const struct ft_detect *, const struct ft_pulse *);
/* call it after a tick; returns true if the peer is suspected from now on */
bool ft_detect_missed(const struct ft_detect *, struct ft_pulse *);

/* ---- managed membership ---------------------------------------------------------------------- */

#include "membership/managed.h"

#endif
