/*
 * What waits to be sent to one connection. A large list that many members get is in memory once:
 * each of them holds it until it has gone.
 */
#include "membership/coord_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define CHUNK_BYTES ((size_t)1024)      /* small messages share a chunk */
#define CHUNK_MORE_BYTES ((size_t)4096) /* if one was not enough */
#define PARTS 32                        /* of one call to the kernel */
#define COPIED_BYTES ((size_t)2048)     /* what is shared and not longer is cheaper to copy */

struct ft_coord_chunk {
    struct ft_coord_chunk *next;
    struct ft_blob *blob; /* NULL: the bytes are here */
    size_t len, room;
    unsigned char bytes[];
};

static struct ft_coord_chunk *add_chunk(struct ft_coord_out *out, size_t room)
{
    struct ft_coord_chunk *chunk = malloc(sizeof *chunk + room);
    if (!chunk)
        return NULL;
    *chunk = (struct ft_coord_chunk){.room = room};
    *(out->last ? &out->last->next : &out->first) = chunk;
    out->last = chunk;
    return chunk;
}

unsigned char *ft_coord_out_own(struct ft_coord_out *out, size_t len_bytes)
{
    struct ft_coord_chunk *chunk = out->last;
    if (!chunk || chunk->room - chunk->len < len_bytes)
        chunk = add_chunk(out, ft_max(len_bytes, chunk ? CHUNK_MORE_BYTES : CHUNK_BYTES));
    if (!chunk)
        return NULL;
    unsigned char *at = chunk->bytes + chunk->len;
    chunk->len += len_bytes;
    out->len_bytes += len_bytes;
    return at;
}

static bool copy(struct ft_coord_out *out, const struct ft_blob *blob)
{
    unsigned char *to = ft_coord_out_own(out, blob->len_bytes);
    if (to)
        memcpy(to, blob->bytes, blob->len_bytes);
    return to != NULL;
}

bool ft_coord_out_share(struct ft_coord_out *out, struct ft_blob *blob)
{
    if (blob->len_bytes <= COPIED_BYTES)
        return copy(out, blob);
    struct ft_coord_chunk *chunk = add_chunk(out, 0);
    if (!chunk)
        return false;
    ft_blob_hold(blob);
    chunk->blob = blob;
    chunk->len = chunk->room = blob->len_bytes; /* nothing can be added to it */
    out->len_bytes += blob->len_bytes;
    return true;
}

static void drop_first(struct ft_coord_out *out)
{
    struct ft_coord_chunk *chunk = out->first;
    out->first = chunk->next;
    if (!out->first)
        out->last = NULL;
    if (chunk->blob)
        ft_blob_let_go(chunk->blob);
    free(chunk);
    out->done = 0;
}

void ft_coord_out_clear(struct ft_coord_out *out)
{
    while (out->first)
        drop_first(out);
    *out = (struct ft_coord_out){0};
}

static int fill(const struct ft_coord_out *out, struct iovec part[PARTS])
{
    size_t skip = out->done;
    int n = 0;
    for (struct ft_coord_chunk *chunk = out->first; chunk && n < PARTS; chunk = chunk->next) {
        unsigned char *bytes = chunk->blob ? chunk->blob->bytes : chunk->bytes;
        part[n++] = (struct iovec){bytes + skip, chunk->len - skip};
        skip = 0;
    }
    return n;
}

static void advance(struct ft_coord_out *out, size_t sent)
{
    out->len_bytes -= sent;
    while (out->first && sent >= out->first->len - out->done) {
        sent -= out->first->len - out->done;
        drop_first(out);
    }
    out->done += sent;
}

int ft_coord_out_flush(struct ft_coord_out *out, int fd, bool *moved)
{
    *moved = false;
    while (out->len_bytes > 0) {
        struct iovec part[PARTS];
        struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)fill(out, part)};
        ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? FT_AGAIN : FT_LINK;
        *moved = true;
        advance(out, (size_t)n);
    }
    ft_coord_out_clear(out);
    return FT_OK;
}
