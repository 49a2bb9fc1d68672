// Property: whatever comes to the service's port, or from a service, costs bounded memory,
// descriptors and time, and does not disturb an honest job. Ids that no rank uses are removed. An
// explicit address (FTCCL_COMM_ID) needs a secret, and serves one job after another. Method: seeded
// random bytes and hand-made malformed messages over real sockets, with and without the secret; an
// injected clock makes time jump. Replay: FT_SEED=<printed seed> bootstrap_hostile_test
#include "bootstrap_helpers.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <random>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static std::atomic<uint64_t> jump_ns{0};
static uint64_t jumping_now(ft_env *)
{
    return ft_now_ns(ft_env_real()) + jump_ns.load();
}
static void real_random(ft_env *, void *buf, size_t n)
{
    ft_env_real()->random(ft_env_real(), buf, n);
}
static ft_env jumping = {jumping_now, real_random, nullptr};

class Hostile : public testing::Test
{
  protected:
    void SetUp() override
    {
        const char *given = getenv("FT_SEED");
        seed = given ? strtoull(given, nullptr, 10) : std::random_device{}();
        RecordProperty("seed", std::to_string(seed));
        random.seed(seed);
        before = ft_fd_count();
    }
    void TearDown() override
    {
        for (const char *name : {"FTCCL_COMM_ID", "FTCCL_SECRET", "FTCCL_SECRET_FILE"})
            unsetenv(name);
        ft_params_reload();
        ft_bootstrap_stop();
        ft_bootstrap_stop();
        ft_service_set_env(nullptr);
        jump_ns = 0;
        EXPECT_EQ(before, ft_fd_count());
        if (HasFailure())
            fprintf(stderr, "replay: FT_SEED=%llu\n", (unsigned long long)seed);
    }
    std::vector<unsigned char> noise(size_t most)
    {
        std::vector<unsigned char> bytes(1 + random() % most);
        for (auto &b : bytes)
            b = (unsigned char)random();
        return bytes;
    }
    uint64_t seed = 0;
    std::mt19937_64 random;
    int before = 0;
};

static ft_wait within(double seconds)
{
    return {ft_env_real(), ft_now_ns(ft_env_real()) + (uint64_t)(seconds * 1e9), nullptr};
}

static bool closed_by_peer(int fd, double limit_s = 8)
{
    ft_wait wait = within(limit_s);
    unsigned char buf[256];
    size_t got;
    int status;
    while ((status = ft_wait_some(&wait, fd, buf, sizeof buf, &got)) == FT_OK) {}
    return status == FT_LINK;
}

// Says SELECT and proves the secret, as an honest rank would.
static int authenticated(const Id &bytes, uint64_t engine)
{
    ft_id id = decoded(bytes);
    ft_wait wait = within(5);
    int fd = raw_connect(bytes);
    unsigned char select[FT_SELECT_BYTES], key[FT_SECRET_BYTES];
    ft_select_encode(select, FT_ANSWER_GO, id.nonce);
    EXPECT_EQ(FT_OK, ft_wait_write(&wait, fd, select, sizeof select));
    EXPECT_EQ(FT_OK, ft_wait_read(&wait, fd, select, sizeof select));
    ft_auth_derive(key, id.secret, "bootstrap", id.nonce);
    ft_auth auth;
    ft_auth_start(&auth, ft_env_real(), fd, true, key, engine, 0, FT_PURPOSE_BOOTSTRAP, 0,
                  wait.deadline_ns);
    int status;
    while ((status = ft_auth_turn(&auth)) == FT_AGAIN)
        if (ft_wait_fd(&wait, fd, ft_auth_events(&auth)))
            break;
    EXPECT_EQ(FT_OK, status);
    return fd;
}

TEST_F(Hostile, FlippedBitsOfAnIdAreFound)
{
    Id id = make_id();
    EXPECT_EQ(FT_OK, ft_unique_id_check(id.data()));
    for (int bit = 0; bit < 1024; bit++) {
        Id bad = id;
        bad[(size_t)bit / 8] ^= (unsigned char)(1 << bit % 8);
        int status = ft_unique_id_check(bad.data());
        EXPECT_TRUE(status == FT_INVAL || status == FT_VERSION) << "bit " << bit << ": " << status;
        EXPECT_NE(FT_OK, join(calls_for({bad}, 2)[0]).status);
    }
}

