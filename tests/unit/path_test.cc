/*
 * Property: ports are grouped by what their routers said, and by nothing else; messages of the
 * error queue that are about others, truncated or malformed say nothing; taken ports are passed
 * over; a lack of descriptors is survived or told; tables have an age; a finder probes what is
 * asked for, once. Method: made-up traces and messages; probes to this machine.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "tests/unit/path_config.h"

extern "C" {
#include "path/probe.h"
}

namespace
{

ft_path_trace trace(uint16_t port, const std::vector<int> &hops)
{
    ft_path_trace t = {};
    t.port = port;
    for (size_t i = 0; i < hops.size(); i++) {
        t.hop[i].known = hops[i] > 0;
        t.hop[i].ip[3] = (unsigned char)hops[i];
        t.hop[i].rtt_ns = 100u + port;
    }
    return t;
}

TEST(Classes, AreTheFingerprints)
{
    std::vector<ft_path_trace> traces = {trace(5, {1, 9, 4}), trace(6, {1, 2, 4}),
                                         trace(7, {1, 9, 4}), trace(8, {1, 0, 4}),
                                         trace(9, {1, 2, 4, 7})};
    ft_path_table t = {};
    t.nhops = 3;
    ASSERT_EQ(ft_path_classify(&t, traces.data(), 5), FT_OK);
    EXPECT_EQ(t.nclasses, 2);
    EXPECT_EQ(t.nunknown, 1);
    const int16_t want[] = {1, 0, 1, FT_PATH_UNKNOWN, 0};
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(t.ports[i].source_port, 5 + i);
        EXPECT_EQ(t.ports[i].class_index, want[i]) << i;
    }
    EXPECT_EQ(t.classes[0].nports, 2);
    EXPECT_EQ(t.classes[1].hop[1].ip[3], 9);
    EXPECT_EQ(t.classes[1].hop[1].rtt_ns, 105u);
    free(t.ports);
    free(t.classes);
}

TEST(Classes, AreNoneWithoutADistance)
{
    std::vector<ft_path_trace> traces = {trace(5, {1, 9}), trace(6, {1, 9})};
    ft_path_table t = {};
    t.nhops = -1;
    ASSERT_EQ(ft_path_classify(&t, traces.data(), 2), FT_OK);
    EXPECT_EQ(t.nclasses, 0);
    EXPECT_EQ(t.nunknown, 2);
    free(t.ports);
    free(t.classes);
}

/* A message of the error queue: of router 10.0.0.7 about a packet to 10.1.0.2:5201. */
struct Message {
    struct Error {
        sock_extended_err err;
        sockaddr_in from;
    } error = {};
    sockaddr_in name = {};
    ft_net_address to = {};
    int type = IP_RECVERR, flags = 0;
    size_t cut = 0, longer = 0; /* bytes */
    unsigned char by[16] = {};

    Message()
    {
        error.err.ee_origin = SO_EE_ORIGIN_ICMP;
        error.err.ee_type = 11;
        error.from.sin_family = name.sin_family = AF_INET;
        inet_pton(AF_INET, "10.0.0.7", &error.from.sin_addr);
        inet_pton(AF_INET, "10.1.0.2", &name.sin_addr);
        inet_pton(AF_INET, "10.1.0.2", to.ip);
        name.sin_port = htons(5201);
        to.port = 5201;
        to.family = AF_INET;
    }
    ft_path_answer answer()
    {
        alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(Error))] = {};
        msghdr msg = {};
        msg.msg_name = &name;
        msg.msg_namelen = sizeof(name);
        msg.msg_control = control;
        msg.msg_controllen = sizeof(control);
        msg.msg_flags = flags;
        cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = IPPROTO_IP;
        c->cmsg_type = type;
        c->cmsg_len = CMSG_LEN(sizeof(Error) - cut) + longer;
        memcpy(CMSG_DATA(c), &error, sizeof(error));
        return ft_path_read_answer(&msg, &to, by);
    }
};

