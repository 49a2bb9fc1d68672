// What the tests of coordinators and their clients share: coordinators of this process, members
// with made-up endpoints, members made by hand, and a check that nothing is left behind.
#ifndef FT_MANAGED_HELPERS_H
#define FT_MANAGED_HELPERS_H

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/common/daemon_talk.h"

extern "C" {
#include "membership/coord.h"
}

namespace managed
{

using Number = std::pair<uint64_t, uint64_t>; // term and epoch of a view
using Key = std::vector<unsigned char>;

inline Key key_of(int seed = 1)
{
    return Key(FT_SECRET_BYTES, static_cast<unsigned char>(seed));
}

inline double now_s()
{
    return static_cast<double>(ft_now_ns(ft_env_real())) / 1e9;
}

inline int entries(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

// Waits for what happens in another thread. The bound is for a test that hangs only.
inline bool await(const std::function<bool()> &happened, double limit_s = 60)
{
    for (double end_s = now_s() + limit_s; now_s() < end_s;) {
        if (happened())
            return true;
        poll(nullptr, 0, 2);
    }
    return false;
}

inline ft_net_address address_of(const std::string &text)
{
    ft_net_address out[1] = {};
    EXPECT_EQ(1, ft_net_resolve(text.c_str(), out, 1)) << ft_fail_text();
    return out[0];
}

struct Coordinator {
    ft_coordinator *coordinator = nullptr;
    std::string at;

    explicit Coordinator(const std::string &listen = "127.0.0.1:0", const Key &key = key_of())
    {
        char text[FT_NET_TEXT_BYTES] = "";
        int status = ft_coordinator_start(listen.c_str(), key.data(), text, &coordinator);
        EXPECT_EQ(FT_OK, status) << ft_fail_text();
        at = text;
    }
    Coordinator(const Coordinator &) = delete;
    ~Coordinator()
    {
        stop();
    }
    void stop()
    {
        ft_coordinator_stop(coordinator);
        coordinator = nullptr;
    }
};

// An address where nobody listens, as long as this lives.
struct Nobody {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::string at;

    // deaf: the kernel takes connections, and nobody answers
    explicit Nobody(bool deaf = false)
    {
        sockaddr_in sa = {};
        socklen_t len = sizeof sa;
        sa.sin_family = AF_INET;
        sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(0, bind(fd, reinterpret_cast<sockaddr *>(&sa), sizeof sa));
        EXPECT_EQ(0, getsockname(fd, reinterpret_cast<sockaddr *>(&sa), &len));
        if (deaf) {
            EXPECT_EQ(0, listen(fd, 64));
        }
        at = "127.0.0.1:" + std::to_string(ntohs(sa.sin_port));
    }
    Nobody(const Nobody &) = delete;
    ~Nobody()
    {
        close(fd);
    }
};

inline ft_endpoint endpoint_of(uint64_t engine)
{
    ft_endpoint endpoint = {};
    endpoint.engine = engine;
    endpoint.host = 7;
    endpoint.config = 42;
    snprintf(endpoint.config_text, sizeof endpoint.config_text, "chunk=1");
    endpoint.address_bytes = static_cast<uint32_t>(engine * 37 % 1024);
    memset(endpoint.address, static_cast<int>(engine & 0xff), endpoint.address_bytes);
    return endpoint;
}

inline ft_role role_of(const std::string &replica, unsigned rank = 0, unsigned size = 1)
{
    ft_role role = {};
    snprintf(role.group, sizeof role.group, "job");
    snprintf(role.replica, sizeof role.replica, "%s", replica.c_str());
    role.local_rank = rank;
    role.local_size = size;
    return role;
}

struct Options {
    std::vector<std::string> at;
    ft_role role = role_of("a");
    uint64_t engine = 1;
    unsigned min_members = 1, window_ms = 60000, heartbeat_ms = 100, suspect_ms = 20000;
    Key key = key_of();
};

struct Ask {
    uint64_t step = 0;
    bool failed = false;
    std::vector<uint64_t> dead = {};
    double limit_s = 60;
    const atomic_int *cancel = nullptr;
};

struct Answer {
    int status = 1;
    std::string text;
    std::shared_ptr<ft_managed_view> view;

    Number number() const
    {
        return view ? Number(view->term, view->epoch) : Number(0, 0);
    }
    std::vector<uint64_t> engines() const
    {
        std::vector<uint64_t> out;
        for (int i = 0; view && i < view->nranks; i++)
            out.push_back(view->peer[i].engine);
        return out;
    }
};

class Member
{
  public:
    ft_client *client = nullptr;
    uint64_t engine;
    int bind_status = FT_OK;

    explicit Member(const Options &options) : engine(options.engine)
    {
        ft_endpoint endpoint = endpoint_of(engine);
        ft_client_config config = {};
        config.env = ft_env_real();
        for (const std::string &at : options.at)
            config.address[config.naddresses++] = address_of(at);
        memcpy(config.key, options.key.data(), FT_SECRET_BYTES);
        config.role = options.role;
        config.endpoint = &endpoint;
        config.min_members = options.min_members;
        config.window_ms = options.window_ms;
        config.heartbeat_ms = options.heartbeat_ms;
        config.suspect_ms = options.suspect_ms;
        config.broken = note_broken;
        config.arg = this;
        EXPECT_EQ(FT_OK, ft_client_open(&config, &client)) << ft_fail_text();
    }
    Member(const Member &) = delete;
    ~Member()
    {
        close(false);
    }
    void close(bool leave)
    {
        ft_client_close(client, leave);
        client = nullptr;
    }
    Answer accepted(double limit_s = 60, const atomic_int *cancel = nullptr)
    {
        Answer out;
        out.status = ft_client_accepted(client, static_cast<uint64_t>(limit_s * 1e9), cancel);
        out.text = out.status ? ft_fail_text() : "";
        return out;
    }
    Answer view(const Ask &ask = {})
    {
        Answer out;
        ft_managed_view *view = nullptr;
        ft_view_ask want = {};
        want.step = ask.step;
        want.failed = ask.failed;
        want.dead = ask.dead.data();
        want.ndead = static_cast<int>(ask.dead.size());
        want.timeout_ns = static_cast<uint64_t>(ask.limit_s * 1e9);
        want.cancel = ask.cancel;
        want.bind = note_bind;
        want.arg = this;
        out.status = ft_client_view(client, &want, &view);
        out.text = out.status ? ft_fail_text() : "";
        if (out.status == FT_OK)
            out.view.reset(view, ft_managed_view_free);
        return out;
    }
    std::string replica()
    {
        ft_role role;
        ft_client_role(client, &role);
        return role.replica;
    }
    std::vector<Number> binds() // the views that it listens for, in order
    {
        std::lock_guard<std::mutex> hold(lock);
        return bound;
    }
    std::vector<Number> broken()
    {
        std::lock_guard<std::mutex> hold(lock);
        return over;
    }

  private:
    std::mutex lock;
    std::vector<Number> bound, over;

    static int note_bind(void *arg, const ft_role *role, uint64_t term, uint64_t epoch)
    {
        Member *m = static_cast<Member *>(arg);
        std::lock_guard<std::mutex> hold(m->lock);
        EXPECT_NE('\0', role->replica[0]) << "nobody binds without a role";
        m->bound.emplace_back(term, epoch);
        return m->bind_status ? ft_fail(m->bind_status, "the test wants it so") : FT_OK;
    }
    static void note_broken(void *arg, uint64_t term, uint64_t epoch, const char *why)
    {
        Member *m = static_cast<Member *>(arg);
        std::lock_guard<std::mutex> hold(m->lock);
        EXPECT_NE('\0', why[0]);
        m->over.emplace_back(term, epoch);
    }
};

using Members = std::vector<std::unique_ptr<Member>>;

// Replicas of one rank, with engines from 1 on.
inline Members members_of(Options options, int n)
{
    Members all;
    for (int i = 0; i < n; i++) {
        options.engine = static_cast<uint64_t>(i) + 1;
        options.role = role_of("r" + std::to_string(100 + i));
        all.push_back(std::make_unique<Member>(options));
    }
    return all;
}

// All of them ask at once.
inline std::vector<Answer> views_of(const Members &members, const Ask &ask = {})
{
    std::vector<Answer> out(members.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members.size(); i++)
        if (members[i]->client)
            threads.emplace_back([&, i] { out[i] = members[i]->view(ask); });
    for (std::thread &thread : threads)
        thread.join();
    return out;
}

// They have one view, of so many ranks, and each is where it should be.
inline void expect_one_view(const Members &members, const std::vector<Answer> &answers, int nranks)
{
    const Answer *first = nullptr;
    for (size_t i = 0; i < answers.size(); i++) {
        const Answer &answer = answers[i];
        if (!members[i]->client)
            continue;
        ASSERT_EQ(FT_OK, answer.status) << "member " << i << ": " << answer.text;
        first = first ? first : &answer;
        EXPECT_EQ(first->number(), answer.number()) << "member " << i;
        EXPECT_EQ(first->engines(), answer.engines()) << "member " << i;
        ASSERT_EQ(nranks, answer.view->nranks) << "member " << i;
        EXPECT_EQ(members[i]->engine, answer.view->peer[answer.view->rank].engine);
        ft_endpoint sent = endpoint_of(members[i]->engine);
        EXPECT_EQ(0, memcmp(&sent, &answer.view->peer[answer.view->rank], sizeof sent));
    }
}

// A member that is made by hand.
class Hand : public talk::Talk
{
  public:
    // False: the coordinator refused the key, or ended the connection.
    bool connect_to(const std::string &at, const Key &key = key_of())
    {
        int socket = connect_only(at);
        start(socket, true, key.data());
        return await([&] { return is_open() || status != FT_AGAIN; }) && status == FT_OK;
    }
    static int connect_only(const std::string &at)
    {
        sockaddr_in sa = {};
        ft_net_address to = address_of(at);
        int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ft_net_to_sockaddr(&to, reinterpret_cast<sockaddr *>(&sa));
        EXPECT_EQ(0, connect(fd, reinterpret_cast<sockaddr *>(&sa), sizeof sa)) << strerror(errno);
        return fd;
    }
    static talk::Bytes join_of(const ft_role &role, uint64_t engine, unsigned slot = 0,
                               unsigned suspect_ms = 20000)
    {
        ft_endpoint endpoint = endpoint_of(engine);
        unsigned char wire[FT_ENDPOINT_WIRE_MAX];
        ft_members_join join = {};
        join.slot = slot;
        join.role = role;
        join.engine = engine;
        join.min_members = 1;
        join.window_ms = 60000;
        join.suspect_ms = suspect_ms;
        join.endpoint = wire;
        join.endpoint_bytes = ft_endpoint_encode(wire, &endpoint);
        talk::Bytes out(ft_members_join_encode(nullptr, &join));
        ft_members_join_encode(out.data(), &join);
        return out;
    }
    static talk::Bytes ask_of(const Number &last, unsigned slot = 0)
    {
        ft_members_ask ask = {};
        ask.slot = slot;
        ask.term = last.first;
        ask.epoch = last.second;
        talk::Bytes out(ft_members_ask_encode(nullptr, &ask));
        ft_members_ask_encode(out.data(), &ask);
        return out;
    }
    bool tell(unsigned type, const talk::Bytes &bytes = {}) const
    {
        return say(type, bytes, FT_MEMBERS_SERVICE);
    }
    // The next message of that type; false: it was refused, or the connection has ended, or nothing
    // comes.
    bool hear_type(unsigned type, talk::Message &out)
    {
        bool heard = false;
        await([&] {
            heard = hear(out);
            return (heard && (out.type == type || out.type == FT_MEMBERS_REFUSED)) ||
                   (!heard && (ended || fd < 0));
        });
        return heard && out.type == type;
    }
    bool await_end()
    {
        talk::Message message;
        return await([&] {
            while (hear(message))
                ;
            return ended || status < FT_AGAIN || !is_alive();
        });
    }
    // Joins, and returns the number of the last view.
    Number join(const ft_role &role, uint64_t engine, unsigned suspect_ms = 20000)
    {
        talk::Message message;
        EXPECT_TRUE(tell(FT_MEMBERS_JOIN, join_of(role, engine, 0, suspect_ms)));
        if (!hear_type(FT_MEMBERS_JOINED, message) || message.bytes.size() < 20)
            return Number(0, 0);
        const unsigned char *at = message.bytes.data() + 4;
        uint64_t term = get64(&at);
        return Number(term, get64(&at));
    }

  private:
    bool is_alive() const
    {
        char byte;
        ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    }
};

// A test that leaves no descriptor and no thread behind.
class Clean : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        // sanitizers keep a thread from the first one on
        std::string first;
        std::thread([&] { first = "/proc/self/task/" + std::to_string(gettid()); }).join();
        // the kernel may show a thread for a moment after it was joined
        EXPECT_TRUE(await([&] { return access(first.c_str(), F_OK) != 0; }));
        descriptors_before = entries("/proc/self/fd");
        threads_before = entries("/proc/self/task");
    }
    void TearDown() override
    {
        EXPECT_EQ(descriptors_before, entries("/proc/self/fd"));
        EXPECT_TRUE(await([&] { return entries("/proc/self/task") == threads_before; }, 10))
            << threads_before << " threads before, " << entries("/proc/self/task") << " after";
        EXPECT_EQ(0, ft_fd_count());
    }

  private:
    int descriptors_before = 0, threads_before = 0;
};

} // namespace managed

#endif