TEST_F(Hostile, RandomBytesDoNotDisturbAJob)
{
    Id id = make_id();
    ft_id to = decoded(id);
    auto calls = calls_for({id}, 4);
    Outcome first;
    std::thread early([&] { first = join(calls[0]); });
    for (int round = 0; round < 300; round++) {
        int fd = raw_connect(id);
        unsigned char select[FT_SELECT_BYTES];
        ft_select_encode(select, FT_ANSWER_GO, random() % 2 ? to.nonce : random());
        if (random() % 4 == 0)
            select[random() % 8] ^= (unsigned char)(1 << random() % 8);
        if (random() % 4)
            send(fd, select, 1 + random() % sizeof select, MSG_NOSIGNAL);
        auto bytes = noise(2000);
        send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (random() % 2)
            shutdown(fd, SHUT_WR);
        ft_fd_close(&fd);
    }
    auto rest = join_calls({calls.begin() + 1, calls.end()});
    early.join();
    rest.insert(rest.begin(), first);
    expect_tables(rest);
}

TEST_F(Hostile, SilentConnectionsMakeRoom)
{
    Id id = make_id();
    std::vector<int> silent;
    for (int i = 0; i < 150; i++)
        silent.push_back(raw_connect(id));
    int most = 0;
    std::atomic<bool> done{false};
    std::thread watch([&] {
        while (!done) {
            most = std::max(most, ft_fd_count());
            std::this_thread::yield();
        }
    });
    auto all = join_calls(calls_for({id}, 4));
    done = true;
    watch.join();
    expect_tables(all);
    EXPECT_LT(all[0].seconds, 4.5) << "waited until they were closed for their age instead";
    EXPECT_LE(most, before + 150 + 64 + 2 * 4 + 4 + 1);
    for (int &fd : silent)
        ft_fd_close(&fd);
}

TEST_F(Hostile, SlowConnectionIsClosed)
{
    ft_service_set_env(&jumping);
    Id id = make_id();
    int fd = raw_connect(id), member = authenticated(id, 1);
    EXPECT_EQ(1, send(fd, "F", 1, MSG_NOSIGNAL));
    jump_ns = 4000000000u;
    EXPECT_FALSE(closed_by_peer(fd, 0.6));
    jump_ns = 5100000000u;
    EXPECT_TRUE(closed_by_peer(fd, 1));
    EXPECT_TRUE(closed_by_peer(member, 1));
    ft_fd_close(&fd);
    ft_fd_close(&member);
}

// Whoever knows the secret but not the protocol (or lies about itself) is dropped alone.
TEST_F(Hostile, MalformedJoinsAreDropped)
{
    Id id = make_id();
    ft_join_msg good{};
    good.nonce = decoded(id).nonce;
    good.nranks = 3;
    good.rank = 2;
    good.nids = 1;
    good.left_ms = good.bound_ms = 1000;
    good.endpoint = make_endpoint(2);
    unsigned char bytes[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX];
    struct {
        const char *what;
        size_t at;
        uint32_t value;
    } broken[] = {
        {"unknown frame", 0, 77},
        {"a server's frame", 0, FT_FRAME_TABLE},
        {"gigantic", 4, 0xffffffff},
        {"too short", 4, 3},
        {"another id", 8, 1},
        {"no ranks", 16, 0},
        {"2^31 ranks", 16, 1u << 31},
        {"rank beyond", 20, 3},
        {"no ids", 24, 0},
        {"more ids than ranks", 24, 4},
        {"index beyond", 28, 1},
        {"another engine", 40, 5},
        {"long text", 64, 160},
        {"long address", 68, 1025},
        {"shorter text", 64, 2},
    };
    for (auto &b : broken) {
        size_t len = ft_join_encode(bytes, &good);
        ft_put32(bytes + b.at, b.value);
        int fd = authenticated(id, good.endpoint.engine);
        EXPECT_EQ((ssize_t)len, send(fd, bytes, len, MSG_NOSIGNAL));
        EXPECT_TRUE(closed_by_peer(fd)) << b.what;
        ft_fd_close(&fd);
        EXPECT_EQ(0, ft_service_arrived(good.nonce)) << b.what;
    }
    expect_tables(join_calls(calls_for({id}, 3)));
}

// ---- a service that is not one ----

