/*
 * auth: the handshake that opens every connection (P9). Both sides prove that they know the job's
 * 32-byte secret by keyed hashes over each other's nonces, versions, byte order, purposes and
 * engine ids, before anything else is read. A state machine over a non-blocking stream socket:
 * fixed-size messages, no allocation, bounded by a deadline. Authenticated, not encrypted.
 */
#ifndef FT_AUTH_H
#define FT_AUTH_H

#define FT_SECRET_BYTES 32
#define FT_WIRE_VERSION 1

enum ft_purpose { FT_PURPOSE_BOOTSTRAP = 1, FT_PURPOSE_SHM, FT_PURPOSE_TCP };

struct ft_auth {
    struct ft_env *env;
    int fd;
    bool initiator;
    unsigned char key[FT_SECRET_BYTES];
    /* engine ids; an acceptor's peer is 0 until FT_OK; an initiator may demand one, 0: any */
    uint64_t self, peer;
    uint32_t purpose;
    /* initiator's word to the acceptor (index of a connection, say); valid there after FT_OK */
    uint32_t detail;
    uint64_t deadline_ns;
    int stage;
    size_t done_bytes; /* of the current message */
    unsigned char mine[160], theirs[160];
};

void ft_auth_start(struct ft_auth *, struct ft_env *, int fd, bool initiator,
                   const unsigned char key[FT_SECRET_BYTES], uint64_t self, uint64_t peer,
                   uint32_t purpose, uint32_t detail, uint64_t deadline_ns);
/* FT_OK: both sides proved it. FT_AGAIN: wait for ft_auth_events() on the socket. Otherwise
 * FT_AUTH, FT_VERSION, FT_PROTOCOL, FT_TIMEOUT or FT_LINK, and the connection is to be closed.
 * Reads not a byte beyond the handshake. */
int ft_auth_turn(struct ft_auth *);
short ft_auth_events(const struct ft_auth *); /* POLLIN or POLLOUT */

/* 32 bytes derived from a secret for a use ("links", "id", ...). */
void ft_auth_derive(unsigned char out[FT_SECRET_BYTES], const unsigned char key[FT_SECRET_BYTES],
                    const char *use, uint64_t n);
void ft_random_secret(unsigned char out[FT_SECRET_BYTES]);

#endif
