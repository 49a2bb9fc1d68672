/*
 * Property: no bytes make the handshake crash, hang, read beyond its end, or succeed without the
 * secret. Method: the first byte of the input says what it is: bytes for an initiator, bytes for an
 * acceptor, or a real handshake between the two in which the input cuts the stream into pieces and
 * changes bytes. Nonces and time are counters, so an input always does the same.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct side {
    struct ft_auth auth;
    int fd, status;
};

static uint64_t counter;
static uint64_t count_ns(struct ft_env *env)
{
    (void)env;
    return ++counter;
}
static void count_bytes(struct ft_env *env, void *buf, size_t len)
{
    (void)env;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)buf)[i] = (unsigned char)(++counter * 0x9e3779b97f4a7c15u >> 56);
}
static struct ft_env env = {count_ns, count_bytes, NULL};

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_auth: %s\n", what);
    abort();
}

/* Opens a role; returns our end of its socket. */
static int start(struct side *s, bool initiator)
{
    static const unsigned char key[FT_SECRET_BYTES] = {42};
    int fd[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0, "no socket pair");
    s->fd = fd[0];
    s->status = FT_AGAIN;
    ft_auth_start(&s->auth, &env, fd[0], initiator, key, 1, initiator ? 2 : 0, FT_PURPOSE_TCP, 3,
                  UINT64_MAX);
    if (!initiator)
        s->auth.self = 2;
    return fd[1];
}

static void turn(struct side *s)
{
    if (s->status != FT_AGAIN)
        return;
    s->status = ft_auth_turn(&s->auth);
    must(s->status == FT_OK || s->status == FT_AGAIN || s->status == FT_AUTH ||
             s->status == FT_VERSION || s->status == FT_PROTOCOL || s->status == FT_LINK,
         "a status that ft_auth_turn() must not give");
    if (s->status != FT_AGAIN)
        must(ft_auth_turn(&s->auth) == s->status, "a finished handshake changed its mind");
}

/* A stranger's bytes, in pieces as long as they say themselves. */
static void feed(bool initiator, const uint8_t *data, size_t size)
{
    struct side s;
    const int fd = start(&s, initiator);
    char sink[512];

    turn(&s);
    for (size_t at = 0; at < size && s.status == FT_AGAIN;) {
        const size_t piece = ft_min(1 + data[at] % 64u, size - at);
        if (send(fd, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
        at += piece;
        turn(&s);
        must(recv(fd, sink, sizeof(sink), MSG_DONTWAIT) < (ssize_t)sizeof(sink),
             "too much was said to a stranger");
    }
    must(s.status != FT_OK, "a stranger was let in");
    close(fd);
    turn(&s);
    must(s.status != FT_AGAIN && s.status != FT_OK, "the end of a connection went unnoticed");
    must(initiator || s.auth.peer == 0, "a stranger's name was believed");
    close(s.fd);
}

/* Two sides that know the secret; each input byte moves some bytes, perhaps with one changed. */
static void meddle(const uint8_t *data, size_t size)
{
    struct side s[2];
    const int fd[2] = {start(&s[0], true), start(&s[1], false)};
    bool changed = false;

    for (size_t at = 0; at < size + 64; at++) {
        const unsigned b = at < size ? data[at] : 0xf0;
        const int from = (int)(b & 1);
        unsigned char bytes[64];
        turn(&s[0]);
        turn(&s[1]);
        for (int way = 0; way < (at < size ? 1 : 2); way++) {
            const int f = at < size ? from : way;
            const ssize_t n = recv(fd[f], bytes, 1 + (b >> 2), MSG_DONTWAIT);
            if (n <= 0)
                continue;
            if (b & 2 && b & 4) {
                bytes[0] ^= (unsigned char)(b | 1);
                changed = true;
            }
            (void)!send(fd[1 - f], bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
    must(changed || (s[0].status == FT_OK && s[1].status == FT_OK), "an honest handshake failed");
    must(!changed || s[0].status != FT_OK || s[1].status != FT_OK, "a changed handshake succeeded");
    must(s[0].status != FT_OK || s[0].auth.peer == 2, "the initiator knows a wrong name");
    must(s[1].status != FT_OK || (s[1].auth.peer == 1 && s[1].auth.detail == 3),
         "the acceptor knows a wrong name");
    for (int i = 0; i < 2; i++) {
        close(fd[i]);
        close(s[i].fd);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    counter = 0;
    if (size == 0)
        return 0;
    if (data[0] % 3 == 2)
        meddle(data + 1, size - 1);
    else
        feed(data[0] % 3 == 1, data + 1, size - 1);
    return 0;
}