struct FalseService {
    ft_id id{};
    Id bytes{};
    int listener = -1;
    FalseService()
    {
        ft_net_address loopback{};
        loopback.family = AF_INET;
        inet_pton(AF_INET, "127.0.0.1", loopback.ip);
        EXPECT_EQ(FT_OK, ft_net_listen(&loopback, 1, AF_INET, 0, &listener));
        id.address[id.naddresses++] = loopback;
        id.nonce = 5;
        ft_random_secret(id.secret);
        EXPECT_EQ(1, ft_id_encode(bytes.data(), &id));
    }
    ~FalseService()
    {
        ft_fd_close(&listener);
    }
    int accept_one()
    {
        ft_wait wait = within(5);
        int fd = -1;
        EXPECT_EQ(FT_OK, ft_wait_fd(&wait, listener, POLLIN));
        EXPECT_EQ(FT_OK, ft_net_accept(listener, &fd));
        return fd;
    }
    // Up to the moment at which an honest service would answer.
    int accept_member(uint32_t *join_bytes)
    {
        ft_wait wait = within(5);
        unsigned char select[FT_SELECT_BYTES], key[FT_SECRET_BYTES], frame[FT_FRAME_BYTES],
            body[FT_JOIN_WIRE_MAX];
        int fd = accept_one();
        ft_frame kind;
        EXPECT_EQ(FT_OK, ft_wait_read(&wait, fd, select, sizeof select));
        EXPECT_EQ(FT_OK, ft_wait_write(&wait, fd, select, sizeof select));
        ft_auth_derive(key, id.secret, "bootstrap", id.nonce);
        ft_auth auth;
        ft_auth_start(&auth, ft_env_real(), fd, false, key, 9, 0, FT_PURPOSE_BOOTSTRAP, 0,
                      wait.deadline_ns);
        while (ft_auth_turn(&auth) == FT_AGAIN && !ft_wait_fd(&wait, fd, ft_auth_events(&auth))) {}
        EXPECT_EQ(FT_OK, ft_wait_read(&wait, fd, frame, sizeof frame));
        EXPECT_EQ(FT_OK, ft_frame_decode(frame, &kind, join_bytes));
        EXPECT_EQ(FT_OK, ft_wait_read(&wait, fd, body, ft_min(*join_bytes, sizeof body)));
        ft_frame_encode(frame, FT_FRAME_JOINED, 0);
        EXPECT_EQ(FT_OK, ft_wait_write(&wait, fd, frame, sizeof frame));
        return fd;
    }
};

TEST_F(Hostile, NoiseInsteadOfAServiceIsRefused)
{
    FalseService service;
    for (int round = 0; round < 30; round++) {
        Outcome got;
        std::thread rank([&] { got = join(calls_for({service.bytes}, 2, 0.3)[0]); });
        int fd = service.accept_one();
        unsigned char select[FT_SELECT_BYTES];
        ft_select_encode(select, (enum ft_answer)(random() % 5), random() % 2 ? 5 : random());
        if (random() % 2)
            send(fd, select, sizeof select, MSG_NOSIGNAL);
        auto bytes = noise(400);
        send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        rank.join();
        ft_fd_close(&fd);
        while (ft_net_accept(service.listener, &fd) == FT_OK)
            ft_fd_close(&fd);
        EXPECT_NE(FT_OK, got.status);
        EXPECT_LT(got.seconds, 1.8);
    }
}

TEST_F(Hostile, MalformedAnswersAreRefused)
{
    FalseService service;
    std::vector<std::vector<unsigned char>> answers(
        7, std::vector<unsigned char>(FT_FRAME_BYTES + FT_TABLE_FIXED_BYTES +
                                      2 * FT_ENDPOINT_FIXED_BYTES));
    auto frame = [&](size_t i, ft_frame kind, uint32_t len) {
        ft_frame_encode(answers[i].data(), kind, len);
    };
    auto head = [&](size_t i, uint32_t first, uint32_t count) {
        ft_table_head h{1, first, count};
        ft_table_head_encode(answers[i].data() + FT_FRAME_BYTES, &h);
    };
    frame(0, FT_FRAME_TABLE, 80), head(0, 0, 1u << 31);   // more ranks than there are
    frame(1, FT_FRAME_TABLE, 80), head(1, 0xffffffff, 2); // ranks before the first
    frame(2, FT_FRAME_TABLE, 17), head(2, 0, 2);          // ends in an endpoint
    frame(3, FT_FRAME_TABLE, 56), head(3, 0, 2); // an endpoint's text is longer than it can be
    ft_put32(answers[3].data() + FT_FRAME_BYTES + FT_TABLE_FIXED_BYTES + 24, 1u << 30);
    frame(4, FT_FRAME_FAIL, 8),
        ft_put32(answers[4].data() + FT_FRAME_BYTES, 3); // a success that failed
    frame(5, FT_FRAME_ACK, 0);                           // not a service's word
    frame(6, (ft_frame)1234, 10);
    for (auto &bytes : answers) {
        Outcome got;
        std::thread rank([&] { got = join(calls_for({service.bytes}, 2, 2)[0]); });
        uint32_t len = 0;
        int fd = service.accept_member(&len);
        send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        rank.join();
        ft_fd_close(&fd);
        EXPECT_EQ(FT_PROTOCOL, got.status) << "answer " << &bytes - &answers[0] << ": " << got.text;
    }
}

