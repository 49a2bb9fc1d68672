// Property: ranks that join an existing job and the root that grows it all get one table, whichever
// comes first. The id carries the key of the job's links. If something is wrong (a joiner missing,
// dead, twice, of another size or configuration, the root gone or cancelled), every rank that waits
// learns it, with a name. A joiner that claims a survivor's rank is refused alone. Method: joiners
// are threads of this process over real sockets; the root supplies and collects. A root that dies
// is a child process.
#include "bootstrap_helpers.h"

#include <signal.h>
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

using Key = std::array<unsigned char, FT_SECRET_BYTES>;

static Key make_key()
{
    Key key;
    ft_random_secret(key.data());
    return key;
}

static Id grow_id(int survivors, const Key &key = make_key(), const void *owner = nullptr)
{
    Id id{};
    EXPECT_EQ(FT_OK, ft_unique_id_grow(id.data(), key.data(), survivors, owner)) << ft_fail_text();
    return id;
}

static Outcome supply(const Id &id, int survivors, int nranks, uint64_t config = 42)
{
    Outcome out;
    std::vector<ft_endpoint> endpoints;
    for (int r = 0; r < survivors; r++) {
        endpoints.push_back(make_endpoint(r));
        endpoints.back().config = config;
    }
    out.status = ft_bootstrap_supply(id.data(), nranks, endpoints.data(), survivors);
    out.text = out.status ? ft_fail_text() : "";
    return out;
}

static Outcome collect(const Id &id, double timeout_s = 20, const atomic_int *cancel = nullptr)
{
    Outcome out;
    ft_table *table = nullptr;
    double begin = now_s();
    out.status = ft_bootstrap_collect(id.data(), (uint64_t)(timeout_s * 1e9), cancel, &table);
    out.seconds = now_s() - begin;
    out.text = out.status ? ft_fail_text() : "";
    if (out.status == FT_OK)
        out.table.reset(table, free);
    return out;
}

static std::vector<Call> joiners(const Id &id, int survivors, int nranks, double timeout_s = 20)
{
    auto calls = calls_for({id}, nranks, timeout_s);
    calls.erase(calls.begin(), calls.begin() + survivors);
    for (auto &c : calls)
        c.grow = true;
    return calls;
}

// Joiners that are under way in threads of their own; checked in when `come` says so.
struct Joining {
    std::vector<Outcome> all;
    std::vector<std::thread> threads;
    explicit Joining(const std::vector<Call> &calls) : all(calls.size())
    {
        for (size_t i = 0; i < calls.size(); i++)
            threads.emplace_back([this, i, c = calls[i]] { all[i] = join(c); });
    }
    ~Joining()
    {
        wait();
    }
    std::vector<Outcome> &wait()
    {
        for (auto &t : threads)
            if (t.joinable())
                t.join();
        return all;
    }
};

static bool come(const Id &id, int n)
{
    return eventually([&] { return ft_service_arrived(ft_unique_id_nonce(id.data())) == n; });
}

class Grow : public testing::Test
{
  protected:
    void SetUp() override
    {
        before = ft_fd_count();
    }
    void TearDown() override
    {
        ft_bootstrap_stop();
        EXPECT_EQ(0, ft_unique_ids_served());
        EXPECT_EQ(before, ft_fd_count());
        ft_service_set_env(nullptr);
        jump_ns = 0;
        unsetenv("FTCCL_COMM_ID");
        ft_params_reload();
    }
    // Nothing is left once everybody was told, though nobody stopped the service.
    void expect_nothing_left()
    {
        EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 0; }))
            << ft_unique_ids_served();
        EXPECT_TRUE(eventually([&] { return ft_fd_count() == before; })) << ft_fd_count();
    }
    void expect_grown(const std::vector<Outcome> &joined, const Outcome &root, int nranks)
    {
        std::vector<Outcome> all((size_t)nranks, root); // a table for every rank
        std::copy(joined.begin(), joined.end(), all.end() - (long)joined.size());
        expect_tables(all);
    }
    int before = 0;
};