TEST(Answers, AreThoseAboutThePacket)
{
    Message m;
    EXPECT_EQ(m.answer(), FT_PATH_ROUTER);
    EXPECT_EQ(m.by[3], 7);
    m.error.err.ee_type = 3;
    EXPECT_EQ(m.answer(), FT_PATH_REFUSAL);
}

TEST(Answers, OfOtherConnectionsAndKindsSayNothing)
{
    const std::vector<std::function<void(Message &)>> changes = {
        [](Message &m) { m.name.sin_port = 1; },
        [](Message &m) { m.name.sin_addr.s_addr++; },
        [](Message &m) { m.name.sin_family = AF_INET6; },
        [](Message &m) { m.error.err.ee_origin = SO_EE_ORIGIN_LOCAL; },
        [](Message &m) { m.error.err.ee_origin = SO_EE_ORIGIN_ICMP6; },
        [](Message &m) { m.error.err.ee_code = 1; }, /* of reassembly */
        [](Message &m) { m.error.err.ee_type = 12; },
        [](Message &m) { m.error.from.sin_family = AF_UNSPEC; },
        [](Message &m) { m.type = IP_TTL; },
        [](Message &m) { m.flags = MSG_CTRUNC; },
        [](Message &m) { m.cut = 1; },
        [](Message &m) { m.cut = sizeof(Message::Error); },
        [](Message &m) { m.cut = sizeof(Message::Error) + 1; },
        [](Message &m) { m.longer = 100; },
        [](Message &m) { m.to.family = AF_INET6; },
    };
    for (size_t i = 0; i < changes.size(); i++) {
        Message m;
        changes[i](m);
        EXPECT_EQ(m.answer(), FT_PATH_NOTHING) << "change " << i;
    }
}

class Probing : public testing::Test
{
  protected:
    ft_path_config config = path_to_this_machine();
    ft_path_table *table = nullptr;

    void TearDown() override
    {
        ft_path_table_free(table);
    }
    std::vector<uint16_t> probe()
    {
        ft_path_table_free(table);
        table = nullptr;
        EXPECT_EQ(ft_path_probe(&config, &table), FT_OK) << ft_fail_text();
        std::vector<uint16_t> ports;
        for (int i = 0; table && i < table->nports; i++)
            ports.push_back(table->ports[i].source_port);
        return ports;
    }
};

TEST_F(Probing, PassesOverTakenPorts)
{
    std::vector<uint16_t> before = probe();
    ASSERT_EQ(before.size(), 3u);
    EXPECT_EQ(table->nhops, 0);
    EXPECT_EQ(table->nclasses, 1);
    sockaddr_in sa = {};
    sa.sin_family = AF_INET;
    sa.sin_port = htons(before[0]);
    int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(other, reinterpret_cast<sockaddr *>(&sa), sizeof(sa)), 0) << strerror(errno);
    std::vector<uint16_t> after = probe(); /* only the first one is asked: no hops are between */
    close(other);
    ASSERT_EQ(after.size(), 3u);
    EXPECT_GE(table->ntaken, 1);
    EXPECT_EQ(std::set<uint16_t>(after.begin(), after.end()).size(), 3u);
    EXPECT_EQ(std::count(after.begin(), after.end(), before[0]), 0);
}

TEST_F(Probing, BeginsElsewhereInEachProcess)
{
    const int processes = 5;
    int out[2];
    ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            uint16_t port = probe().front();
            _exit(write(out[1], &port, sizeof(port)) != sizeof(port));
        }
        int status;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0);
    }
    uint16_t first[processes];
    ASSERT_EQ(read(out[0], first, sizeof(first)), ssize_t(sizeof(first)));
    close(out[0]);
    close(out[1]);
    /* numbers of processes that are far apart may meet again */
    EXPECT_GE(std::set<uint16_t>(first, first + processes).size(), size_t(processes - 1));
    for (uint16_t port : first)
        EXPECT_GE(port, FT_PATH_FIRST);
}

