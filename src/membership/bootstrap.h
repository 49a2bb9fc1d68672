/*
 * bootstrap: what the files of this folder share. wire.c holds the formats (docs/wire-protocol.md)
 * and does no input or output; gather.c what has been collected for one id; service.c the thread
 * that serves; dial.c and join.c the client.
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
    bool explicit_address; /* FTCCL_COMM_ID: rank 0 serves it when it joins, every time anew */
    /* for ranks that join an existing job: the secret is the key of its links */
    bool grow;
    /* grow: how many ranks there are already; only the process that serves the id knows */
    uint32_t survivors;
    const void *owner; /* likewise: who has it withdrawn with itself; NULL: nobody */
    int naddresses;
    struct ft_net_address address[FT_NET_ADDRESSES];
    uint64_t nonce;
    unsigned char secret[FT_SECRET_BYTES];
};
/* as many addresses as fit; their number */
int ft_id_encode(unsigned char out[FT_UNIQUE_ID_BYTES], const struct ft_id *);
/* FT_INVAL, FT_VERSION with a sentence */
int ft_id_decode(struct ft_id *, const unsigned char id[FT_UNIQUE_ID_BYTES]);
/* FTCCL_COMM_ID and the secret; FT_USAGE with a sentence */
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
    uint32_t nranks, rank, nids, index; /* index: of this id among nids */
    uint32_t left_ms, bound_ms;         /* of the rank's time: what is left, and what it had */
    struct ft_endpoint
        endpoint; /* only if the rank belongs to this id's block; a stranger only fetches */
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

/* Ranks of id number `index` out of nids: contiguous, the first ones hold one more. */
void ft_block(uint32_t nranks, uint32_t nids, uint32_t index, uint32_t *first, uint32_t *count);
uint32_t ft_block_of(uint32_t nranks, uint32_t nids, uint32_t rank);

/* Encoders return the bytes written, decoders 0 or FT_PROTOCOL, unless said otherwise. */
void ft_select_encode(unsigned char out[FT_SELECT_BYTES], enum ft_answer answer, uint64_t nonce);
/* Both directions. FT_PROTOCOL: not ours. FT_VERSION: another version (nonce and answer are then
 * undefined). */
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

/* Decodes a TABLE frame's payload as it comes in: put at most ft_table_room() bytes behind
 * have_bytes of buf, then take. */
struct ft_table_reader {
    struct ft_endpoint *endpoint; /* [head.count] */
    struct ft_table_head head;    /* first and count as they must be; salt valid after FT_OK */
    bool head_seen;
    uint32_t ncards;
    size_t left_bytes, have_bytes; /* of the payload still to come; in buf */
    unsigned char buf[16384];
};
static inline size_t ft_table_room(const struct ft_table_reader *r)
{
    return ft_min(r->left_bytes, sizeof r->buf - r->have_bytes);
}
/* FT_OK: complete. FT_AGAIN: more. FT_PROTOCOL */
int ft_table_take(struct ft_table_reader *, size_t new_bytes);

/* ---- what has been collected for one id ------------------------------------------------------ */

struct ft_gathered {
    uint64_t config;
    uint32_t bytes;
    unsigned char wire[];
}; /* a rank's endpoint */
enum ft_gather_state { FT_GATHER_EMPTY, FT_GATHER_OPEN, FT_GATHER_FULL, FT_GATHER_FAILED };
struct ft_gather {
    struct ft_gather *next;
    bool explicit_address, supplied;
    /* grow: ranks below come by ft_gather_supply() only; 0: not a grow */
    uint32_t survivors;
    const void *owner; /* of the id; only compared */
    uint64_t nonce;
    unsigned char key[FT_SECRET_BYTES]; /* for connections about this id */
    enum ft_gather_state state;
    uint32_t nranks, nids, index, first, count, arrived;
    uint32_t first_rank;           /* who came first: the one the others are compared with */
    struct ft_gathered **endpoint; /* [count] */
    unsigned char *told;           /* a bit for each rank that needs no answer any more */
    uint32_t ntold;
    uint32_t bound_ms; /* of the rank whose time ends first */
    /* EMPTY: forget, OPEN: give up, FULL and FAILED: forget even if not all were told */
    uint64_t due_ns;
    /* how long a settled one is kept for those that have not been told */
    uint64_t linger_ns;
    int status;            /* FAILED: why */
    unsigned char *answer; /* FULL and FAILED: the frame that everybody gets */
    size_t answer_bytes;
    struct ft_conn *waiting; /* service's: connections bound to this gather */
};
struct ft_gather *ft_gather_new(const struct ft_id *, uint64_t now_ns, uint64_t linger_ns);
void ft_gather_free(struct ft_gather *);
static inline bool ft_gather_settled(const struct ft_gather *g)
{
    return g->state >= FT_GATHER_FULL;
}
/* FT_OK: counted (and perhaps settled: FULL, or FAILED for all). Otherwise only this rank gets the
 * status and fail text: FT_AGAIN from a settled explicit gather, FT_USAGE for a survivor's rank of
 * a grow or one that another process has in a full gather, FT_NOMEM. */