TEST_F(Grow, IdKeepsTheKeyOfTheLinks)
{
    Key key = make_key(), got{};
    Id id = grow_id(3, key), other = grow_id(3, key), plain = make_id();
    EXPECT_TRUE(ft_unique_id_is_grow(id.data()));
    EXPECT_FALSE(ft_unique_id_is_grow(plain.data()));
    EXPECT_FALSE(ft_unique_id_is_grow(Id{}.data()));
    EXPECT_EQ(FT_OK, ft_unique_id_check(id.data()));
    ASSERT_EQ(FT_OK, ft_unique_id_key(id.data(), got.data()));
    EXPECT_EQ(key, got);
    ASSERT_EQ(FT_OK, ft_unique_id_key(plain.data(), got.data()));
    EXPECT_NE(0, memcmp(decoded(plain).secret, got.data(), got.size()));
    EXPECT_EQ(decoded(id).nonce, ft_unique_id_nonce(id.data()));
    EXPECT_NE(ft_unique_id_nonce(other.data()), ft_unique_id_nonce(id.data()));
    EXPECT_EQ(0u, ft_unique_id_nonce(Id{}.data()));
}

TEST_F(Grow, AnExplicitAddressHasNoSay)
{
    setenv("FTCCL_COMM_ID", "127.0.0.1:1", 1);
    ft_params_reload();
    Id id = grow_id(1);
    EXPECT_FALSE(decoded(id).explicit_address);
    Joining joining(joiners(id, 1, 2));
    EXPECT_EQ(FT_OK, supply(id, 1, 2).status);
    Outcome root = collect(id);
    expect_grown(joining.wait(), root, 2);
}

TEST_F(Grow, JoinersBeforeTheSupply)
{
    for (int n : {1, 2, 5, 8}) {
        SCOPED_TRACE(n);
        Key key = make_key();
        Id id = grow_id(3, key);
        Joining joining(joiners(id, 3, 3 + n));
        ASSERT_TRUE(come(id, n));
        Outcome supplied = supply(id, 3, 3 + n), root = collect(id);
        EXPECT_EQ(FT_OK, supplied.status) << supplied.text;
        expect_grown(joining.wait(), root, 3 + n);
        ASSERT_EQ(FT_OK, root.status) << root.text;
        EXPECT_EQ(0, memcmp(key.data(), root.table->key, key.size()));
        expect_nothing_left();
    }
}

TEST_F(Grow, SupplyBeforeTheJoiners)
{
    for (int n : {1, 2, 5, 8}) {
        SCOPED_TRACE(n);
        Id id = grow_id(3);
        Outcome supplied = supply(id, 3, 3 + n), root;
        EXPECT_EQ(FT_OK, supplied.status) << supplied.text;
        EXPECT_EQ(3, ft_service_arrived(ft_unique_id_nonce(id.data())));
        std::thread collecting([&] { root = collect(id); });
        auto joined = join_calls(joiners(id, 3, 3 + n));
        collecting.join();
        expect_grown(joined, root, 3 + n);
        expect_nothing_left();
    }
}

TEST_F(Grow, TheTableWaitsForTheRoot)
{
    Id id = grow_id(2);
    EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
    auto joined = join_calls(
        joiners(id, 2, 4)); // all have their answer before the root asks for its own
    Outcome root = collect(id);
    expect_grown(joined, root, 4);
    expect_nothing_left();
    Outcome again = collect(id);
    EXPECT_EQ(FT_USAGE, again.status) << again.text;
}

TEST_F(Grow, OneTooManyIsRefusedAlone)
{
    Id id = grow_id(2);
    EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
    auto calls = joiners(id, 2, 4), same = calls;
    auto joined = join_calls(calls); // the table is complete, and the root has not taken it
    for (auto &c : calls)
        c.endpoint.engine += 77;
    expect_all(join_calls(calls), FT_USAGE, "another process has come as rank");
    for (auto &c : calls)
        c.nranks = 5;
    expect_all(join_calls(calls), FT_USAGE, "but 4 ranks have come");
    expect_tables({joined[0], join_calls({same[0]})[0], joined[1],
                   joined[0]}); // whose connection broke may come again
    expect_grown(joined, collect(id), 4);
    expect_nothing_left();
}