// ---- ids that nobody uses ----

TEST_F(Hostile, UnusedIdsExpire)
{
    ft_service_set_env(&jumping);
    make_id();
    int served = ft_fd_count();
    jump_ns = 119000000000u;
    make_id();
    EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 2; }));
    jump_ns = 121000000000u;
    EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 1; })) << ft_unique_ids_served();
    EXPECT_EQ(served, ft_fd_count());
    jump_ns = 260000000000u;
    EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 0; }));
    EXPECT_TRUE(eventually([&] { return ft_fd_count() == before; }))
        << "the service did not stop by itself";
    Id again = make_id();
    expect_tables(join_calls(calls_for({again}, 2)));
}

TEST_F(Hostile, TenThousandIdsLeaveNothing)
{
    make_id();
    ft_bootstrap_stop();
    size_t heap = mallinfo2().uordblks;
    for (int i = 0; i < 10000; i++) {
        Id id{};
        ASSERT_EQ(FT_OK, ft_unique_id_make(id.data()));
    }
    EXPECT_EQ(10000, ft_unique_ids_served());
    ft_bootstrap_stop();
    EXPECT_EQ(0, ft_unique_ids_served());
    EXPECT_LT(mallinfo2().uordblks, heap + 65536);
    for (int i = 0; i < 500; i++) {
        make_id();
        ft_bootstrap_stop();
    }
    EXPECT_EQ(before, ft_fd_count());
    EXPECT_LT(mallinfo2().uordblks, heap + 65536);
}

// ---- descriptors ----

static int child_short_of_descriptors()
{
    rlimit limit{};
    Id id = make_id();
    getrlimit(RLIMIT_NOFILE, &limit);
    int lowest = dup(0);
    close(lowest);
    limit.rlim_cur = (rlim_t)lowest + 8;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (write(3, id.data(), id.size()) != (ssize_t)id.size())
        return 1;
    for (;;)
        pause();
}

TEST_F(Hostile, ServiceOutOfDescriptorsTellsEverybody)
{
    int pipe_fd[2];
    Id id{};
    ASSERT_EQ(0, pipe(pipe_fd));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fd[1], 3);
        execl("/proc/self/exe", "bootstrap_hostile_test", "--child-short", nullptr);
        _exit(127);
    }
    ASSERT_EQ((ssize_t)id.size(), read(pipe_fd[0], id.data(), id.size()));
    expect_all(join_calls(calls_for({id}, 24)), FT_NOFILE, "ran out of file descriptors");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

TEST_F(Hostile, NoDescriptorsForAnId)
{
    rlimit old{}, none{};
    ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &old));
    int lowest = dup(0);
    close(lowest);
    for (rlim_t room = 0; room < 3; room++) {
        none = old;
        none.rlim_cur = (rlim_t)lowest + room;
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
        Id id{};
        int status = ft_unique_id_make(id.data());
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &old));
        EXPECT_EQ(FT_NOFILE, status) << room << ": " << ft_fail_text();
    }
    expect_tables(join_calls(calls_for({make_id()}, 2)));
}

// ---- FTCCL_COMM_ID ----

