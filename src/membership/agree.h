/*
 * Private to the agreement: what its files share. agree.c owns the instance and the time: who leads
 * when, what is repeated, when to give up. agree_ballot.c is the protocol: what is promised,
 * accepted and decided. agree_value.c computes a value from the inputs. agree_wire.c has the
 * formats and does no input or output. docs/membership.md has the correctness argument.
 *
 * The protocol is Paxos for one value. "Leader" means the proposer of a ballot. "Gone" means dead
 * or fenced: nobody processes messages of such a rank any more.
 */
#ifndef FT_AGREE_H
#define FT_AGREE_H

#include "membership/membership.h"

/* A ballot is round << 20 | rank; 0 means none. Rounds never overflow in practice. */
#define FT_BALLOT_RANK_BITS 20
#define FT_BALLOT_MAX (UINT64_C(1) << 60)
static inline uint64_t ft_ballot(uint64_t round, int rank)
{
    return round << FT_BALLOT_RANK_BITS | (uint64_t)rank;
}
static inline int ft_ballot_rank(uint64_t b)
{
    return (int)(b & ((1u << FT_BALLOT_RANK_BITS) - 1));
}
static inline uint64_t ft_ballot_round(uint64_t b)
{
    return b >> FT_BALLOT_RANK_BITS;
}

/* ---- sets of ranks, as they travel ----------------------------------------------------------- */

static inline size_t ft_set_bytes(int nranks)
{
    return ((size_t)nranks + 7) / 8;
}
static inline bool ft_set_has(const unsigned char *set, int r)
{
    return set[r / 8] >> r % 8 & 1;
}
static inline void ft_set_add(unsigned char *set, int r)
{
    set[r / 8] = (unsigned char)(set[r / 8] | 1u << r % 8);
}
bool ft_set_empty(const unsigned char *set, size_t bytes);
/* true if a is a subset of b */
bool ft_set_within(const unsigned char *a, const unsigned char *b, size_t bytes);

/* ---- formats --------------------------------------------------------------------------------- */

enum ft_agree_type {
    FT_MSG_ENTER = 1, /* a contribution, sent to the rank that should lead; asks for an answer */
    FT_MSG_PREPARE,   /* phase 1 of a ballot */
    FT_MSG_PROMISE,   /* with the accepted value, or the contribution if no value was accepted */
    FT_MSG_ACCEPT,    /* phase 2: the value */
    FT_MSG_ACCEPTED,
    FT_MSG_REFUSE, /* the sender has promised the named ballot, or does not lead */
    FT_MSG_DECIDE, /* the value */
    FT_MSG_TYPES
};
enum ft_agree_body { FT_BODY_NONE, FT_BODY_CONTRIBUTION, FT_BODY_VALUE };
/* PREPARE: a quorum has promised, and the leader waits for the others */
#define FT_AGREE_WAITING 1u
#define FT_AGREE_HEAD_BYTES 40
#define FT_CONTRIBUTION_BYTES 32
#define FT_VALUE_BYTES 40

/* Pointers of a decoded message point into the received bytes. */
struct ft_agree_msg {
    enum ft_agree_type type;
    enum ft_agree_body body_kind;
    uint32_t flags;
    /* accepted: ballot of the value in a PROMISE, or the deciding ballot in a DECIDE */
    uint64_t ballot, accepted;
    const unsigned char *dead, *unreachable, *fenced;
    const unsigned char *body;
    size_t body_bytes;
};
struct ft_contribution {
    enum ft_agree_kind kind;
    uint64_t flags, last_op;
    int64_t key;
    const unsigned char *list; /* a set */
    const unsigned char *blob;
    uint32_t blob_bytes;
};

size_t ft_agree_head_bytes(int nranks);
size_t ft_contribution_bytes(int nranks); /* without a blob */
size_t ft_value_bytes(int nranks);        /* maximum, without a blob */
/* The longest blob that fits in a message, both as a contribution and in a value. */
size_t ft_agree_blob_room(const struct ft_agree_config *);
/* `out` must have room for the head and body_bytes. */
size_t ft_agree_encode(unsigned char *out, const struct ft_agree_config *,
                       const struct ft_agree_msg *);
/* FT_PROTOCOL */
int ft_agree_decode(const struct ft_agree_config *, const void *data, size_t len_bytes,
                    struct ft_agree_msg *);
size_t ft_contribution_encode(unsigned char *out, int nranks, const struct ft_agree_input *);
/* FT_PROTOCOL */
int ft_contribution_decode(struct ft_contribution *, int nranks, const unsigned char *in,
                           size_t len_bytes);
size_t ft_value_encode(unsigned char *out, int nranks, const struct ft_decision *);
int ft_value_check(int nranks, const unsigned char *in, size_t len_bytes); /* FT_PROTOCOL */
/* Decodes a checked value for the user, in one allocation. Returns NULL if there is no memory. */
struct ft_decision *ft_value_decode(int nranks, const unsigned char *in, size_t len_bytes);

/* ---- the instance ---------------------------------------------------------------------------- */

struct ft_bytes {
    unsigned char *data;
    size_t len;
};
/* on FT_NOMEM the old content stays */
int ft_bytes_set(struct ft_bytes *, const void *data, size_t len_bytes);

