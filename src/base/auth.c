/*
 * The handshake of auth.h. It has four messages. `mine` and `theirs` keep all bytes sent and
 * received, in order. Every proof is a keyed BLAKE2b over a label of its own and both transcripts
 * so far:
 *
 *   initiator -> acceptor   hello: magic, version, byte order, nonce
 *   acceptor  -> initiator  hello, proof "acceptor"
 *   initiator -> acceptor   engine id, wanted peer, detail, proof "initiator"
 *   acceptor  -> initiator  engine id, proof "accepted"
 *
 * The labels prevent reflection: a proof cannot be sent back to its author. The nonces prevent
 * replay. The key is derived for one purpose, so nobody can relay a connection for one use into
 * another use. A side sends its engine id only after the other side has proved itself. A side that
 * refuses sends zeros in place of the proof, so that the other side can tell a wrong key from a
 * lost link.
 */
#include "base/base.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

#define PREFIX_BYTES 16 /* magic, version, byte order: the same in every version */
#define NONCE_BYTES 32
#define HELLO_BYTES (PREFIX_BYTES + NONCE_BYTES)
#define PROOF_BYTES 32
#define REPLY_BYTES (HELLO_BYTES + PROOF_BYTES)
#define CLAIM_BYTES (24 + PROOF_BYTES) /* id, wanted peer, detail */
#define ACCEPT_BYTES (8 + PROOF_BYTES)
#define MAGIC_BYTES 8

_Static_assert(crypto_generichash_BYTES == PROOF_BYTES, "proofs are BLAKE2b-256");
_Static_assert(crypto_generichash_KEYBYTES == FT_SECRET_BYTES, "secrets are keys of BLAKE2b");
_Static_assert(REPLY_BYTES + ACCEPT_BYTES <= sizeof(((struct ft_auth *)0)->mine),
               "the acceptor's transcript fits");
_Static_assert(HELLO_BYTES + CLAIM_BYTES <= sizeof(((struct ft_auth *)0)->mine),
               "the initiator's transcript fits");

/* After a failure `stage` has the status, which is negative. */
enum stage {
    I_HELLO,
    I_REPLY,
    I_CLAIM,
    I_ACCEPT, /* the initiator sends, receives, sends, receives */
    A_HELLO,
    A_REPLY,
    A_CLAIM,
    A_ACCEPT, /* the acceptor receives, sends, receives, sends */
    DONE
};

/* For each stage: whether it sends, and where its message begins and ends in the transcript of that
 * direction. */
static const struct {
    bool sends;
    size_t from, to;
} stages[] = {
    [I_HELLO] = {true, 0, HELLO_BYTES},
    [I_REPLY] = {false, 0, REPLY_BYTES},
    [I_CLAIM] = {true, HELLO_BYTES, HELLO_BYTES + CLAIM_BYTES},
    [I_ACCEPT] = {false, REPLY_BYTES, REPLY_BYTES + ACCEPT_BYTES},
    [A_HELLO] = {false, 0, HELLO_BYTES},
    [A_REPLY] = {true, 0, REPLY_BYTES},
    [A_CLAIM] = {false, HELLO_BYTES, HELLO_BYTES + CLAIM_BYTES},
    [A_ACCEPT] = {true, REPLY_BYTES, REPLY_BYTES + ACCEPT_BYTES},
};

static int turn_once(struct ft_auth *a);
static int check_prefix(struct ft_auth *a, size_t have);
static int finish_stage(struct ft_auth *a);
static void write_proof(struct ft_auth *a);
static int check_reply(struct ft_auth *a);
static int check_claim(struct ft_auth *a);
static int check_accept(struct ft_auth *a);
static void learn_claim(struct ft_auth *a);
static void write_hello(struct ft_auth *a);
static void write_claim(struct ft_auth *a);
static void write_accept(struct ft_auth *a);
static void refuse(struct ft_auth *a, enum stage with);
static void prove(const struct ft_auth *a, const char *label, size_t initiator_bytes,
                  size_t acceptor_bytes, unsigned char out[PROOF_BYTES]);
static bool proved(const struct ft_auth *a, const char *label, size_t initiator_bytes,
                   size_t acceptor_bytes);
static void sodium_start(void);

void ft_auth_start(struct ft_auth *a, struct ft_env *env, int fd, bool initiator,
                   const unsigned char key[FT_SECRET_BYTES], uint64_t self, uint64_t peer,
                   uint32_t purpose, uint64_t detail, uint64_t deadline_ns)
{
    memset(a, 0, sizeof(*a));
    a->env = env;
    a->fd = fd;
    a->initiator = initiator;
    a->self = self;
    a->peer = initiator ? peer : 0;
    a->purpose = purpose;
    a->detail = initiator ? detail : 0;
    a->deadline_ns = deadline_ns;
    ft_auth_derive(a->key, key, "auth", purpose);
    a->stage = initiator ? I_HELLO : A_HELLO;
    write_hello(a);
}

