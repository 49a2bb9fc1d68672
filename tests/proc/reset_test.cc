/*
 * Property: connections that are reset between live ranks fail no operation: 100 resets under load,
 * at any byte, give right results, and telemetry tells them. Method: three ranks in threads over
 * TCP reduce, broadcast, send and receive. Another thread resets a random TCP connection of this
 * process after another, in either direction, also while it is dialled. At the sender's end
 * connect() to no address does that. At the receiver's end it would drop what the kernel has
 * received; SOCK_DESTROY (ss -K) does not, but needs CAP_NET_ADMIN. FT_SEED repeats the choices.
 */
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>
#include <regex>
#include <thread>

#include "tests/common/sanitizer.h"
#include "tests/proc/proc.h"

namespace
{

const int kRanks = 3, kResets = is_sanitized() ? 30 : 100;

unsigned seed_of()
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? static_cast<unsigned>(atoi(given)) : std::random_device()();
    printf("FT_SEED=%u repeats this\n", seed);
    return seed;
}

/* By system calls: ThreadSanitizer need not know that this thread uses descriptors of others, as
 * the network does not tell it. */
bool end_of(int fd, bool peer, sockaddr_in6 *out)
{
    socklen_t len = sizeof *out;
    return syscall(peer ? SYS_getpeername : SYS_getsockname, fd, out, &len) == 0 &&
           (out->sin6_family == AF_INET || out->sin6_family == AF_INET6);
}

/* A rank listens at this port. sin6_port is where sin_port is. */
bool is_listened_at(in_port_t port)
{
    for (int fd = 0; fd < 256; fd++) {
        int listens = 0;
        socklen_t len = sizeof listens;
        sockaddr_in6 own;
        if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 &&
            listens && end_of(fd, false, &own) && own.sin6_port == port)
            return true;
    }
    return false;
}

void write_address(const sockaddr_in6 &a, void *to)
{
    if (a.sin6_family == AF_INET)
        memcpy(to, &reinterpret_cast<const sockaddr_in &>(a).sin_addr, 4);
    else
        memcpy(to, &a.sin6_addr, 16);
}

/* As ss -K does it. The cookie spares a listener at the same port, if the connection has ended. */
bool destroy(int victim, const sockaddr_in6 &own, const sockaddr_in6 &peer)
{
    struct {
        nlmsghdr head;
        inet_diag_req_v2 body;
    } ask = {};
    struct {
        nlmsghdr head;
        nlmsgerr body;
    } answer = {};
    ask.head.nlmsg_len = sizeof ask;
    ask.head.nlmsg_type = SOCK_DESTROY;
    ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
    ask.body.sdiag_family = static_cast<uint8_t>(own.sin6_family);
    ask.body.sdiag_protocol = IPPROTO_TCP;
    ask.body.idiag_states = ~0u;
    ask.body.id.idiag_sport = own.sin6_port;
    ask.body.id.idiag_dport = peer.sin6_port;
    write_address(own, ask.body.id.idiag_src);
    write_address(peer, ask.body.id.idiag_dst);
    socklen_t len = sizeof ask.body.id.idiag_cookie;
    if (syscall(SYS_getsockopt, victim, SOL_SOCKET, SO_COOKIE, ask.body.id.idiag_cookie, &len) != 0)
        return false;
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    const bool done = fd >= 0 && send(fd, &ask, sizeof ask, 0) == sizeof ask &&
                      recv(fd, &answer, sizeof answer, 0) > 0 &&
                      answer.head.nlmsg_type == NLMSG_ERROR && answer.body.error == 0;
    close(fd);
    return done;
}

/* Resets the descriptor if it is a connection to another rank. */
bool reset(int fd)
{
    const sockaddr nobody = {AF_UNSPEC, {0}};
    sockaddr_in6 own, peer;
    if (!end_of(fd, false, &own) || !end_of(fd, true, &peer))
        return false;
    return is_listened_at(peer.sin6_port) ? syscall(SYS_connect, fd, &nobody, sizeof nobody) == 0
                                          : destroy(fd, own, peer);
}

