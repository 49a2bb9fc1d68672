/*
 * Private to membership: what the files of the bootstrap share. wire.c has the formats
 * (docs/wire-protocol.md) and does no input or output. gather.c keeps what has been collected for
 * one id. service.c is the thread that serves ids. dial.c and join.c are the client.
 */
#ifndef FT_BOOTSTRAP_H
#define FT_BOOTSTRAP_H

#include "membership/membership.h"
#include "transport/transport.h"

#define FT_RANKS_MAX (1u << 20)
#define FT_SELECT_BYTES 16
#define FT_FRAME_BYTES 8
#define FT_JOIN_FIXED_BYTES 32
#define FT_JOIN_WIRE_MAX (FT_JOIN_FIXED_BYTES + FT_ENDPOINT_WIRE_MAX)
#define FT_FAIL_TEXT_MAX 511
#define FT_FAIL_WIRE_MAX (4 + FT_FAIL_TEXT_MAX)
#define FT_TABLE_FIXED_BYTES 16

/* ---- unique id ------------------------------------------------------------------------------- */

struct ft_id {
    bool explicit_address; /* from FTCCL_COMM_ID: rank 0 serves it, each time it joins */
    /* for ranks that join an existing job: the secret is the key of the job's links */
    bool grow;
    /* grow: number of existing ranks; set only in the process that serves the id */
    uint32_t survivors;
    bool kept;         /* set likewise: it is served however long nobody comes */
    const void *owner; /* set likewise: the owner that withdraws the id when it ends; NULL: none */
    int naddresses;
    struct ft_net_address address[FT_NET_ADDRESSES];
    uint64_t nonce;
    unsigned char secret[FT_SECRET_BYTES];
};
/* writes as many addresses as fit and returns their number */
int ft_id_encode(unsigned char out[FT_UNIQUE_ID_BYTES], const struct ft_id *);
/* returns FT_INVAL or FT_VERSION with a sentence */
int ft_id_decode(struct ft_id *, const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* makes an id of FTCCL_COMM_ID and the secret; FT_USAGE with a sentence */
int ft_id_from_environment(struct ft_id *);

/* ---- formats --------------------------------------------------------------------------------- */

enum ft_answer { FT_ANSWER_GO, FT_ANSWER_UNKNOWN, FT_ANSWER_USED, FT_ANSWER_VERSION, FT_ANSWERS };
enum ft_frame {
    FT_FRAME_JOIN = 1,
    FT_FRAME_JOINED,
    FT_FRAME_LEAVE,
    FT_FRAME_FAIL,
    FT_FRAME_TABLE,
    FT_FRAME_ACK
};

struct ft_join_msg {
    uint64_t nonce;
    uint32_t nranks, rank, nids, index; /* index: number of this id among nids */
    /* left_ms: the rest of the rank's time limit; bound_ms: the whole limit */
    uint32_t left_ms, bound_ms;
    struct ft_endpoint
        /* Only if the rank belongs to this id's block. Other ranks only fetch the block. */
        endpoint;
};
struct ft_table_head {
    uint64_t salt;
    uint32_t first, count;
};

static inline uint32_t ft_get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t ft_get64(const unsigned char *p)
{
    return ft_get32(p) | (uint64_t)ft_get32(p + 4) << 32;
}
static inline void ft_put32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}
static inline void ft_put64(unsigned char *p, uint64_t v)
{
    ft_put32(p, (uint32_t)v);
    ft_put32(p + 4, (uint32_t)(v >> 32));
}

/* The block of ranks of id number `index` of nids. Blocks are contiguous; the first ones have one
 * rank more. */
void ft_block(uint32_t nranks, uint32_t nids, uint32_t index, uint32_t *first, uint32_t *count);
uint32_t ft_block_of(uint32_t nranks, uint32_t nids, uint32_t rank);

/* Unless said otherwise, encoders return the number of bytes written, and decoders return 0 or
 * FT_PROTOCOL. */
void ft_select_encode(unsigned char out[FT_SELECT_BYTES], enum ft_answer answer, uint64_t nonce);
/* For both directions. FT_PROTOCOL: this is not FTCCL. FT_VERSION: another version; nonce and
 * answer are then undefined. */
int ft_select_decode(const unsigned char in[FT_SELECT_BYTES], enum ft_answer *answer,
                     uint64_t *nonce);