struct ft_agree_peer {
    enum ft_peer_evidence evidence; /* this rank's own; DEAD is in the set `dead` instead */
    /* About the ballot that this rank leads. acked: the peer has said that it regards all of `dead`
     * and `fenced` as gone. */
    bool promised, accepted, acked;
    bool entered;
    /* some rank reports it as unreachable, and it has not been heard since */
    bool doubted;
    uint64_t asked_ns; /* time since when an answer is due; 0: none is due */
    unsigned asks;     /* questions since then, counted as far as FT_AGREE_ASKS */
    /* time since when the evidence is REDIALLED, or since the redial was in vain */
    uint64_t redialled_ns;
    bool cut_off; /* the redial was in vain: the peer may live, and may lead */
    struct ft_bytes contribution;
    unsigned char *unreachable; /* the set that it reported last; NULL: empty */
};
enum ft_agree_phase { FT_FOLLOW, FT_PREPARE, FT_ACCEPT };

struct ft_agree {
    struct ft_agree_config config;
    size_t set_bytes;
    struct ft_agree_peer *peer; /* [nranks], including this rank with its own contribution */
    unsigned char *dead;        /* ranks that anyone has proved dead; their messages are ignored */
    /* silent ranks on the lists of all others; their messages are ignored until the decision */
    unsigned char *fenced;
    unsigned char *listed;  /* union of the lists of all ranks that entered */
    unsigned char *scratch; /* buffer for the message to send: message_bytes */
    /* this rank's own set of unreachable ranks, computed for each message */
    unsigned char *mine;

    /* state of the acceptor; `value` is the value of ballot `accepted` */
    uint64_t promised, accepted;
    struct ft_bytes value;
    /* own contribution while this rank does not know yet whom it can reach; else empty */
    struct ft_bytes coming;

    enum ft_agree_phase phase; /* state of the leader of `ballot` */
    /* best: while preparing, the ballot of `proposal`; 0: no promise names an accepted value */
    uint64_t ballot, best;
    struct ft_bytes proposal;

    uint64_t now_ns, looked_ns; /* this rank's own time, and the clock when it was updated */
    /* when it first heard of the agreement; when its user entered; 0: not yet */
    uint64_t known_ns, entered_ns;
    uint64_t round_seen;
    uint64_t repeat_at_ns, repeat_ns; /* when requests are repeated */
    uint64_t lead_at_ns;              /* when to take over if there is no progress */
    /* The same if this rank cannot reach the leader: the leader has died, or others reach it and
     * decide soon. */
    uint64_t lead_soon_ns;
    /* the ballot that stopped this rank's ballot, or that it promised instead; 0: none */
    uint64_t rival;
    int attempts, next_asked;
    bool wanted; /* a rank has entered and asked this rank to lead */
    bool gave_up;
    struct ft_decision *decision;
};

static inline uint64_t ft_agree_now(const struct ft_agree *a)
{
    return a->now_ns;
}
static inline bool ft_agree_is_gone(const struct ft_agree *a, int r)
{
    return ft_set_has(a->dead, r) || ft_set_has(a->fenced, r);
}
/* A rank has not answered several questions for silent_ns. */
#define FT_AGREE_ASKS 3
bool ft_agree_unanswered(const struct ft_agree *, int rank);
void ft_agree_note_asked(struct ft_agree *, int rank);    /* a question to it is sent */
bool ft_agree_missing(const struct ft_agree *, int rank); /* no reason to wait for it */
/* a leader asks it whether it is alive */
void ft_agree_doubt(struct ft_agree *, int rank);
/* some rank makes progress: restart the wait */
void ft_agree_restart_wait(struct ft_agree *);
bool ft_agree_can_lead(const struct ft_agree *); /* true if it is this rank's turn */
/* Stores a rank's contribution after a check. Only the first counts. */
void ft_agree_contribute(struct ft_agree *, int rank, const unsigned char *data, size_t len_bytes);

/* agree_ballot.c */
void ft_agree_send(struct ft_agree *, int to, enum ft_agree_type type);
/* sends what the leader has to send in the present phase */
void ft_agree_broadcast(struct ft_agree *);
void ft_agree_lead(struct ft_agree *);    /* starts a ballot above all ballots seen */
void ft_agree_advance(struct ft_agree *); /* the leader checks whether it can go on */
void ft_agree_handle(struct ft_agree *, int from, const struct ft_agree_msg *);
/* `dead` or `fenced` grew: nobody has acknowledged the new sets */
void ft_agree_gone_changed(struct ft_agree *);

/* agree_value.c */
/* true if those that promised (or accepted) are a quorum */
bool ft_agree_quorum(const struct ft_agree *, bool accepted);
/* true if every rank has entered or is not waited for */
bool ft_agree_complete(const struct ft_agree *);
/* true if all ranks that are not on this rank's list have entered with the same list */
bool ft_agree_same_list(const struct ft_agree *);
/* computes the value; FT_NOMEM; FT_AGAIN: no rank would survive */
int ft_agree_compute(struct ft_agree *, struct ft_bytes *value);

#endif