TEST_F(Grow, OneAttemptAfterAnother)
{
    Key key = make_key();
    for (int round = 0; round < 100; round++) {
        SCOPED_TRACE(round);
        Id id = grow_id(2, key);
        if (round % 3 == 0)
            ft_unique_id_withdraw(id.data(), "never mind");
        Joining joining(joiners(id, 2, 4));
        if (round % 3 == 0) {
            expect_all(joining.wait(), FT_PEER, "the root of the grow gave up: never mind");
        } else {
            EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
            Outcome root = collect(id);
            expect_grown(joining.wait(), root, 4);
        }
    }
    // Those withdrawn before anybody came do not know whom to tell; they go with their time.
    EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 34; })) << ft_unique_ids_served();
}

// ---- failures ----

TEST_F(Grow, JoinersThatNeverComeAreNamed)
{
    Id id = grow_id(3);
    auto calls = joiners(id, 3, 7);
    calls.erase(calls.begin() + 3);
    calls.erase(calls.begin() + 1);
    Joining joining(calls);
    EXPECT_EQ(FT_OK, supply(id, 3, 7).status);
    Outcome root = collect(id, 0.6);
    auto all = joining.wait();
    all.push_back(root);
    expect_all(all, FT_TIMEOUT, "ranks 4, 6 of 7 never came within 600 ms");
    for (auto &one : all)
        EXPECT_LT(one.seconds, 5);
}

TEST_F(Grow, NobodyComes)
{
    Id id = grow_id(2);
    EXPECT_EQ(FT_OK, supply(id, 2, 3).status);
    Outcome root = collect(id, 0.2);
    EXPECT_EQ(FT_TIMEOUT, root.status);
    EXPECT_NE(std::string::npos, root.text.find("rank 2 of 3 never came within 200 ms"))
        << root.text;
    expect_all(join_calls(joiners(id, 2, 3)), FT_TIMEOUT, "rank 2 of 3 never came"); // too late
    expect_nothing_left();
}

TEST_F(Grow, RanksOfSurvivorsAreRefusedAlone)
{
    for (bool first : {true, false}) {
        SCOPED_TRACE(first);
        Id id = grow_id(3);
        if (first) {
            EXPECT_EQ(FT_OK, supply(id, 3, 5).status);
        }
        auto low = calls_for({id}, 5);
        low.resize(3);
        low.push_back(low[1]);
        for (auto &c : low)
            c.grow = true;
        low[0].endpoint.config = 1;
        low[2].nranks = 9;
        auto refused = join_calls(low);
        expect_all(refused, FT_USAGE, "belongs to a survivor");
        expect_all({refused[1], refused[3]}, FT_USAGE, "rank 1 belongs to a survivor");
        Joining joining(joiners(id, 3, 5));
        if (!first) {
            ASSERT_TRUE(come(id, 2));
            EXPECT_EQ(FT_OK, supply(id, 3, 5).status);
        }
        auto joined = joining.wait();
        expect_all(join_calls({low[1]}), FT_USAGE,
                   "rank 1 belongs to a survivor"); // nor once the table is complete
        expect_grown(joined, collect(id), 5);
        expect_nothing_left();
    }
}

TEST_F(Grow, TwoJoinersClaimARank)
{
    Id id = grow_id(2);
    EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
    auto calls = joiners(id, 2, 4);
    calls[1].rank = 2;
    Joining joining(calls);
    Outcome root = collect(id);
    auto all = joining.wait();
    all.push_back(root);
    expect_all(all, FT_USAGE, "two processes claim rank 2");
}

TEST_F(Grow, DifferentSizesAndConfigurationsAreNamed)
{
    for (bool first : {true, false}) {
        SCOPED_TRACE(first);
        Id sizes = grow_id(2), configs = grow_id(2);
        Joining joining(joiners(sizes, 2, 4)), other(joiners(configs, 2, 4));
        if (!first) {
            ASSERT_TRUE(come(sizes, 2) && come(configs, 2));
        }
        // What the supply already knows it says; else the root learns it when it collects.
        Outcome size = supply(sizes, 2, 5), config = supply(configs, 2, 4, 43);
        if (size.status == FT_OK)
            size = collect(sizes);
        if (config.status == FT_OK)
            config = collect(configs);
        auto a = joining.wait(), b = other.wait();
        a.push_back(size);
        b.push_back(config);
        expect_all(a, FT_USAGE, "says 5 ranks");
        expect_all(b, FT_MISMATCH, "has another configuration than rank");
    }
}