TEST_F(Probing, EndsByItsDescriptorAlone)
{
    ft_prober *p = nullptr;
    ASSERT_EQ(ft_prober_open(&config, &p), FT_OK);
    int status;
    while ((status = ft_prober_turn(p)) == FT_AGAIN) {
        pollfd wait = {ft_prober_fd(p), POLLIN, 0};
        ASSERT_EQ(poll(&wait, 1, 2000), 1) << "nothing wakes the owner";
    }
    EXPECT_EQ(status, FT_OK);
    EXPECT_EQ(ft_prober_turn(p), FT_OK) << "it stays over";
    table = ft_prober_take(p);
    EXPECT_TRUE(table);
    EXPECT_FALSE(ft_prober_take(p));
    ft_prober_close(p);
}

TEST_F(Probing, RefusesWhatMakesNoSense)
{
    ft_path_config good = config;
    config.to.port = 0;
    EXPECT_EQ(ft_path_probe(&config, &table), FT_INVAL);
    config = good;
    config.from.family = AF_INET6;
    EXPECT_EQ(ft_path_probe(&config, &table), FT_INVAL);
    config = good;
    config.to.family = AF_UNIX;
    EXPECT_EQ(ft_path_probe(&config, &table), FT_INVAL);
    config = good;
    config.nports = 0;
    EXPECT_EQ(ft_path_probe(&config, &table), FT_INVAL);
    config.nports = FT_PATH_PORTS + 1;
    EXPECT_EQ(ft_path_probe(&config, &table), FT_INVAL);
}

TEST_F(Probing, TellsThatNoDescriptorIsFree)
{
    const int before = ft_fd_count();
    rlimit old;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0);
    close(next);
    for (int more = 0; more < 3; more++) {
        rlimit few = {rlim_t(next + more), old.rlim_max};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        int status = ft_path_probe(&config, &table);
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        EXPECT_EQ(status, FT_NOFILE) << more;
        EXPECT_EQ(ft_fd_count(), before);
    }
}

uint64_t fake_now;
TEST(Cache, KeepsTablesForTheirAge)
{
    ft_env env = {[](ft_env *) { return fake_now; }, nullptr, nullptr};
    ft_path_cache *cache = ft_path_cache_open(&env, 2, 10);
    ASSERT_TRUE(cache);
    const auto put = [&](unsigned char host, uint16_t port) {
        ft_path_table *t = static_cast<ft_path_table *>(calloc(1, sizeof(*t)));
        t->from.family = t->to.family = AF_INET;
        t->to.ip[3] = host;
        t->to.port = port;
        t->probed_ns = fake_now;
        ft_path_cache_put(cache, t);
    };
    const auto has = [&](unsigned char host, uint16_t port, int from_family = AF_INET) {
        ft_net_address from = {}, to = {};
        from.family = from_family;
        to.family = AF_INET;
        to.ip[3] = host;
        to.port = port;
        return ft_path_cache_find(cache, &from, &to) != nullptr;
    };
    fake_now = 100;
    put(1, 7);
    fake_now = 105;
    put(1, 8);
    EXPECT_TRUE(has(1, 7) && has(1, 8));
    EXPECT_FALSE(has(1, 9) || has(2, 7));
    EXPECT_TRUE(has(1, 7, 0)) << "from any address";
    EXPECT_FALSE(has(1, 7, AF_INET6));
    put(2, 7);
    EXPECT_FALSE(has(1, 7)) << "the oldest makes room";
    EXPECT_TRUE(has(1, 8) && has(2, 7));
    fake_now = 115;
    EXPECT_TRUE(has(1, 8));
    fake_now = 116;
    EXPECT_FALSE(has(1, 8)) << "it is too old";
    put(2, 7);
    put(2, 8);
    ft_net_address from = {}, to = {};
    from.family = to.family = AF_INET;
    to.ip[3] = 2;
    ft_path_cache_forget(cache, &from, &to);
    EXPECT_FALSE(has(2, 7) || has(2, 8));
    ft_path_cache_close(cache);
}

