/*
 * Members of managed groups for tests of daemons: threads of this process, and processes that can
 * be stopped and killed. They have clients as ranks have them; only their endpoints are made up.
 * For one file of a program, after daemons.h.
 */
#ifndef FT_TESTS_PROC_MEMBERS_H
#define FT_TESTS_PROC_MEMBERS_H

#include <future>
#include <iostream>
#include <random>
#include <sstream>

#include "tests/common/daemon_talk.h"
#include "tests/proc/daemons.h"

extern "C" {
#include "membership/managed.h"
}

namespace
{

const char *const kSecret = "the key of members in a test\n";
constexpr uint64_t kSecond = 1000000000;
// Nobody is silent for so long, also on a slow machine; and for tests of who is silent.
constexpr uint32_t kPatientMs = 20000, kQuickMs = 1500;

struct Key {
    unsigned char bytes[FT_SECRET_BYTES];
    explicit Key(const std::string &secret = kSecret)
    {
        Folder folder;
        unsigned char raw[FT_SECRET_BYTES];
        EXPECT_EQ(ft_secret_of_file("key", folder.file("key", secret).c_str(), raw), FT_OK);
        ft_auth_derive(bytes, raw, "daemons", 0);
    }
};

ft_role role_of(const std::string &group, const std::string &replica, uint32_t rank, uint32_t size)
{
    ft_role role = {};
    snprintf(role.group, sizeof role.group, "%s", group.c_str());
    snprintf(role.replica, sizeof role.replica, "%s", replica.c_str());
    role.local_rank = rank;
    role.local_size = size;
    return role;
}

ft_endpoint some_endpoint()
{
    static std::random_device chance;
    ft_endpoint endpoint = {};
    endpoint.engine = (static_cast<uint64_t>(chance()) << 32 | chance()) | 1;
    endpoint.host = 7;
    endpoint.config = 1;
    snprintf(endpoint.config_text, sizeof endpoint.config_text, "as all");
    endpoint.address_bytes = 40;
    return endpoint;
}

// What a member got when it asked for a view.
struct View {
    int status = FT_AGAIN;
    std::string why;
    uint64_t term = 0, epoch = 0, step = 0;
    bool same = false, behind = false;
    int nranks = 0, rank = -1, local_size = 0;
    bool operator==(const View &o) const
    {
        return status == o.status && term == o.term && epoch == o.epoch && nranks == o.nranks &&
               rank == o.rank;
    }
};
std::ostream &operator<<(std::ostream &out, const View &v)
{
    return out << v.status << " " << v.term << " " << v.epoch << " " << v.step << " " << v.nranks
               << " " << v.rank << " " << v.why;
}

struct Options {
    uint32_t min_members = 1, window_ms = 60000, suspect_ms = kPatientMs;
    std::string secret = kSecret;
};

Options quick()
{
    Options options;
    options.suspect_ms = kQuickMs;
    return options;
}

class Member
{
  public:
    ft_endpoint endpoint = some_endpoint();

    // addresses: HOST:PORT[,..]
    Member(const std::string &addresses, const ft_role &role, const Options &options = {})
    {
        const Key key(options.secret);
        ft_client_config config = {};
        config.env = ft_env_real();
        std::stringstream list(addresses);
        for (std::string one; std::getline(list, one, ',');)
            EXPECT_EQ(ft_net_resolve(one.c_str(), &config.address[config.naddresses++], 1), 1);
        memcpy(config.key, key.bytes, sizeof config.key);
        config.role = role;
        config.endpoint = &endpoint;
        config.min_members = options.min_members;
        config.window_ms = options.window_ms;
        config.heartbeat_ms = 100;
        config.suspect_ms = options.suspect_ms;
        config.broken = on_broken;
        config.arg = this;
        EXPECT_EQ(ft_client_open(&config, &client_), FT_OK) << ft_fail_text();
    }
    Member(const Member &) = delete;
    ~Member()
    {
        close(false);
    }
    void close(bool leave)
    {
        ft_client_close(client_, leave);
        client_ = nullptr;
    }
    // FT_OK, or a status; why() says more.
    int accepted(double seconds = 30)
    {
        const int status = ft_client_accepted(client_, to_ns(seconds), nullptr);
        why_ = status == FT_OK ? "" : ft_fail_text();
        return status;
    }
    std::string why() const
    {
        return why_;
    }
    ft_role role() const
    {
        ft_role role;
        ft_client_role(client_, &role);
        return role;
    }
    View view(uint64_t step, double seconds = 30, bool failed = false)
    {
        ft_view_ask ask = {};
        ask.step = step;
        ask.failed = failed;
        ask.timeout_ns = to_ns(seconds);
        ft_managed_view *got = nullptr;
        View view;
        view.status = ft_client_view(client_, &ask, &got);
        if (view.status != FT_OK) {
            view.why = ft_fail_text();
            return view;
        }
        view.term = got->term;
        view.epoch = got->epoch;
        view.step = got->step;
        view.same = got->same;
        view.behind = got->behind;
        view.nranks = got->nranks;
        view.rank = got->rank;
        view.local_size = got->local_size;
        EXPECT_EQ(got->peer[got->rank].engine, endpoint.engine);
        ft_managed_view_free(got);
        return view;
    }
    std::future<View> ask(uint64_t step, double seconds = 30, bool failed = false)
    {
        return std::async(std::launch::async, [=] { return view(step, seconds, failed); });
    }
    // The sentences with which views ended.
    std::vector<std::string> broken()
    {
        std::lock_guard<std::mutex> hold(mutex_);
        return broken_;
    }

  private:
    ft_client *client_ = nullptr;
    std::string why_;
    std::mutex mutex_;
    std::vector<std::string> broken_;