size_t ft_frame_encode(unsigned char out[FT_FRAME_BYTES], enum ft_frame kind, size_t len_bytes);
int ft_frame_decode(const unsigned char in[FT_FRAME_BYTES], enum ft_frame *kind,
                    uint32_t *len_bytes);
/* with frame */
size_t ft_join_encode(unsigned char out[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX],
                      const struct ft_join_msg *);
int ft_join_decode(const unsigned char *in, size_t len_bytes, struct ft_join_msg *);
/* with frame */
size_t ft_fail_encode(unsigned char out[FT_FRAME_BYTES + FT_FAIL_WIRE_MAX], int status,
                      const char *text);
int ft_fail_decode(const unsigned char *in, size_t len_bytes, int *status,
                   char text[FT_FAIL_TEXT_MAX + 1]);
size_t ft_table_head_encode(unsigned char out[FT_TABLE_FIXED_BYTES], const struct ft_table_head *);

/* Decodes the payload of a TABLE frame as it arrives. The caller puts at most ft_table_room() bytes
 * after the have_bytes in buf, and then calls ft_table_take(). */
struct ft_table_reader {
    struct ft_endpoint *endpoint; /* [head.count] */
    /* the caller sets the expected first and count; salt is valid after FT_OK */
    struct ft_table_head head;
    bool head_seen;
    uint32_t nendpoints;
    /* left_bytes: bytes of the payload not yet received; have_bytes: bytes in buf */
    size_t left_bytes, have_bytes;
    unsigned char buf[16384];
};
static inline size_t ft_table_room(const struct ft_table_reader *r)
{
    return ft_min(r->left_bytes, sizeof r->buf - r->have_bytes);
}
/* returns FT_OK: complete; FT_AGAIN: more bytes are needed; or FT_PROTOCOL */
int ft_table_take(struct ft_table_reader *, size_t new_bytes);

/* ---- what has been collected for one id ------------------------------------------------------ */

struct ft_gathered {
    uint64_t config;
    uint32_t bytes;
    unsigned char wire[];
}; /* the endpoint of one rank, encoded */
enum ft_gather_state { FT_GATHER_EMPTY, FT_GATHER_OPEN, FT_GATHER_FULL, FT_GATHER_FAILED };
struct ft_gather {
    struct ft_gather *next;
    bool explicit_address, supplied;
    /* grow: ranks below this number come from ft_gather_supply() only; 0: not a grow */
    uint32_t survivors;
    const void *owner; /* owner of the id; only compared */
    uint64_t nonce;
    unsigned char key[FT_SECRET_BYTES]; /* key for connections about this id */
    enum ft_gather_state state;
    uint32_t nranks, nids, index, first, count, arrived;
    uint32_t first_rank;           /* the rank that came first; errors compare others with it */
    struct ft_gathered **endpoint; /* [count] */
    unsigned char *told;           /* one bit per rank that needs no answer any more */
    uint32_t ntold;
    bool disputed; /* processes say different numbers of ranks, so nobody knows who still comes */
    uint32_t bound_ms; /* time limit of the rank whose time ends first */
    /* When this time comes: EMPTY is forgotten; OPEN times out; FULL and FAILED are forgotten even
     * if some ranks were not told. */
    uint64_t due_ns;
    /* how long a settled gather is kept for ranks that have not been told */
    uint64_t linger_ns;
    int status;            /* FAILED: the reason */
    unsigned char *answer; /* FULL and FAILED: the frame that every rank gets */
    size_t answer_bytes;
    struct ft_conn *waiting; /* used by the service: the connections that belong to this gather */
};
struct ft_gather *ft_gather_new(const struct ft_id *, uint64_t now_ns, uint64_t linger_ns);
void ft_gather_free(struct ft_gather *);
static inline bool ft_gather_settled(const struct ft_gather *g)
{
    return g->state >= FT_GATHER_FULL;
}
/* Adds a rank. FT_OK: the rank was counted, and the gather may have settled: FULL, or FAILED for
 * all. Any other status is for this rank only, with a sentence: FT_AGAIN from a settled explicit
 * gather; FT_USAGE for a survivor's rank of a grow, or for a rank that another process has in a
 * full gather; FT_NOMEM. */
