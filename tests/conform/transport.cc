// What the conformance programs of transports share, and the table of backends.
#include "tests/conform/transport.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

const Backend backends[] = {
    {"inproc", &ft_transport_inproc, false, "", false},
    {"shm", &ft_transport_shm, true, "", false},
    {"tcp", &ft_transport_tcp, true, "OtherChunksAreRefused OutOfDescriptors", false},
#ifdef FT_HAVE_VERBS
    // As for ofi below; its memory is the host's.
    {"verbs", &ft_transport_verbs, true, "OutOfDescriptors MemoryGoesBack WhatIsInUseStays", false},
#endif
#ifdef FT_HAVE_LIBFABRIC
    // OutOfDescriptors: its side connections are tcp's. Slots are registered: they are not pages
    // that go back, and not memory of the GPU's.
    {"ofi", &ft_transport_ofi, true,
     "OutOfDescriptors MemoryGoesBack WhatIsInUseStays AMessageIsReadWhereItWasWritten", false},
#endif
    // The slots of a plugin are registered, so their pages stay. What a plugin does without
    // descriptors, and whether its memory is a device's, is its own affair.
    {"net", &ft_transport_net, true,
     "MemoryGoesBack WhatIsInUseStays OutOfDescriptors AMessageIsReadWhereItWasWritten", true},
};

// Whether the transport can be used here: without RDMA devices its row is left out.
static bool is_usable(const Backend &backend)
{
    ft_transport_config config = {};
    config.env = ft_env_real();
    config.self = 1;
    config.chunk_bytes = 4096;
    ft_transport *t = nullptr;
    if (backend.ops->open(&config, &t) == FT_NOTSUP)
        return false;
    if (t)
        backend.ops->close(t);
    return true;
}

// Over RDMA, engines with an odd number and the others use different ports, at the two ends of a
// cable: FT_CONFORM_PORTS="=rxe0,rxe2 =rxe1,rxe3".
static void choose_ports(const Backend &backend, uint64_t id)
{
    const char *text = getenv("FT_CONFORM_PORTS");
    if (!text || strcmp(backend.name, "verbs") != 0)
        return;
    std::string ports(text);
    size_t space = ports.find(' ');
    setenv("FTCCL_IB_HCA", (id % 2 ? ports.substr(space + 1) : ports.substr(0, space)).c_str(), 1);
    ft_params_reload();
}

// Transport net needs a plugin: FTCCL_TEST_NET_PLUGIN, or the one of the tests.
static void choose_plugin()
{
    const char *path = getenv("FTCCL_TEST_NET_PLUGIN");
    setenv("FTCCL_NET_PLUGIN", path ? path : FT_TEST_PLUGIN, 0);
}

// With FTCCL_FAULT set, each decorated by the fault transport.
std::vector<Backend> all_backends()
{
    choose_plugin();
    std::vector<Backend> all(std::begin(backends), std::end(backends));
    all.erase(std::remove_if(all.begin(), all.end(), [](auto &b) { return !is_usable(b); }),
              all.end());
    for (Backend &b : all)
        if (*ft_param_str(FT_PARAM_FAULT) && ft_transport_faulty(b.ops, &b.ops) != FT_OK)
            abort();
    return all;
}
std::string backend_name(const testing::TestParamInfo<Backend> &info)
{
    return info.param.name;
}
void PrintTo(const Backend &b, std::ostream *out)
{
    *out << b.name;
}

