/*
 * The other end of the responder, for tools of this library: asks for a snapshot of all hosts.
 * Whoever has the port may answer, so the answer is bounded in time and length, and is checked as
 * that of another host is.
 */
#include "ras/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define READ_BYTES 65536
#define MORE_S 1 /* what the responder needs besides the time that it gives other hosts */

/* False: the time is over. */
static bool wait_for(int fd, short events, uint64_t end_ns)
{
    struct pollfd at = {.fd = fd, .events = events};
    for (;;) {
        uint64_t now_ns = ft_now_ns(ft_env_real());
        if (now_ns >= end_ns)
            return false;
        int rc = poll(&at, 1, (int)((end_ns - now_ns) / 1000000) + 1);
        if (rc > 0 || (rc < 0 && errno != EINTR))
            return rc > 0;
    }
}

/* The snapshot follows the lines of the answer, of which the last one says how long it is. */
static const char *find_snapshot(const struct ft_text *answer, size_t *len_bytes)
{
    char *head = answer->at ? strstr(answer->at, FT_RAS_SNAPSHOT) : NULL, *body = NULL;
    *len_bytes = head ? strtoull(head + strlen(FT_RAS_SNAPSHOT), &body, 10) : 0;
    return body && *body == '\n' ? body + 1 : NULL;
}

static bool is_complete(const struct ft_text *answer)
{
    size_t len_bytes;
    const char *body = find_snapshot(answer, &len_bytes);
    return body ? answer->len - (size_t)(body - answer->at) >= len_bytes
                : answer->at && strstr(answer->at, "ERROR: ");
}

static int receive(int fd, uint64_t end_ns, struct ft_text *answer)
{
    char bytes[READ_BYTES];
    while (!answer->broken && wait_for(fd, POLLIN, end_ns)) {
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0)
            ft_text_add_bytes(answer, bytes, (size_t)n);
        if (n == 0 || is_complete(answer))
            return FT_OK;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return ft_fail(FT_LINK, "the responder of this host: %s", strerror(errno));
    }
    return answer->broken ? ft_fail(FT_NOMEM, "the responder of this host tells too much")
                          : ft_fail(FT_LINK, "the responder of this host did not answer in time");
}

static int say(int fd, unsigned timeout_s, uint64_t end_ns)
{
    char text[96];
    int len = snprintf(text, sizeof text, "CLIENT PROTOCOL 2\nTIMEOUT %u\nSNAPSHOT\n", timeout_s);
    if (!wait_for(fd, POLLOUT, end_ns) || ft_net_connected(fd) != FT_OK ||
        send(fd, text, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT) != len)
        return ft_fail(FT_LINK, "nobody answers for the ranks of other hosts at %s",
                       ft_param_str(FT_PARAM_RAS_ADDR));
    return FT_OK;
}

static int take(const struct ft_text *answer, struct ft_snapshot **out)
{
    size_t len_bytes;
    const char *body = find_snapshot(answer, &len_bytes);
    if (!body || answer->len - (size_t)(body - answer->at) != len_bytes)
        return ft_fail(FT_PROTOCOL, "the responder of this host does not tell of other hosts: it "
                                    "is of another version");
    return ft_snapshot_unpack(body, len_bytes, ft_now_ns(ft_env_real()), out);
}

int ft_ras_fetch(unsigned timeout_s, struct ft_snapshot **out)
{
    struct ft_text answer = {.most = FT_RAS_ANSWER_MAX};
    struct ft_net_address at;
    int fd = -1, rc = ft_ras_address(&at);
    uint64_t end_ns = ft_now_ns(ft_env_real()) + (timeout_s + MORE_S) * 1000000000ull;
    if (rc < 1)
        return rc < 0 ? rc : FT_INVAL;
    rc = ft_net_connect(&at, NULL, &fd);
    if (rc == FT_OK)
        rc = say(fd, timeout_s, end_ns);
    if (rc == FT_OK)
        rc = receive(fd, end_ns, &answer);
    if (rc == FT_OK)
        rc = take(&answer, out);
    ft_text_free(&answer);
    ft_fd_close(&fd);
    return rc;
}