int ft_auth_turn(struct ft_auth *a)
{
    while (a->stage >= 0 && a->stage < DONE) {
        int status = turn_once(a);
        if (status == FT_AGAIN) {
            if (ft_now_ns(a->env) < a->deadline_ns)
                return FT_AGAIN;
            status = ft_fail(FT_TIMEOUT,
                             "the handshake of a new connection was not finished in time");
        }
        if (status != FT_OK)
            a->stage = status;
    }
    sodium_memzero(a->key, sizeof(a->key));
    return a->stage == DONE ? FT_OK : a->stage;
}

short ft_auth_events(const struct ft_auth *a)
{
    return a->stage >= 0 && a->stage < DONE && stages[a->stage].sends ? POLLOUT : POLLIN;
}

void ft_auth_derive(unsigned char out[FT_SECRET_BYTES], const unsigned char key[FT_SECRET_BYTES],
                    const char *use, uint64_t n)
{
    static const char label[] = "ftccl derive";
    unsigned char number[8];
    crypto_generichash_state state;

    for (unsigned i = 0; i < sizeof(number); i++)
        number[i] = (unsigned char)(n >> (8 * i));
    sodium_start();
    crypto_generichash_init(&state, key, FT_SECRET_BYTES, FT_SECRET_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)label, sizeof(label));
    crypto_generichash_update(&state, number, sizeof(number));
    crypto_generichash_update(&state, (const unsigned char *)use, strlen(use));
    crypto_generichash_final(&state, out, FT_SECRET_BYTES);
    sodium_memzero(&state, sizeof(state));
}

void ft_random_secret(unsigned char out[FT_SECRET_BYTES])
{
    sodium_start();
    randombytes_buf(out, FT_SECRET_BYTES);
}

/* Sends or receives as much of the current message as the socket allows. Returns FT_OK if it made
 * progress. */