uint64_t now_ms()
{
    using namespace std::chrono;
    return (uint64_t)duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

Engine::Engine(const Backend &backend, uint64_t self, size_t chunk_bytes, unsigned char key,
               ft_pinned *pinned, size_t first_bytes)
    : ops(backend.ops), id(self), looks(backend.looks)
{
    ft_transport_config config;
    memset(&config, 0, sizeof config);
    config.env = ft_env_real();
    config.self = self;
    memset(config.key, key, sizeof config.key);
    config.chunk_bytes = chunk_bytes;
    config.rank = -1;
    config.pinned = pinned;
    config.first_bytes = first_bytes;
    choose_ports(backend, self);
    int rc = ops->open(&config, &t);
    if (rc)
        t = nullptr;
    EXPECT_EQ(rc, FT_OK) << ft_fail_text();
}

void Engine::close()
{
    if (t)
        ops->close(t);
    t = nullptr;
    accepts.clear();
}

bool Engine::poll()
{
    ft_event got[4];
    bool busy = false;
    if (!t)
        return false;
    int n = ops->poll(t, got, 4, &busy);
    for (int i = 0; i < n; i++) {
        events.emplace_back(got[i].link, (int)got[i].what);
        if (got[i].what == ft_event::FT_EVENT_ACCEPTED)
            accepts.push_back(got[i].link);
    }
    return busy || n > 0;
}

std::string Engine::address()
{
    char buf[FT_ADDRESS_BYTES];
    int n = ops->address(t, buf, sizeof buf);
    EXPECT_GT(n, 0) << ft_fail_text();
    return std::string(buf, n > 0 ? (size_t)n : 0);
}

ft_link *Engine::connect(uint64_t peer, const std::string &address)
{
    ft_link *link = nullptr;
    int rc = ops->connect(t, peer, address.data(), address.size(), &link);
    EXPECT_EQ(rc, FT_OK) << ft_fail_text();
    return rc ? nullptr : link;
}

void Engine::disconnect(ft_link *link)
{
    ops->disconnect(link);
    for (auto i = accepts.begin(); i != accepts.end(); ++i) {
        if (*i != link)
            continue;
        accepts.erase(i);
        return;
    }
}

bool Engine::has(ft_link *link, int what) const
{
    for (auto &e : events)
        if (e.first == link && e.second == what)
            return true;
    return false;
}

bool turn(std::vector<Engine *> engines, const std::function<bool()> &condition, int bound_ms)
{
    uint64_t end = now_ms() + (uint64_t)bound_ms;
    do {
        for (int i = 0; i < 64; i++) {
            for (Engine *e : engines)
                e->poll();
            if (condition())
                return true;
        }
    } while (now_ms() < end);
    return false;
}

ft_header header_of(uint64_t ctx, unsigned lane, uint32_t seq, uint32_t len)
{
    ft_header h;
    memset(&h, 0, sizeof h);
    h.ctx = ctx;
    h.sig = ctx * 31 + seq;
    h.seq = seq;
    h.len = len;
    h.lane = (uint16_t)lane;
    h.step = (uint16_t)(seq * 7);
    return h;
}

std::string payload(uint32_t seq, size_t len_bytes)
{
    std::string s(len_bytes, 0);
    uint32_t x = seq * 2654435761u + 1;
    for (auto &c : s) {
        c = (char)(x >> 24);
        x = x * 1664525 + 1013904223;
    }
    return s;
}

void TransportTest::SetUp()
{
    ft_arena_base(); // its descriptors stay
    fds_before = ft_fd_count();
    std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    if (strstr(GetParam().gaps, test.substr(0, test.find('/')).c_str()))
        GTEST_SKIP() << "a known gap of " << GetParam().name;
}

void TransportTest::open(size_t chunk_bytes)
{
    a = std::make_unique<Engine>(GetParam(), 0xa, chunk_bytes);
    b = std::make_unique<Engine>(GetParam(), 0xb, chunk_bytes);
    ASSERT_TRUE(a->t && b->t);
    ASSERT_EQ(a->ops->bind(a->t, 1), FT_OK) << ft_fail_text();
    ASSERT_EQ(b->ops->bind(b->t, 1), FT_OK) << ft_fail_text();
}

bool TransportTest::link()
{
    ab = a->connect(b->id, b->address());
    if (!ab)
        return false;
    size_t before = b->accepts.size();
    bool up = turn({a.get(), b.get()},
                   [&] { return ab->state != FT_LINK_CONNECTING && b->accepts.size() > before; });
    EXPECT_TRUE(up) << "no link after 5 s, state " << ab->state << " reason " << ab->reason;
    if (!up)
        return false;
    ba = b->accepts.back();
    EXPECT_TRUE(a->has(ab, ft_event::FT_EVENT_UP));
    EXPECT_EQ(ab->state, FT_LINK_UP);
    EXPECT_EQ(ba->state, FT_LINK_UP);
    EXPECT_EQ(ba->peer, a->id);
    EXPECT_EQ(ab->peer, b->id);
    EXPECT_TRUE(ab->sender);
    EXPECT_FALSE(ba->sender);
    return true;
}

void TransportTest::TearDown()
{
    a.reset();
    b.reset();
    EXPECT_EQ(ft_fd_count(), fds_before) << "descriptors leaked";
}

int TransportTest::send(ft_link *l, uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes)
{
    ft_header h = header_of(ctx, lane, seq, (uint32_t)len_bytes);
    std::string data = payload(seq, len_bytes);
    ft_send req = {};
    req.status = FT_AGAIN;
    int rc = l->ops->send(l, &h, data.data(), &req);
    if (rc != FT_OK)
        return rc;
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return req.status != FT_AGAIN; }))
        << "an accepted send never completed";
    return req.status;
}

