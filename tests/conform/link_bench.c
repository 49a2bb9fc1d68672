/*
 * Measures what a transport's link costs: 8-byte round trips and the rate of one-way chunks between
 * two processes of this machine, and next to it, in the same run, a bare TCP socket over loopback.
 * The numbers are for people; it asserts nothing.
 *
 * link_bench [transport] [chunk bytes]
 */
#include "transport/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CTX 1
#define ROUNDS 20000
#define LANES 4

static const struct ft_transport_ops *ops = &ft_transport_tcp;
static size_t chunk = 128 * 1024;
static unsigned char *data;

struct side {
    struct ft_transport *t;
    struct ft_link *tx, *rx;
};

static void die(const char *what)
{
    fprintf(stderr, "link_bench: %s: %s\n", what, ft_fail_text());
    exit(1);
}

static void turn(struct side *s)
{
    struct ft_event ev[4];
    bool busy = false;
    const int n = ops->poll(s->t, ev, 4, &busy);
    for (int i = 0; i < n; i++) {
        if (ev[i].what == FT_EVENT_ACCEPTED)
            s->rx = ev[i].link;
        if (ev[i].what == FT_EVENT_DOWN && ev[i].link->reason != FT_LINK)
            die("link down");
    }
}

static void put(struct side *s, unsigned lane, size_t len, struct ft_send *req)
{
    const struct ft_header h = {.ctx = CTX, .len = (uint32_t)len, .lane = (uint16_t)lane};
    int status;
    while ((status = ops->send(s->tx, &h, data, req)) == FT_AGAIN)
        turn(s);
    if (status != FT_OK)
        die("send");
}

static void get(struct side *s, unsigned lane)
{
    struct ft_msg m;
    int status;
    while ((status = ops->recv(s->rx, CTX, lane, &m)) == FT_AGAIN)
        turn(s);
    if (status != FT_OK)
        die("recv");
    ops->release(s->rx, &m);
}

static void open_side(struct side *s, uint64_t self, int to, int from)
{
    struct ft_transport_config config = {
        .env = ft_env_real(), .self = self, .chunk_bytes = chunk, .rank = (int)self};
    unsigned char address[FT_ADDRESS_BYTES], peer[FT_ADDRESS_BYTES];

    if (ops->open(&config, &s->t) != FT_OK || ops->bind(s->t, CTX) != FT_OK)
        die("open");
    const int len = ops->address(s->t, address, sizeof(address));
    if (len < 0 || write(to, address, sizeof(address)) < 0 ||
        read(from, peer, sizeof(peer)) != sizeof(peer))
        die("address");
    if (ops->connect(s->t, 3 - self, peer, (size_t)len, &s->tx) != FT_OK)
        die("connect");
    while (s->rx == NULL || s->tx->state == FT_LINK_CONNECTING)
        turn(s);
    if (s->tx->state != FT_LINK_UP)
        die("connect");
}

static double seconds(uint64_t since_ns)
{
    return (double)(ft_now_ns(ft_env_real()) - since_ns) / 1e9;
}

static void bench_link(uint64_t self, int to, int from)
{
    struct side s = {0};
    struct ft_send req[LANES] = {0}, one = {0};
    const size_t chunks = ((size_t)2 << 30) / chunk;

    open_side(&s, self, to, from);
    uint64_t start = 0;
    for (int i = 0; i < ROUNDS + ROUNDS / 10; i++) {
        if (i == ROUNDS / 10)
            start = ft_now_ns(ft_env_real());
        if (self == 1)
            put(&s, 0, 8, &one);
        get(&s, 0);
        if (self == 2)
            put(&s, 0, 8, &one);
    }
    const double round_s = seconds(start) / ROUNDS;
    start = ft_now_ns(ft_env_real());
    for (size_t i = 0; i < chunks; i++) {
        const unsigned lane = (unsigned)(i % LANES);
        if (self == 2) {
            get(&s, lane);
            continue;
        }
        while (req[lane].status == FT_AGAIN)
            turn(&s);
        put(&s, lane, chunk, &req[lane]);
    }
    if (self == 2)
        put(&s, 0, 8, &one);
    else
        get(&s, 0);
    if (self == 1)
        printf("%-6s 8 B round trip %6.2f us   %zu KiB chunks %6.2f GB/s\n", ops->name,
               round_s * 1e6, chunk / 1024, (double)(chunks * chunk) / seconds(start) / 1e9);
    for (int i = 0; i < 1000; i++)
        turn(&s);
    ops->close(s.t);
}

static void move(int fd, bool out, size_t len)
{
    for (size_t done = 0; done < len;) {
        const ssize_t n = out ? send(fd, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(fd, data + done, len - done, MSG_DONTWAIT);
        if (n > 0)
            done += (size_t)n;
    }
}

static void bench_bare(bool first, int fd)
{
    const size_t chunks = ((size_t)2 << 30) / chunk;
    uint64_t start = 0;
    for (int i = 0; i < ROUNDS + ROUNDS / 10; i++) {
        if (i == ROUNDS / 10)
            start = ft_now_ns(ft_env_real());
        move(fd, first, 8);
        move(fd, !first, 8);
    }
    const double round_s = seconds(start) / ROUNDS;
    start = ft_now_ns(ft_env_real());
    for (size_t i = 0; i < chunks; i++)
        move(fd, first, chunk);
    move(fd, !first, 8);
    if (first)
        printf("%-6s 8 B round trip %6.2f us   %zu KiB chunks %6.2f GB/s\n", "bare", round_s * 1e6,
               chunk / 1024, (double)(chunks * chunk) / seconds(start) / 1e9);
}

int main(int argc, char **argv)
{
    const struct ft_transport_ops *list[8];
    struct ft_net_address own = {.family = AF_INET, .ip = {127, 0, 0, 1}, .up = true};
    int down[2], up[2], listener = -1;

    if (ft_transport_list(argc > 1 ? argv[1] : "tcp", list, 8) != FT_OK)
        die("usage: link_bench [transport] [chunk bytes]");
    ops = list[0];
    if (argc > 2)
        chunk = (size_t)atol(argv[2]);
    data = calloc(1, chunk > 8 ? chunk : 8);
    if (data == NULL || chunk == 0 || pipe(down) != 0 || pipe(up) != 0)
        die("set-up");
    if (ft_net_listen(&own, 1, AF_INET, 0, &listener) != FT_OK)
        die("listen");
    memset(data, 1, chunk);
    const pid_t child = fork();
    if (child == 0) {
        int fd = -1;
        if (ft_net_connect(&own, NULL, &fd) != FT_OK)
            die("connect");
        while (ft_net_connected(fd) != FT_OK)
            continue;
        bench_bare(false, fd);
        bench_link(2, up[1], down[0]);
        return 0;
    }
    int fd = -1;
    while (ft_net_accept(listener, &fd) == FT_AGAIN)
        continue;
    bench_bare(true, fd);
    bench_link(1, down[1], up[0]);
    waitpid(child, NULL, 0);
    return 0;
}