TEST_F(Grow, WrongKindOfId)
{
    Id grow = grow_id(2), plain = make_id();
    auto calls = joiners(grow, 2, 3);
    calls[0].grow = false;
    expect_all(join_calls(calls), FT_USAGE, "it is for ftcclCommGrow");
    calls[0].rank = 0;
    calls[0].nranks = 1;
    expect_all(join_calls(calls), FT_USAGE, "it is for ftcclCommGrow");
    expect_all(join_calls(joiners(plain, 2, 3)), FT_USAGE, "this one is for a new job");
    expect_all({supply(plain, 2, 3), collect(plain)}, FT_USAGE, "this one is for a new job");
    auto two = joiners(grow, 2, 4);
    for (auto &c : two)
        c.ids.push_back(grow);
    expect_all(join_calls(two), FT_USAGE, "grows by one unique id, not by 2");
    two[0].ids = two[1].ids = {plain, grow};
    two[0].grow = two[1].grow = false;
    expect_all(join_calls(two), FT_USAGE, "it is for ftcclCommGrow");
    EXPECT_EQ(FT_INVAL, supply(Id{}, 2, 3).status);
}

TEST_F(Grow, WrongUseOfAnIdChangesNothing)
{
    Id id = grow_id(2), elsewhere = id;
    ft_id moved = decoded(id);
    moved.nonce++;
    ft_id_encode(elsewhere.data(), &moved);
    expect_all({supply(elsewhere, 2, 3), collect(elsewhere)}, FT_USAGE,
               "this process does not serve");
    expect_all({supply(id, 3, 4)}, FT_USAGE, "of 2 ranks, not of 3");
    expect_all({supply(id, 2, 2), supply(id, 2, 1 << 30)}, FT_INVAL, "cannot grow");
    expect_all({collect(id)}, FT_USAGE, "have not been supplied");
    EXPECT_EQ(FT_OK, supply(id, 2, 3).status);
    expect_all({supply(id, 2, 3)}, FT_USAGE, "another grow");
    Joining joining(joiners(id, 2, 3));
    Outcome root = collect(id);
    expect_grown(joining.wait(), root, 3);
    expect_nothing_left();
    Id key{};
    EXPECT_EQ(FT_INVAL, ft_unique_id_grow(id.data(), key.data(), 0, nullptr));
}

TEST_F(Grow, RootThatIsCancelled)
{
    Id id = grow_id(2);
    auto calls = joiners(id, 2, 4);
    calls.pop_back();
    EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
    atomic_int cancel(0);
    Outcome root;
    Joining joining(calls);
    std::thread collecting([&] { root = collect(id, 20, &cancel); });
    ASSERT_TRUE(come(id, 3));
    double begin = now_s();
    cancel.store(1);
    collecting.join();
    EXPECT_LT(now_s() - begin, 1);
    EXPECT_EQ(FT_ABORTED, root.status) << root.text;
    expect_all(joining.wait(), FT_PEER, "the root of the grow gave up: ");
    expect_all(join_calls({joiners(id, 2, 4)[1]}), FT_PEER,
               "the root of the grow gave up: "); // who comes late learns it too
    expect_nothing_left();
}

TEST_F(Grow, RootThatGivesUp)
{
    for (bool supplied : {true, false}) {
        SCOPED_TRACE(supplied);
        Id id = grow_id(2);
        if (supplied) {
            EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
        }
        Joining joining({joiners(id, 2, 4)[0]});
        ASSERT_TRUE(come(id, supplied ? 3 : 1));
        ft_unique_id_withdraw(id.data(), "the survivors did not agree");
        expect_all(joining.wait(), FT_PEER,
                   "the root of the grow gave up: the survivors did not agree");
        expect_all(join_calls({joiners(id, 2, 4)[1]}), FT_PEER, "the survivors did not agree");
        expect_nothing_left();
    }
}