    static uint64_t to_ns(double seconds)
    {
        return static_cast<uint64_t>(seconds * static_cast<double>(kSecond));
    }
    static void on_broken(void *arg, uint64_t, uint64_t, const char *why)
    {
        auto *self = static_cast<Member *>(arg);
        std::lock_guard<std::mutex> hold(self->mutex_);
        self->broken_.push_back(why);
    }
};

// A member in a process: ADDRESSES GROUP REPLICA RANK SIZE [quick]. It says "accepted" or why not.
// For each line with a step it asks for a view, and says what came; "leave": it leaves.
CHILD(member)
{
    Member member(arguments[0],
                  role_of(arguments[1], arguments[2],
                          static_cast<uint32_t>(std::stoul(arguments[3])),
                          static_cast<uint32_t>(std::stoul(arguments[4]))),
                  arguments.size() > 5 ? quick() : Options());
    std::cout << (member.accepted() == FT_OK ? "accepted" : member.why()) << std::endl;
    for (std::string line; std::getline(std::cin, line) && line != "leave";)
        std::cout << member.view(std::stoul(line), 120) << std::endl;
    member.close(true);
    return 0;
}

using Members = std::vector<std::unique_ptr<Member>>;

// Replicas "0", "1" .. of so many ranks. All are accepted.
Members replicas(const std::string &addresses, int n, uint32_t size = 1,
                 const Options &options = {}, const std::string &group = "job")
{
    Members all;
    for (int i = 0; i < n; i++)
        for (uint32_t rank = 0; rank < size; rank++)
            all.push_back(std::make_unique<Member>(
                addresses, role_of(group, std::to_string(i), rank, size), options));
    for (auto &member : all)
        EXPECT_EQ(member->accepted(), FT_OK) << member->why();
    return all;
}

// All ask, and get what they get.
std::vector<View> views(const Members &members, uint64_t step, bool failed = false)
{
    std::vector<std::future<View>> asked;
    std::vector<View> got;
    for (auto &member : members)
        asked.push_back(member->ask(step, 60, failed));
    for (auto &each : asked)
        got.push_back(each.get());
    return got;
}

// They are one view of so many replicas.
void expect_one_view(const std::vector<View> &got, int nreplicas)
{
    for (const View &view : got) {
        EXPECT_EQ(view.status, FT_OK) << view.why;
        EXPECT_EQ(view.nranks, nreplicas) << view;
        EXPECT_EQ(view.term, got[0].term);
        EXPECT_EQ(view.epoch, got[0].epoch);
    }
}

// A connection to a daemon, made by hand.
struct Stranger : talk::Talk {
    explicit Stranger(const std::string &address, const std::string &secret = kSecret)
    {
        start(dial(address), true, Key(secret).bytes);
        for (double end = proc::now() + 20; !is_open() && status == FT_AGAIN && proc::now() < end;)
            usleep(1000);
    }
    void tell(unsigned type, const talk::Bytes &bytes) const
    {
        say(type, bytes, FT_MEMBERS_SERVICE);
    }
    bool is_closed()
    {
        talk::Message ignored;
        for (double end = proc::now() + 20; proc::now() < end; usleep(1000)) {
            while (hear(ignored)) {}
            if (ended || status < 0)
                return true;
        }
        return false;
    }
    // The next message of that type. False: none came.
    bool next(unsigned type, talk::Message &out)
    {
        for (double end = proc::now() + 20; proc::now() < end; usleep(1000))
            while (hear(out))
                if (out.type == type)
                    return true;
        return false;
    }
};

[[maybe_unused]] talk::Bytes join_of(const ft_role &role, uint32_t slot,
                                     const ft_endpoint &endpoint, const Options &options = {})
{
    unsigned char encoded[FT_ENDPOINT_WIRE_MAX];
    ft_members_join join = {};
    join.slot = slot;
    join.role = role;
    join.engine = endpoint.engine;
    join.min_members = options.min_members;
    join.window_ms = options.window_ms;
    join.suspect_ms = options.suspect_ms;
    join.endpoint = encoded;
    join.endpoint_bytes = ft_endpoint_encode(encoded, &endpoint);
    talk::Bytes out(ft_members_join_encode(nullptr, &join));
    ft_members_join_encode(out.data(), &join);
    return out;
}

// Stops the daemon for longer than it has patience with two members, which go on saying that they
// live. It does not take them for silent. They are made by hand, because clients would leave it.
[[maybe_unused]] void expect_a_stop_costs_no_member(const Daemon &daemon)
{
    Stranger one(daemon.address), two(daemon.address);
    talk::Message message;
    for (Stranger *each : {&one, &two}) {
        each->tell(FT_MEMBERS_JOIN, join_of(role_of("stop", each == &one ? "0" : "1", 0, 1), 0,
                                            some_endpoint(), quick()));
        EXPECT_TRUE(each->next(FT_MEMBERS_JOINED, message));
    }
    for (int i = 0; i < 2; i++) {
        daemon.child->signal(SIGSTOP);
        usleep(100000); // so its clock is due before anything that it could read
        for (double end = proc::now() + 1.5e-3 * kQuickMs; proc::now() < end; usleep(20000))
            for (const Stranger *each : {&one, &two})
                each->tell(FT_MEMBERS_BEAT, {});
        daemon.child->signal(SIGCONT);
        for (Stranger *each : {&one, &two}) {
            EXPECT_TRUE(each->next(FT_MEMBERS_ALIVE, message)) << "it took a member for silent";
            each->tell(FT_MEMBERS_BEAT, {});
        }
    }
}

} // namespace

#endif