int ft_gather_add(struct ft_gather *, const struct ft_join_msg *, uint64_t now_ns);
/* The endpoints of all survivors of a grow; may settle it. Nobody waits for an answer in their
 * name, but ft_service_collect() takes one in that of rank 0. */
void ft_gather_supply(struct ft_gather *, uint32_t nranks, const struct ft_endpoint *endpoint,
                      uint64_t now_ns);
/* Whoever's time ends first ends the gather. */
void ft_gather_bound(struct ft_gather *, uint64_t due_ns, uint32_t bound_ms);
/* of a settled one: FT_OK, or why it failed with the sentence */
int ft_gather_verdict(const struct ft_gather *);
/* Settles it as failed for all, unless it is settled. */
void ft_gather_fail(struct ft_gather *, uint64_t now_ns, int status, const char *fmt, ...)
    FT_PRINTF(4, 5);
void ft_gather_timeout(struct ft_gather *, uint64_t now_ns); /* names who is missing */
/* true once nobody is left to be told */
bool ft_gather_tell(struct ft_gather *, uint32_t rank);

/* ---- service, as id.c and join.c use it; any thread ------------------------------------------ */

/* Serves the id from now on. A plain one gets its addresses here; an explicit one must have them.
 * FT_AGAIN: the explicit one is still being served for an earlier call. FT_NOFILE, FT_NOMEM,
 * FT_SYSTEM, FT_INVAL (interfaces). */
int ft_service_add(struct ft_id *);
/* The rank 0 of an explicit id or the root of a grow gave up: who came or comes now learns it.
 * No-op once it is settled. */
void ft_service_withdraw(uint64_t nonce, const char *why);
void ft_service_withdraw_all(const void *owner, const char *why); /* all that are not settled */
/* A job of one rank: its id, if this process serves it, is used up without any network. FT_USAGE if
 * it was before. */
int ft_service_consume(uint64_t nonce);
/* The survivors' endpoints of a grow, `count` of them. FT_USAGE: not the number that the id was
 * made for, supplied before, or not served here; else why the grow has failed already, or fails by
 * this. */
int ft_service_supply(uint64_t nonce, uint32_t nranks, const struct ft_endpoint *endpoint,
                      uint32_t count);
/* Waits for a supplied grow to settle. *answer: a copy of the TABLE frame, the caller's to free().
 * FT_ABORTED fails it. */
int ft_service_collect(uint64_t nonce, uint64_t timeout_ns, const atomic_int *cancel,
                       unsigned char **answer);
/* one of the last FT_USED_IDS that this process served to the end */
bool ft_service_used(uint64_t nonce);
/* ranks of the id's block that have checked in and wait; -1: not served here */
int ft_service_arrived(uint64_t nonce);
void ft_service_set_env(struct ft_env *); /* for tests, before the first id; NULL: the real one */

/* ---- client ---------------------------------------------------------------------------------- */

/* The table's key and first context, from the first id and the salts of all. */
void ft_table_derive(struct ft_table *, const struct ft_id *first, const uint64_t *salt, int nids);

struct ft_wait {
    struct ft_env *env;
    uint64_t deadline_ns;
    const atomic_int *cancel;
};
/* All: FT_OK, FT_TIMEOUT, FT_ABORTED, FT_LINK (end of stream or reset). The socket is
 * non-blocking. */
int ft_wait_fd(const struct ft_wait *, int fd, short events);
int ft_wait_read(const struct ft_wait *, int fd, void *buf, size_t len_bytes);
int ft_wait_write(const struct ft_wait *, int fd, const void *buf, size_t len_bytes);
/* at least one byte */
int ft_wait_some(const struct ft_wait *, int fd, void *buf, size_t capacity_bytes, size_t *got);
/* *fd is owned by ft_fd_own. FT_PEER: refused or unreachable; FT_NOFILE, FT_SYSTEM. */
int ft_wait_connect(const struct ft_wait *, const struct ft_net_address *, int *fd);
int ft_wait_sleep(const struct ft_wait *, uint64_t ns);

#endif
