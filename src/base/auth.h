/*
 * auth: the handshake that opens every connection (P9). Each side proves that it knows the job's
 * 32-byte secret by keyed hashes over both sides' nonces, versions, byte order, purposes and engine
 * ids. Nothing else is read before. It is a state machine over a non-blocking stream socket:
 * messages of fixed size, no allocation, bounded by a deadline. The connection is authenticated,
 * not encrypted.
 */
#ifndef FT_AUTH_H
#define FT_AUTH_H

#define FT_SECRET_BYTES 32
#define FT_WIRE_VERSION 2 /* 1: signatures of comparisons (base/sig.h) were others */

enum ft_purpose { FT_PURPOSE_BOOTSTRAP = 1, FT_PURPOSE_SHM, FT_PURPOSE_TCP, FT_PURPOSE_SERVICE };

struct ft_auth {
    struct ft_env *env;
    int fd;
    bool initiator;
    unsigned char key[FT_SECRET_BYTES];
    /* Engine ids. An acceptor's `peer` is 0 until FT_OK. An initiator may require one peer; 0
     * accepts any. */
    uint64_t self, peer;
    uint32_t purpose;
    /* A number that the initiator sends to the acceptor, for example the index of a connection. The
     * acceptor may read it after FT_OK. Peers of before November 2026 read its lower half, and send
     * 0 in the upper one. */
    uint64_t detail;
    uint64_t deadline_ns;
    int stage;
    bool claimed;      /* an initiator has said who it is, so the acceptor may know by now */
    size_t done_bytes; /* bytes of the current message sent or received so far */
    unsigned char mine[160], theirs[160];
};

void ft_auth_start(struct ft_auth *, struct ft_env *, int fd, bool initiator,
                   const unsigned char key[FT_SECRET_BYTES], uint64_t self, uint64_t peer,
                   uint32_t purpose, uint64_t detail, uint64_t deadline_ns);
/* Advances the handshake. Never blocks. Returns FT_OK when both sides have proved that they know
 * the secret, and FT_AGAIN if the caller has to wait for ft_auth_events() on the socket. On
 * FT_AUTH, FT_VERSION, FT_PROTOCOL, FT_TIMEOUT or FT_LINK the caller closes the connection. Reads
 * no byte beyond the handshake. */
int ft_auth_turn(struct ft_auth *);
short ft_auth_events(const struct ft_auth *); /* the event to wait for: POLLIN or POLLOUT */

/* Derives 32 bytes from a secret for one use ("links", "id", ...) and a number. */
void ft_auth_derive(unsigned char out[FT_SECRET_BYTES], const unsigned char key[FT_SECRET_BYTES],
                    const char *use, uint64_t n);
void ft_random_secret(unsigned char out[FT_SECRET_BYTES]);

#endif