/* A clock that can be set forward. */
uint64_t skipped_ns;
uint64_t skipping_now(ft_env *)
{
    return ft_now_ns(ft_env_real()) + skipped_ns;
}

class Finder : public Probing
{
  protected:
    static constexpr uint64_t kSecond = 1000000000;
    ft_env env = {skipping_now, nullptr, nullptr};
    int descriptors = ft_fd_count();
    ft_path_finder *finder = nullptr;
    ft_port_finder *ports = nullptr;
    ft_ports found = {};

    void SetUp() override
    {
        Probing::SetUp();
        config.from = config.to;
        finder = ft_path_finder_open(&env, -1, nullptr);
        ports = ft_path_finder_ports(finder);
        ASSERT_TRUE(ports);
    }
    void TearDown() override
    {
        ft_path_finder_close(finder);
        EXPECT_EQ(ft_fd_count(), descriptors);
        skipped_ns = 0;
        Probing::TearDown();
    }
    int find()
    {
        return ports->find(ports, &config.from, &config.to, &found);
    }
    int find_out()
    {
        int status;
        const uint64_t end = ft_now_ns(ft_env_real()) + 10 * kSecond;
        while ((status = find()) == FT_AGAIN && ft_now_ns(ft_env_real()) < end) {}
        return status;
    }
};

TEST_F(Finder, ProbesAPairOnce)
{
    EXPECT_EQ(find(), FT_AGAIN);
    ASSERT_EQ(find_out(), FT_OK) << ft_fail_text();
    EXPECT_EQ(found.nclasses, 1) << "nothing is between";
    EXPECT_GT(found.nports, 0);
    EXPECT_EQ(find(), FT_OK);
    skipped_ns = 600 * kSecond;
    EXPECT_EQ(find(), FT_OK) << "it is remembered for long";
    EXPECT_EQ(ft_fd_count(), descriptors);
    skipped_ns = 2 * 3600 * kSecond;
    EXPECT_EQ(find(), FT_AGAIN) << "but not for ever";
    config.to.port = 10;
    EXPECT_EQ(find(), FT_AGAIN) << "of another port nothing is known";
    EXPECT_EQ(find_out(), FT_OK);
}

TEST_F(Finder, ForgetsWhatIsNotNew)
{
    EXPECT_FALSE(ports->forget(ports, &config.from, &config.to)) << "there is nothing";
    ASSERT_EQ(find_out(), FT_OK);
    EXPECT_FALSE(ports->forget(ports, &config.from, &config.to));
    EXPECT_EQ(find(), FT_OK);
    skipped_ns = 11 * kSecond;
    EXPECT_TRUE(ports->forget(ports, &config.from, &config.to));
    EXPECT_EQ(find(), FT_AGAIN);
}

/* What cannot be probed is told with a reason, and not tried again at once. */
TEST_F(Finder, RemembersFailures)
{
    config.from.ip[0] = 192; /* no address of this machine */
    EXPECT_EQ(find_out(), FT_NOTSUP);
    EXPECT_NE(strstr(ft_fail_text(), "127.0.0.1"), nullptr) << ft_fail_text();
    EXPECT_EQ(find(), FT_NOTSUP);
    skipped_ns = 61 * kSecond;
    EXPECT_EQ(find(), FT_AGAIN);
}

TEST_F(Finder, StopsWhenNobodyWaits)
{
    EXPECT_EQ(find(), FT_AGAIN);
    EXPECT_GT(ft_fd_count(), descriptors);
    ports->stop(ports);
    EXPECT_EQ(ft_fd_count(), descriptors);
    ports->stop(ports);
    EXPECT_EQ(find_out(), FT_OK);
}

TEST_F(Finder, TellsThatNoDescriptorIsFree)
{
    rlimit old;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    const int next = dup(0);
    close(next);
    rlimit few = {rlim_t(next), old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const int status = find();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    EXPECT_EQ(status, FT_NOTSUP);
    EXPECT_EQ(find(), FT_NOTSUP) << "a minute passes before the next try";
}

} // namespace