bool TransportTest::take(ft_link *l, uint64_t ctx, unsigned lane, ft_msg *msg, int bound_ms)
{
    return turn(
        {a.get(), b.get()}, [&] { return l->ops->recv(l, ctx, lane, msg) == FT_OK; }, bound_ms);
}

bool TransportTest::expect(uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes)
{
    ft_msg msg;
    if (!take(ba, ctx, lane, &msg)) {
        ADD_FAILURE() << "message " << seq << " of context " << ctx << " lane " << lane
                      << " did not come";
        return false;
    }
    ft_header want = header_of(ctx, lane, seq, (uint32_t)len_bytes);
    EXPECT_EQ(memcmp(&want, &msg.header, sizeof want), 0)
        << "header of " << seq << ", got seq " << msg.header.seq;
    bool same = msg.header.len == len_bytes &&
                (len_bytes == 0 ||
                 memcmp(payload(seq, len_bytes).data(), msg.data, len_bytes) == 0);
    EXPECT_TRUE(same) << "payload of message " << seq << " with " << len_bytes << " bytes";
    ba->ops->release(ba, &msg);
    return same;
}

Child::Child(const std::function<int(int, int)> &body)
{
    int down[2], up[2];
    if (pipe(down) || pipe(up))
        abort();
    fflush(nullptr);
    pid = fork();
    if (pid == 0) {
        close(down[1]);
        close(up[0]);
        _exit(body(down[0], up[1]));
    }
    close(down[0]);
    close(up[1]);
    in = up[0];
    out = down[1];
}

Child::~Child()
{
    kill_hard();
    close(in);
    close(out);
}

void Child::kill_hard()
{
    if (pid < 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
}

bool Child::is_stopped()
{
    int status = 0;
    return waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status);
}

void Child::go_on()
{
    kill(pid, SIGCONT);
}

int Child::wait()
{
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1000;
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string Child::read_from(int fd)
{
    unsigned short n;
    if (::read(fd, &n, sizeof n) != (ssize_t)sizeof n)
        return "";
    std::string s(n, 0);
    for (size_t done = 0; done < n;) {
        ssize_t k = ::read(fd, &s[done], n - done);
        if (k <= 0)
            return "";
        done += (size_t)k;
    }
    return s;
}

void Child::write_to(int fd, const std::string &s)
{
    unsigned short n = (unsigned short)s.size();
    std::string all((const char *)&n, sizeof n);
    all += s;
    if (::write(fd, all.data(), all.size()) != (ssize_t)all.size())
        abort();
}

std::string Child::read()
{
    return read_from(in);
}
void Child::write(const std::string &s)
{
    write_to(out, s);
}