void reset_often(unsigned seed, const std::atomic<int> &rounds, std::atomic<int> &resets)
{
    std::mt19937 rng(seed);
    for (int seen = rounds; resets < kResets && seen >= 0; seen = rounds) {
        for (unsigned wait = rng() % 2000; wait > 0; wait--)
            std::this_thread::yield();
        int fd = static_cast<int>(rng() % 256), tried = 0;
        while (tried++ < 256 && !reset(fd))
            fd = (fd + 1) % 256;
        resets += tried <= 256;
        while (rounds == seen)
            std::this_thread::yield();
    }
}

struct Rank {
    const proc::World &world;
    int rank;
    std::vector<int> in, out;
    void done(ftcclResult_t called) const
    {
        ASSERT_OK(called);
        ASSERT_OK(proc::finish(world.stream[rank]));
    }
    void reduce(size_t n)
    {
        in.assign(n, rank + 1);
        out.assign(n, 0);
        done(ftcclAllReduce(in.data(), out.data(), n, ftcclInt, ftcclSum, world.comm[rank],
                            world.stream[rank]));
        std::fill(in.begin(), in.end(), -1); /* the user's again */
        ASSERT_EQ(std::count(out.begin(), out.end(), 6), static_cast<long>(n));
        done(ftcclAllReduce(out.data(), out.data(), n, ftcclInt, ftcclSum, world.comm[rank],
                            world.stream[rank]));
        ASSERT_EQ(std::count(out.begin(), out.end(), 18), static_cast<long>(n));
    }
    void broadcast(size_t n, int root)
    {
        out.assign(n, rank == root ? 7 : 0);
        done(ftcclBroadcast(out.data(), out.data(), n, ftcclInt, root, world.comm[rank],
                            world.stream[rank]));
        ASSERT_EQ(std::count(out.begin(), out.end(), 7), static_cast<long>(n));
        out.assign(n, -2);
    }
    void pass_on(size_t n)
    {
        in.assign(n, rank);
        out.assign(n, -1);
        const int before = (rank + kRanks - 1) % kRanks;
        ASSERT_OK(ftcclGroupStart());
        ASSERT_OK(ftcclSend(in.data(), n, ftcclInt, (rank + 1) % kRanks, world.comm[rank],
                            world.stream[rank]));
        ASSERT_OK(ftcclRecv(out.data(), n, ftcclInt, before, world.comm[rank], world.stream[rank]));
        done(ftcclGroupEnd());
        ASSERT_EQ(std::count(out.begin(), out.end(), before), static_cast<long>(n));
    }
};

/* Telemetry has them, soon. */
void expect_events()
{
    const std::string command = "./tools/ftccl-info --pid " + std::to_string(getpid());
    const std::string event = " connections? (to|from) it made again";
    std::string text;
    int status = 0;
    const double end = proc::now() + 10;
    do
        text = proc::output_of(command, &status);
    while (status == 0 && !std::regex_search(text, std::regex(event)) && proc::now() < end);
    EXPECT_EQ(status, 0) << text;
    EXPECT_TRUE(std::regex_search(text, std::regex(event))) << text;
}

TEST(Reset, NoOperationFails)
{
    const unsigned seed = seed_of();
    setenv("FTCCL_TRANSPORTS", "tcp", 1);
    proc::World world(kRanks);
    std::atomic<int> rounds{0}, resets{0};
    std::thread resetter([&] { reset_often(seed, rounds, resets); });
    double longest = 0;
    world.each([&](int rank) {
        Rank self{world, rank, {}, {}};
        std::mt19937 rng(seed);
        for (int go = 1; go && !testing::Test::HasFailure();) {
            const double begin = proc::now();
            const size_t n = 1 + rng() % (rng() % 2 ? 400000 : 2000);
            self.reduce(n);
            self.broadcast(n, static_cast<int>(rng() % kRanks));
            self.pass_on(n);
            go = rank == 0 && resets < kResets;
            self.done(
                ftcclBroadcast(&go, &go, 1, ftcclInt, 0, world.comm[rank], world.stream[rank]));
            if (rank == 0) {
                longest = std::max(longest, proc::now() - begin);
                rounds++;
            }
        }
    });
    const int last = rounds.exchange(-1);
    resetter.join();
    printf("%d resets in %d rounds; the longest round took %.1f ms\n", resets.load(), last,
           longest * 1000);
    EXPECT_EQ(resets, kResets);
    expect_events();
}

} // namespace