int ft_gather_add(struct ft_gather *, const struct ft_join_msg *, uint64_t now_ns);
/* Adds the endpoints of all survivors of a grow; may settle it. The survivors do not wait for an
 * answer; ft_service_collect() takes the answer of rank 0. */
void ft_gather_supply(struct ft_gather *, uint32_t nranks, const struct ft_endpoint *endpoint,
                      uint64_t now_ns);
/* Makes the gather end at due_ns, if that is earlier than its present end. */
void ft_gather_bound(struct ft_gather *, uint64_t due_ns, uint32_t bound_ms);
/* for a settled gather: FT_OK, or the reason of the failure with the sentence */
int ft_gather_verdict(const struct ft_gather *);
/* Settles the gather as failed for all ranks, unless it is settled. */
void ft_gather_fail(struct ft_gather *, uint64_t now_ns, int status, const char *fmt, ...)
    FT_PRINTF(4, 5);
/* the sentence names the missing ranks */
void ft_gather_timeout(struct ft_gather *, uint64_t now_ns);
/* This rank needs no answer any more. */
void ft_gather_mark_told(struct ft_gather *, uint32_t rank);
/* Settled, every rank was told, and no other process that claims to be one waits or may come. */
bool ft_gather_done(const struct ft_gather *);

/* ---- service, as id.c and join.c use it; any thread ------------------------------------------ */

/* Serves the id from now on. A plain id gets its addresses here; an explicit id must have them.
 * FT_AGAIN: this process still serves the explicit id for an earlier call. Also FT_NOFILE,
 * FT_NOMEM, FT_SYSTEM, FT_INVAL (interfaces). */
int ft_service_add(struct ft_id *);
/* Rank 0 of an explicit id, or the root of a grow, gave up. Ranks that have come or come now learn
 * it. No-op if it is settled. */
void ft_service_withdraw(uint64_t nonce, const char *why);
/* all ids of the owner that are not settled */
void ft_service_withdraw_all(const void *owner, const char *why);
/* A job of one rank: marks its id as used, without a network, if this process serves it. FT_USAGE
 * if it was used before. */
int ft_service_consume(uint64_t nonce);
/* Supplies the `count` endpoints of the survivors of a grow. FT_USAGE: `count` is not the number
 * for which the id was made, or they were supplied before, or this process does not serve the id.
 * Any other status is the reason why the grow has failed. */
int ft_service_supply(uint64_t nonce, uint32_t nranks, const struct ft_endpoint *endpoint,
                      uint32_t count);
/* Waits until a supplied grow settles. *answer is a copy of the TABLE frame; the caller frees it
 * with free(). FT_ABORTED makes the grow fail. */
int ft_service_collect(uint64_t nonce, uint64_t timeout_ns, const atomic_int *cancel,
                       unsigned char **answer);
/* true if the id is one of the last FT_USED_IDS that this process served to the end */
bool ft_service_used(uint64_t nonce);
/* number of ranks of the id's block that have joined and wait; -1: not served here */
int ft_service_arrived(uint64_t nonce);
/* for tests, before the first id; NULL: the real environment */
void ft_service_set_env(struct ft_env *);

/* ---- client ---------------------------------------------------------------------------------- */

/* Derives the table's key and first context from the first id and the salts of all ids. */
void ft_table_derive(struct ft_table *, const struct ft_id *first, const uint64_t *salt, int nids);

struct ft_wait {
    struct ft_env *env;
    uint64_t deadline_ns;
    const atomic_int *cancel;
};
/* Each function returns FT_OK, FT_TIMEOUT, FT_ABORTED or FT_LINK (end of stream or reset). The
 * socket is non-blocking. */
int ft_wait_fd(const struct ft_wait *, int fd, short events);
int ft_wait_read(const struct ft_wait *, int fd, void *buf, size_t len_bytes);
int ft_wait_write(const struct ft_wait *, int fd, const void *buf, size_t len_bytes);
/* reads at least one byte */
int ft_wait_some(const struct ft_wait *, int fd, void *buf, size_t capacity_bytes, size_t *got);
/* Connects. *fd is registered with ft_fd_own(). FT_PEER: refused or unreachable; also FT_NOFILE,
 * FT_SYSTEM. */
int ft_wait_connect(const struct ft_wait *, const struct ft_net_address *, int *fd);
int ft_wait_sleep(const struct ft_wait *, uint64_t ns);

#endif