static int turn_once(struct ft_auth *a)
{
    const size_t from = stages[a->stage].from, want = stages[a->stage].to - from - a->done_bytes;
    ssize_t n;

    if (stages[a->stage].sends)
        n = send(a->fd, a->mine + from + a->done_bytes, want, MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        n = recv(a->fd, a->theirs + from + a->done_bytes, want, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
        return FT_OK;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return FT_AGAIN;
    if (n < 0)
        return ft_fail(FT_LINK, "a connection broke during its handshake: %s", strerror(errno));
    if (n == 0)
        return ft_fail(FT_LINK, "the other side closed a connection during its handshake");
    a->done_bytes += (size_t)n;
    if (a->stage == I_REPLY || a->stage == A_HELLO) {
        int status = check_prefix(a, a->done_bytes);
        if (status != FT_OK)
            return status;
    }
    if (a->done_bytes < stages[a->stage].to - from)
        return FT_OK;
    a->done_bytes = 0;
    return finish_stage(a);
}

/* Checks the part of the other side's hello that has arrived, so that garbage is refused at its
 * first wrong byte. */
static int check_prefix(struct ft_auth *a, size_t have)
{
    const unsigned char *t = a->theirs;
    if (memcmp(t, a->mine, ft_min(have, MAGIC_BYTES)) != 0)
        return ft_fail(FT_PROTOCOL, "a connection did not begin with FTCCL's handshake");
    if (have < PREFIX_BYTES || memcmp(t, a->mine, PREFIX_BYTES) == 0)
        return FT_OK;
    if (a->stage == A_HELLO)
        refuse(a, A_REPLY);
    uint32_t version = t[8] | (uint32_t)t[9] << 8 | (uint32_t)t[10] << 16 | (uint32_t)t[11] << 24;
    if (version != FT_WIRE_VERSION)
        return ft_fail(FT_VERSION,
                       "the other side speaks version %" PRIu32
                       " of FTCCL's protocol, this one version %d",
                       version, FT_WIRE_VERSION);
    return ft_fail(FT_VERSION, "the other side is a machine of another byte order");
}

static int finish_stage(struct ft_auth *a)
{
    int status = FT_OK;
    switch ((enum stage)a->stage) {
    case I_HELLO:
    case A_REPLY:
        break; /* sent; the next stage receives the answer */
    case I_CLAIM:
        a->claimed = true;
        break;
    case I_REPLY:
        status = check_reply(a);
        break;
    case I_ACCEPT:
        status = check_accept(a);
        break;
    case A_HELLO:
        write_proof(a);
        break;
    case A_CLAIM:
        status = check_claim(a);
        break;
    case A_ACCEPT:
        learn_claim(a);
        break;
    case DONE:
        break;
    }
    if (status != FT_OK)
        return status;
    a->stage = a->stage == I_ACCEPT || a->stage == A_ACCEPT ? DONE : a->stage + 1;
    return FT_OK;
}

static void write_proof(struct ft_auth *a)
{
    prove(a, "acceptor", HELLO_BYTES, HELLO_BYTES, a->mine + HELLO_BYTES);
}

static int check_reply(struct ft_auth *a)
{
    if (!proved(a, "acceptor", HELLO_BYTES, HELLO_BYTES)) {
        refuse(a, I_CLAIM);
        return ft_fail(FT_AUTH, "the side connected to does not know this job's secret");
    }
    write_claim(a);
    return FT_OK;
}

static int check_claim(struct ft_auth *a)
{
    const unsigned char *claim = a->theirs + HELLO_BYTES;
    uint64_t wanted;

    if (!proved(a, "initiator", HELLO_BYTES + CLAIM_BYTES - PROOF_BYTES, REPLY_BYTES))
        return ft_fail(FT_AUTH, "a connecting side does not know this job's secret");
    memcpy(&wanted, claim + 8, 8);
    if (wanted != 0 && wanted != a->self) {
        refuse(a, A_ACCEPT);
        return ft_fail(FT_AUTH,
                       "a connection was meant for engine %016" PRIx64 ", this one is %016" PRIx64,
                       wanted, a->self);
    }
    write_accept(a);
    return FT_OK;
}

static int check_accept(struct ft_auth *a)
{
    uint64_t id;
    if (!proved(a, "accepted", HELLO_BYTES + CLAIM_BYTES, REPLY_BYTES + ACCEPT_BYTES - PROOF_BYTES))
        return ft_fail(FT_AUTH,
                       "the side connected to refused: it is not the engine that was wanted");
    memcpy(&id, a->theirs + REPLY_BYTES, 8);
    if (a->peer != 0 && a->peer != id)
        return ft_fail(FT_AUTH, "the side connected to is engine %016" PRIx64 ", not %016" PRIx64,
                       id, a->peer);
    a->peer = id;
    return FT_OK;
}

static void learn_claim(struct ft_auth *a)
{
    memcpy(&a->peer, a->theirs + HELLO_BYTES, 8);
    memcpy(&a->detail, a->theirs + HELLO_BYTES + 16, 8);
}

static void write_hello(struct ft_auth *a)
{
    static const unsigned char magic[MAGIC_BYTES] = {'F', 'T', 'C', 'C', 'L', '\r', '\n', 0x1a};
    const uint16_t one = 1;

    memcpy(a->mine, magic, MAGIC_BYTES);
    a->mine[8] = FT_WIRE_VERSION;
    memcpy(a->mine + 12, &one, sizeof(one)); /* byte order: 1, 0 or 0, 1 */
    a->env->random(a->env, a->mine + PREFIX_BYTES, NONCE_BYTES);
}

static void write_claim(struct ft_auth *a)
{
    unsigned char *claim = a->mine + HELLO_BYTES;
    memcpy(claim, &a->self, 8);
    memcpy(claim + 8, &a->peer, 8);
    memcpy(claim + 16, &a->detail, 8);
    prove(a, "initiator", HELLO_BYTES + CLAIM_BYTES - PROOF_BYTES, REPLY_BYTES,
          claim + CLAIM_BYTES - PROOF_BYTES);
}

static void write_accept(struct ft_auth *a)
{
    unsigned char *accept = a->mine + REPLY_BYTES;
    memcpy(accept, &a->self, 8);
    prove(a, "accepted", HELLO_BYTES + CLAIM_BYTES, REPLY_BYTES + ACCEPT_BYTES - PROOF_BYTES,
          accept + 8);
}

/* Sends the message of stage `with` with zeros in place of the proof, as far as the socket takes it
 * at once. It only helps the other side to name the reason; errors are ignored. */
static void refuse(struct ft_auth *a, enum stage with)
{
    (void)!send(a->fd, a->mine + stages[with].from, stages[with].to - stages[with].from,
                MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* A keyed hash over the label and the first bytes of both transcripts, the initiator's first. */
static void prove(const struct ft_auth *a, const char *label, size_t initiator_bytes,
                  size_t acceptor_bytes, unsigned char out[PROOF_BYTES])
{
    crypto_generichash_state state;
    char padded[16] = {0};

    memcpy(padded, label, strlen(label));
    crypto_generichash_init(&state, a->key, FT_SECRET_BYTES, PROOF_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)padded, sizeof(padded));
    crypto_generichash_update(&state, a->initiator ? a->mine : a->theirs, initiator_bytes);
    crypto_generichash_update(&state, a->initiator ? a->theirs : a->mine, acceptor_bytes);
    crypto_generichash_final(&state, out, PROOF_BYTES);
    sodium_memzero(&state, sizeof(state));
}

/* Checks the proof that follows the hashed bytes in the other side's transcript. */
static bool proved(const struct ft_auth *a, const char *label, size_t initiator_bytes,
                   size_t acceptor_bytes)
{
    unsigned char expected[PROOF_BYTES];
    prove(a, label, initiator_bytes, acceptor_bytes, expected);
    return sodium_memcmp(expected, a->theirs + (a->initiator ? acceptor_bytes : initiator_bytes),
                         PROOF_BYTES) == 0;
}

static void sodium_start_once(void)
{
    (void)!sodium_init();
}

static void sodium_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, sodium_start_once);
}