TEST_F(Grow, OwnerThatGoesTakesItsIdsWithIt)
{
    int one, other;
    Id waited = grow_id(2, make_key(), &one), unused = grow_id(2, make_key(), &one),
       kept = grow_id(2, make_key(), &other);
    Joining joining({joiners(waited, 2, 4)[0]});
    ASSERT_TRUE(come(waited, 1));
    ft_unique_ids_withdraw(&one, "it was tired");
    expect_all(joining.wait(), FT_PEER, "the root of the grow gave up: it was tired");
    expect_all(join_calls({joiners(unused, 2, 4)[1]}), FT_PEER, "it was tired");
    for (int i = 0; i < 6 && ft_unique_ids_served() > 1; i++)
        eventually([] { return ft_unique_ids_served() == 1; });
    EXPECT_EQ(1, ft_unique_ids_served()) << "of the withdrawn ids something is left";
    Joining others(joiners(kept, 2, 3));
    EXPECT_EQ(FT_OK, supply(kept, 2, 3).status);
    Outcome root = collect(kept);
    expect_grown(others.wait(), root, 3);
    expect_nothing_left();
}

TEST_F(Grow, ServiceThatStopsEndsTheWait)
{
    Id id = grow_id(2);
    EXPECT_EQ(FT_OK, supply(id, 2, 3).status);
    Outcome root;
    std::atomic<bool> begun{false};
    std::thread collecting([&] {
        begun = true;
        root = collect(id);
    });
    ASSERT_TRUE(eventually([&] { return begun.load(); }));
    ft_bootstrap_stop();
    collecting.join();
    EXPECT_TRUE(root.status == FT_ABORTED || root.status == FT_USAGE) << root.status << root.text;
    EXPECT_LT(root.seconds, 5);
}

TEST_F(Grow, JoinerThatIsCancelledFailsTheGrow)
{
    for (bool first : {true, false}) {
        SCOPED_TRACE(first);
        Id id = grow_id(2);
        if (first) {
            EXPECT_EQ(FT_OK, supply(id, 2, 4).status);
        }
        atomic_int cancel(0);
        auto calls = joiners(id, 2, 4);
        calls[0].cancel = &cancel;
        calls.pop_back();
        Joining joining(calls);
        ASSERT_TRUE(come(id, first ? 3 : 1));
        cancel.store(1);
        EXPECT_EQ(FT_ABORTED, joining.wait()[0].status);
        Outcome root;
        root.status = FT_OK;
        if (!first)
            root = supply(id, 2, 4); // the supply may come before the word of the joiner does
        if (root.status == FT_OK)
            root = collect(id);
        expect_all({root}, FT_PEER, "rank 2 gave up before everyone had come");
    }
}

TEST_F(Grow, UnusedIdsExpire)
{
    ft_service_set_env(&jumping);
    Id supplied = grow_id(2);
    grow_id(2);
    EXPECT_EQ(FT_OK, supply(supplied, 2, 3).status);
    jump_ns = 119000000000u;
    EXPECT_EQ(2, ft_unique_ids_served());
    jump_ns = 121000000000u; // the one that was supplied is kept once more for those that come late
    EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 1; })) << ft_unique_ids_served();
    jump_ns = 250000000000u;
    expect_nothing_left();
}

// ---- a root that dies ----

static int child_root()
{
    Id id = grow_id(2);
    if (write(3, id.data(), id.size()) != (ssize_t)id.size() || supply(id, 2, 4).status != FT_OK)
        return 1;
    std::thread([id] { collect(id); }).detach();
    if (!come(id, 3) || write(3, "x", 1) != 1)
        return 1;
    for (;;)
        pause();
}

TEST_F(Grow, RootThatDies)
{
    int pipe_fd[2];
    Id id{};
    char byte;
    ASSERT_EQ(0, pipe(pipe_fd));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fd[1], 3);
        execl("/proc/self/exe", "bootstrap_grow_test", "--child-root", nullptr);
        _exit(127);
    }
    close(pipe_fd[1]);
    ASSERT_EQ((ssize_t)id.size(), read(pipe_fd[0], id.data(), id.size()));
    auto calls = joiners(id, 2, 4);
    Joining joining({calls[0]});
    EXPECT_EQ(1, read(pipe_fd[0], &byte, 1)); // the child says that the joiner has checked in
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(pipe_fd[0]);
    expect_all(joining.wait(), FT_PEER, "the process that made the unique id is gone");
    expect_all(join_calls({calls[1]}), FT_PEER, "the process that made the unique id is gone");
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--child-root"))
        return child_root();
    setenv("FTCCL_DEBUG", "VERSION", 0); // the failures here are meant
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