// An address that nobody else gets: the port stays bound, and who is to listen there may bind it
// too, with SO_REUSEADDR.
class Held
{
  public:
    Held()
    {
        sockaddr_in any{};
        socklen_t len = sizeof any;
        int one = 1;
        any.sin_family = AF_INET;
        any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(0, setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
        EXPECT_EQ(0, bind(fd, (sockaddr *)&any, len));
        EXPECT_EQ(0, getsockname(fd, (sockaddr *)&any, &len));
        address = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    }
    ~Held()
    {
        close(fd);
    }
    Held(const Held &) = delete;
    std::string address;

  private:
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

static void set_explicit(const std::string &address, const char *secret)
{
    setenv("FTCCL_COMM_ID", address.c_str(), 1);
    if (secret)
        setenv("FTCCL_SECRET", secret, 1);
    else
        unsetenv("FTCCL_SECRET");
    ft_params_reload();
}

TEST_F(Hostile, ExplicitAddressServesOneJobAfterAnother)
{
    Held held;
    set_explicit(held.address, "correct horse battery staple");
    auto calls = calls_for({make_id()}, 4);
    for (auto &c : calls)
        c.ids = {make_id()}; // every rank makes its own
    EXPECT_EQ(0, ft_unique_ids_served());
    std::vector<std::vector<Outcome>> jobs(20, std::vector<Outcome>(4));
    std::vector<std::thread> ranks;
    for (size_t r = 0; r < 4; r++)
        ranks.emplace_back([&, r] {
            for (auto &job : jobs)
                job[r] = join(calls[r]); // nobody waits for the others in between
        });
    for (auto &t : ranks)
        t.join();
    for (size_t i = 0; i < jobs.size(); i++) {
        SCOPED_TRACE(i);
        expect_tables(jobs[i]);
        if (i > 0 && !HasFailure()) {
            EXPECT_NE(jobs[i][0].table->job, jobs[i - 1][0].table->job);
        }
    }
}

TEST_F(Hostile, ExplicitAddressNamesWhoNeverCame)
{
    Held held;
    set_explicit(held.address, "correct horse battery staple");
    auto calls = calls_for({make_id()}, 3, 0.5);
    calls.pop_back();
    expect_all(join_calls(calls), FT_TIMEOUT, "rank 2 of 3 never came");
    calls = calls_for({make_id()}, 3, 0.5);
    calls.erase(calls.begin());
    ft_bootstrap_stop();
    expect_all(join_calls(calls), FT_TIMEOUT, "rank 0 of 3 never came");
}

TEST_F(Hostile, WrongSecretIsAnAuthenticationError)
{
    Held held;
    set_explicit(held.address, "correct horse battery staple");
    auto calls = calls_for({make_id()}, 2, 4);
    set_explicit(held.address, "correct horse battery stable");
    calls[1].ids = {make_id()};
    auto all = join_calls(calls);
    EXPECT_EQ(FT_TIMEOUT, all[0].status) << all[0].text;
    EXPECT_EQ(FT_AUTH, all[1].status) << all[1].text;
    EXPECT_LT(all[1].seconds, 3.5) << "it waited for the bound";
}

TEST_F(Hostile, ExplicitAddressNeedsAGoodSecret)
{
    Id id{};
    auto refused = [&](const char *part) {
        ft_params_reload();
        EXPECT_EQ(FT_USAGE, ft_unique_id_make(id.data()));
        EXPECT_NE(std::string::npos, std::string(ft_fail_text()).find(part)) << ft_fail_text();
    };
    Held held;
    set_explicit(held.address, nullptr);
    refused("anybody could join");
    setenv("FTCCL_SECRET", "fifteen letters", 1);
    refused("at least 16");
    unsetenv("FTCCL_SECRET");
    char path[] = "/tmp/ft-secret-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_EQ(29, write(fd, "correct horse battery staple\n", 29));
    setenv("FTCCL_SECRET_FILE", path, 1);
    fchmod(fd, 0640);
    refused("0600");
    fchmod(fd, 0600);
    ft_params_reload();
    EXPECT_EQ(FT_OK, ft_unique_id_make(id.data())) << ft_fail_text();
    ft_id from_file = decoded(id);
    unsetenv("FTCCL_SECRET_FILE");
    set_explicit("127.0.0.1:" + std::to_string(from_file.address[0].port),
                 "correct horse battery staple");
    EXPECT_EQ(0, memcmp(from_file.secret, decoded(make_id()).secret, FT_SECRET_BYTES));
    for (const char *bad :
         {"nonsense", "host:", ":1", "127.0.0.1:0", "127.0.0.1:70000", "[::1:5"}) {
        setenv("FTCCL_COMM_ID", bad, 1);
        refused("FTCCL_COMM_ID");
    }
    close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--child-short"))
        return child_short_of_descriptors();
    setenv("FTCCL_DEBUG", "VERSION", 0); // the failures here are meant
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
