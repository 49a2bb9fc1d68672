/*
 * Property: replicas that come, die, stop and leave form views with a coordinator; collectives go
 * on among those that live, whoever comes back knows that it is behind and from whom to fetch, and
 * a replica commits a step on all its ranks or on none. A coordinator that dies disturbs nobody.
 * Method: the coordinator in this process, members as processes that are told each call, or as
 * threads; SIGKILL and SIGSTOP.
 */
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

/* Before any thread reads the environment; children inherit it. */
const int kSecretSet = setenv("FTCCL_SECRET", "members-of-the-test", 0);

constexpr double kBound = 60; /* seconds, only against hangs */
using Env = std::map<std::string, std::string>;

/* Nobody is taken for dead only because the machine is slow, unless a test is about that. */
Env patient()
{
    return {{"FTCCL_SUSPECT_MS", "20000"}, {"FTCCL_JOIN_WINDOW_MS", "20000"}};
}

/* ---- the child: one member, a call for each line of its stdin ---------------------------------
 */

struct Member {
    ftcclMember_t handle = nullptr;
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream = nullptr;
};

const char *why(ftcclResult_t result)
{
    return result == ftcclSuccess ? "" : ftcclGetLastError(nullptr);
}

/* "view RESULT SAME EPOCH STEP NRANKS RANK NHEALTHY BEHIND NSOURCES SOURCE... | why" */
void say_view(Member &member, uint64_t step)
{
    ftcclView_t view{};
    view.size = sizeof view;
    ftcclComm_t comm = nullptr;
    ftcclResult_t result = ftcclMemberView(member.handle, step, &view, &comm);
    printf("view %d %d %llu %llu %d %d %d %d %d", result, comm && comm == member.comm,
           static_cast<unsigned long long>(view.epoch), static_cast<unsigned long long>(view.step),
           view.nranks, view.rank, view.nhealthy, view.behind, view.nsources);
    for (int i = 0; i < view.nsources; i++)
        printf(" %d", view.sources[i]);
    printf(" | %s\n", why(result));
    if (result == ftcclSuccess)
        member.comm = comm;
}

void say_sum(const Member &member)
{
    float value = 1;
    ftcclResult_t result = ftcclAllReduce(&value, &value, 1, ftcclFloat, ftcclSum, member.comm,
                                          member.stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(member.stream);
    printf("sum %d %g | %s\n", result, static_cast<double>(value),
           result == ftcclSuccess ? "" : ftcclGetLastError(member.comm));
}

void say_commit(const Member &member, uint64_t step, int ok)
{
    int commit = -1;
    ftcclResult_t result = ftcclMemberCommit(member.handle, step, ok, &commit);
    printf("commit %d %d | %s\n", result, commit, why(result));
}

void say_role(const Member &member)
{
    char replica[64];
    int rank = 0, size = 0;
    ftcclResult_t result = ftcclMemberRole(member.handle, replica, sizeof replica, &rank, &size);
    printf("role %d [%s] %d %d | %s\n", result, replica, rank, size, why(result));
}

bool obey(Member &member, const std::string &line)
{
    std::istringstream words(line);
    std::string what;
    uint64_t step = 0;
    int ok = 0;
    words >> what >> step >> ok;
    if (what == "view")
        say_view(member, step);
    else if (what == "sum")
        say_sum(member);
    else if (what == "commit")
        say_commit(member, step, ok);
    else if (what == "role")
        say_role(member);
    else if (what == "leave") {
        ftcclResult_t result = ftcclMemberLeave(member.handle);
        printf("left %d | %s\n", result, why(result));
    } else
        return false;
    return true;
}

/* member COORDINATOR REPLICA RANK SIZE; REPLICA "-": a standby */
CHILD(member)
{
    Member member;
    bool standby = arguments[1] == "-";
    ftcclResult_t result = ftcclMemberJoin(arguments[0].c_str(), "job",
                                           standby ? nullptr : arguments[1].c_str(),
                                           std::stoi(arguments[2]), std::stoi(arguments[3]),
                                           nullptr, &member.handle);
    printf("joined %d | %s\n", result, why(result));
    if (result != ftcclSuccess || ftcclStreamCreate(&member.stream) != ftcclSuccess)
        return 1;
    char line[256];
    while (fgets(line, sizeof line, stdin) && obey(member, line)) {}
    return 0;
}

/* ---- the parent's side ------------------------------------------------------------------------
 */

/* A coordinator in this process. */
class Coordinator
{
  public:
    Coordinator()
    {
        start("127.0.0.1:0");
    }
    ~Coordinator()
    {
        if (handle_) {
            EXPECT_OK(ftcclCoordinatorStop(handle_));
        }
    }
    Coordinator(const Coordinator &) = delete;
    void stop()
    {
        EXPECT_OK(ftcclCoordinatorStop(handle_));
        handle_ = nullptr;
    }
    void start_again()
    {
        start(address);
    }
    std::string address;

  private:
    ftcclCoordinator_t handle_ = nullptr;
    void start(const std::string &listen)
    {
        char at[80] = "";
        ASSERT_OK(ftcclCoordinatorStart(listen.c_str(), at, sizeof at, &handle_));
        address = at;
    }
};

struct View {
    int result = -1, same = 0;
    unsigned long long epoch = 0, step = 0;
    int nranks = 0, rank = 0, nhealthy = 0, behind = 0;
    std::vector<int> sources;
    std::string text;
};

/* What comes after the word with which an answer begins. */
std::istringstream after(const std::string &line, const std::string &word)
{
    std::istringstream in(line);
    std::string first;
    in >> first;
    EXPECT_EQ(first, word) << line;
    return in;
}

struct Role {
    std::string replica;
    int rank, size;
};

class Rank
{
  public:
    Rank(const Coordinator &coordinator, const Role &place, const Env &env = patient())
        : role(place), child("member",
                             {coordinator.address, place.replica, std::to_string(place.rank),
                              std::to_string(place.size)},
                             env)
    {
    }
    int joined()
    {
        text = child.line(kBound);
        int result = -1;
        after(text, "joined") >> result;
        return result;
    }
    View view()
    {
        View v;
        v.text = child.line(kBound);
        auto in = after(v.text, "view");
        int n = 0;
        in >> v.result >> v.same >> v.epoch >> v.step >> v.nranks >> v.rank >> v.nhealthy >>
            v.behind >> n;
        for (int i = 0, source; i < n && in >> source; i++)
            v.sources.push_back(source);
        return v;
    }
    View view(uint64_t step)
    {
        child.tell("view " + std::to_string(step));
        return view();
    }
    /* The sum, or minus the error. */
    double sum()
    {
        int result = -1;
        double value = 0;
        text = child.line(kBound);
        after(text, "sum") >> result >> value;
        return result == ftcclSuccess ? value : -result;
    }
    void tell_commit(uint64_t step, int ok)
    {
        child.tell("commit " + std::to_string(step) + " " + std::to_string(ok));
    }
    /* The outcome, or minus the error. */
    int commit()
    {
        int result = -1, value = -1;
        text = child.line(kBound);
        after(text, "commit") >> result >> value;
        EXPECT_TRUE(result == ftcclSuccess || value == 0) << text;
        return result == ftcclSuccess ? value : -result;
    }
    int left()
    {
        int result = -1;
        child.tell("leave");
        text = child.line(kBound);
        after(text, "left") >> result;
        return result;
    }
    Role role;
    std::string text; /* the last answer */
    proc::Child child;
};

using Ranks = std::vector<Rank *>;

std::vector<View> views(const Ranks &ranks, const std::vector<uint64_t> &steps)
{
    std::vector<View> all;
    for (size_t i = 0; i < ranks.size(); i++)
        ranks[i]->child.tell("view " + std::to_string(steps[i % steps.size()]));
    for (Rank *rank : ranks)
        all.push_back(rank->view());
    return all;
}

/* All of them get the same new view, of so many replicas, at that step, and reduce in it. */
void expect_view(const Ranks &ranks, const std::vector<View> &all, int nranks, uint64_t step)
{
    for (size_t i = 0; i < all.size(); i++) {
        EXPECT_EQ(all[i].result, ftcclSuccess) << all[i].text;
        EXPECT_EQ(all[i].nranks, nranks) << all[i].text;
        EXPECT_EQ(all[i].epoch, all[0].epoch) << all[i].text << "\n" << all[0].text;
        EXPECT_EQ(all[i].step, step) << all[i].text;
        EXPECT_GE(all[i].rank, 0) << all[i].text;
        EXPECT_LT(all[i].rank, nranks) << all[i].text;
    }
    for (Rank *rank : ranks)
        rank->child.tell("sum");
    for (Rank *rank : ranks)
        EXPECT_EQ(rank->sum(), nranks) << rank->text;
}

/* Asks again until there is a view of so many replicas: others may be about to ask. */
std::vector<View> views_of(const Ranks &ranks, uint64_t step, int nranks)
{
    double end = proc::now() + kBound;
    auto all = views(ranks, {step});
    while (all[0].result == ftcclSuccess && all[0].nranks != nranks && proc::now() < end)
        all = views(ranks, {step});
    return all;
}

/* Replicas a, b, ... of `size` ranks each, which have joined. */
class Job
{
  public:
    /* apart: nobody can see the others' liveness pages or memory, as between hosts. */
    Job(int replicas, int size, const Env &env = patient(), bool apart = false) : apart_(apart)
    {
        for (int r = 0; r < replicas; r++)
            for (int i = 0; i < size; i++)
                add({std::string(1, static_cast<char>('a' + r)), i, size}, env);
        for (auto &rank : owned)
            EXPECT_EQ(rank->joined(), ftcclSuccess) << rank->text;
    }
    Rank *add(const Role &role, Env env = patient())
    {
        if (apart_) {
            env["FTCCL_HOSTID"] = "host-" + std::to_string(owned.size());
            env["FTCCL_TRANSPORTS"] = "tcp";
        }
        owned.push_back(std::make_unique<Rank>(coordinator, role, env));
        return owned.back().get();
    }
    Rank &at(const std::string &replica, int rank)
    {
        for (size_t i = owned.size(); i-- > 0;)
            if (owned[i]->role.replica == replica && owned[i]->role.rank == rank)
                return *owned[i];
        abort();
    }
    Ranks all()
    {
        Ranks ranks;
        for (auto &rank : owned)
            ranks.push_back(rank.get());
        return ranks;
    }
    Coordinator coordinator;
    std::vector<std::unique_ptr<Rank>> owned;

  private:
    bool apart_;
};

/* The members are on one host, or each on its own. */
class MemberApart : public testing::TestWithParam<bool>
{
};
INSTANTIATE_TEST_SUITE_P(Hosts, MemberApart, testing::Bool());

/* ---- views ------------------------------------------------------------------------------------
 */

TEST(Member, TwoReplicasReduceOverViews)
{
    Job job(2, 2);
    auto first = views(job.all(), {0});
    expect_view(job.all(), first, 2, 0);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(first[static_cast<size_t>(i)].rank, first[0].rank) << "ranks of one replica";
        EXPECT_EQ(first[static_cast<size_t>(2 + i)].rank, 1 - first[0].rank);
    }
    for (const View &view : first) {
        EXPECT_EQ(view.nhealthy, 2) << view.text;
        EXPECT_EQ(view.behind, 0) << view.text;
    }
}

/* As long as nothing changes, the view and the communicator stay; nothing is opened. */
TEST(Member, TheSameViewIsTheSameCommunicator)
{
    Job job(2, 2);
    auto first = views(job.all(), {0});
    expect_view(job.all(), first, 2, 0);
    for (uint64_t step = 1; step <= 20; step++) {
        auto next = views(job.all(), {step});
        expect_view(job.all(), next, 2, step);
        for (const View &view : next) {
            EXPECT_EQ(view.same, 1) << view.text;
            EXPECT_EQ(view.epoch, first[0].epoch) << view.text;
            EXPECT_EQ(view.nhealthy, 2) << view.text;
        }
    }
}

/* One rank dies in a step. The step of its rank group fails, that of the other does not; nothing is
 * committed by replicas that have lost it. The other replica goes on at once. A replacement comes,
 * and its replica is behind. */
TEST_P(MemberApart, AReplicaThatLosesARankComesBackBehind)
{
    Job job(2, 2, patient(), GetParam());
    Rank &a0 = job.at("a", 0), &b0 = job.at("b", 0), &b1 = job.at("b", 1);
    expect_view(job.all(), views(job.all(), {5}), 2, 5);
    b1.child.tell("sum");
    job.at("a", 1).child.signal(SIGKILL);
    EXPECT_EQ(b1.sum(), -ftcclRemoteError) << b1.text;
    for (Rank *rank : Ranks{&a0, &b0})
        rank->child.tell("sum");
    for (Rank *rank : Ranks{&a0, &b0})
        EXPECT_EQ(rank->sum(), 2) << rank->text;
    a0.tell_commit(5, 1);
    b0.tell_commit(5, 1);
    b1.tell_commit(5, 0);
    for (Rank *rank : Ranks{&a0, &b0, &b1})
        EXPECT_EQ(rank->commit(), 0) << rank->text;
    /* a0 asks, too, and waits for its replica */
    a0.child.tell("view 5");
    auto alone = views({&b0, &b1}, {5});
    expect_view({&b0, &b1}, alone, 1, 5);
    Rank *again = job.add({"a", 1, 2});
    ASSERT_EQ(again->joined(), ftcclSuccess) << again->text;
    again->child.tell("view 0");
    auto both = views_of({&b0, &b1}, 9, 2);
    both.push_back(a0.view());
    both.push_back(again->view());
    expect_view({&b0, &b1, &a0, again}, both, 2, 9);
    for (size_t i = 0; i < 4; i++) {
        EXPECT_EQ(both[i].behind, i >= 2) << both[i].text;
        EXPECT_EQ(both[i].nhealthy, 1) << both[i].text;
        EXPECT_EQ(both[i].sources, i >= 2 ? std::vector<int>{both[0].rank} : std::vector<int>{})
            << both[i].text;
    }
}

/* A standby takes the place of a rank that dies. */
TEST_P(MemberApart, AStandbyTakesTheRole)
{
    Job job(2, 1, patient(), GetParam());
    Rank *standby = job.add({"-", 0, 0});
    ASSERT_EQ(standby->joined(), ftcclSuccess) << standby->text;
    standby->child.tell("role");
    EXPECT_EQ(standby->child.line(kBound), "role 0 [] -1 0 | ");
    Rank &a = job.at("a", 0), &b = job.at("b", 0);
    expect_view({&a, &b}, views({&a, &b}, {3}), 2, 3);
    standby->child.tell("view 0");
    a.child.signal(SIGKILL);
    View other = views_of({&b}, 4, 2)[0], has = standby->view();
    expect_view({standby, &b}, {has, other}, 2, 4);
    EXPECT_EQ(has.behind, 1) << has.text;
    standby->child.tell("role");
    EXPECT_EQ(standby->child.line(kBound), "role 0 [a] 0 1 | ");
}

/* A replica that is alive and does not ask is waited for no longer than the window; it may come
 * later. Fewer replicas than minMembers make no view. */
TEST_P(MemberApart, AViewWaitsForTheWindow)
{
    Env env = patient();
    env["FTCCL_JOIN_WINDOW_MS"] = "3000";
    Job job(3, 1, env, GetParam());
    Rank &a = job.at("a", 0), &b = job.at("b", 0), &c = job.at("c", 0);
    expect_view({&a, &b, &c}, views({&a, &b, &c}, {0}), 3, 0);
    auto two = views({&a, &b}, {1});
    expect_view({&a, &b}, two, 2, 1);
    c.child.tell("view 0");
    auto three = views_of({&a, &b}, 2, 3);
    three.push_back(c.view());
    expect_view({&a, &b, &c}, three, 3, 2);
    EXPECT_EQ(three[2].behind, 1) << three[2].text;
}

TEST(Member, FewerThanMinMembersMakeNoView)
{
    Env env = patient();
    env["FTCCL_MIN_MEMBERS"] = "2";
    env["FTCCL_INIT_TIMEOUT_MS"] = "5000";
    env["FTCCL_JOIN_WINDOW_MS"] = "0";
    Job job(1, 1, env);
    View alone = job.at("a", 0).view(7);
    EXPECT_EQ(alone.result, ftcclTimeout) << alone.text;
    EXPECT_GT(alone.text.size() - alone.text.find('|'), 20u) << alone.text;
}

/* ---- commits ----------------------------------------------------------------------------------
 */

std::vector<int> commits(const Ranks &ranks, uint64_t step, const std::vector<int> &ok)
{
    std::vector<int> all;
    for (size_t i = 0; i < ranks.size(); i++)
        ranks[i]->tell_commit(step, ok[i % ok.size()]);
    for (Rank *rank : ranks)
        all.push_back(rank->commit());
    return all;
}

TEST_P(MemberApart, AReplicaCommitsOnAllItsRanksOrOnNone)
{
    Job job(2, 3, patient(), GetParam());
    expect_view(job.all(), views(job.all(), {0}), 2, 0);
    EXPECT_EQ(commits(job.all(), 0, {1}), std::vector<int>(6, 1));
    EXPECT_EQ(commits(job.all(), 1, {1, 1, 1, 1, 0, 1}), (std::vector<int>{1, 1, 1, 0, 0, 0}));
    EXPECT_EQ(commits(job.all(), 2, {1}), std::vector<int>(6, 1));
    Ranks a{&job.at("a", 0), &job.at("a", 1), &job.at("a", 2)},
        b{&job.at("b", 0), &job.at("b", 1), &job.at("b", 2)};
    /* one gives another step */
    for (size_t i = 0; i < 3; i++)
        a[i]->tell_commit(i == 1 ? 7 : 3, 1);
    for (Rank *rank : a)
        EXPECT_EQ(rank->commit(), -ftcclInvalidUsage) << rank->text;
    EXPECT_EQ(commits(a, 4, {1}), std::vector<int>(3, 1));
    /* one dies before its word */
    a[0]->tell_commit(5, 1);
    a[1]->tell_commit(5, 1);
    a[2]->child.signal(SIGKILL);
    EXPECT_EQ(a[0]->commit(), 0) << a[0]->text;
    EXPECT_EQ(a[1]->commit(), 0) << a[1]->text;
    EXPECT_EQ(commits({a[0], a[1]}, 6, {1}), std::vector<int>(2, 0));
    EXPECT_EQ(commits(b, 5, {1}), std::vector<int>(3, 1));
}

TEST(Member, ACommitBeforeTheFirstViewIsRefused)
{
    Job job(1, 1);
    Rank &a = job.at("a", 0);
    a.tell_commit(0, 1);
    EXPECT_EQ(a.commit(), -ftcclInvalidUsage) << a.text;
}

/* ---- the coordinator --------------------------------------------------------------------------
 */

/* Without a coordinator collectives and commits go on, and a new one learns everything. */
TEST_P(MemberApart, AnotherCoordinatorTakesOver)
{
    Job job(2, 2, patient(), GetParam());
    auto first = views(job.all(), {0});
    expect_view(job.all(), first, 2, 0);
    job.coordinator.stop();
    for (int i = 0; i < 3; i++) {
        for (Rank *rank : job.all())
            rank->child.tell("sum");
        for (Rank *rank : job.all())
            EXPECT_EQ(rank->sum(), 2) << rank->text;
        EXPECT_EQ(commits(job.all(), 1, {1}), std::vector<int>(4, 1));
    }
    for (Rank *rank : job.all())
        rank->child.tell("view 3");
    job.coordinator.start_again();
    std::vector<View> next;
    for (Rank *rank : job.all())
        next.push_back(rank->view());
    expect_view(job.all(), next, 2, 3);
    EXPECT_GE(next[0].epoch, first[0].epoch);
    EXPECT_EQ(next[0].nhealthy, 2) << next[0].text;
}

/* A stopped process neither dies nor answers. The others' collective, whose deadline is a minute,
 * ends when the coordinator has missed it for suspectMs. Later it runs again, and is a member of
 * the next view, over the same engine. */
TEST_P(MemberApart, AStoppedRankEndsTheViewAndComesBack)
{
    Env env{{"FTCCL_SUSPECT_MS", "1500"}, {"FTCCL_JOIN_WINDOW_MS", "3000"}};
    Job job(3, 1, env, GetParam());
    Rank &a = job.at("a", 0), &b = job.at("b", 0), &c = job.at("c", 0);
    expect_view(job.all(), views(job.all(), {0}), 3, 0);
    c.child.signal(SIGSTOP);
    double begun = proc::now();
    a.child.tell("sum");
    b.child.tell("sum");
    EXPECT_EQ(a.sum(), -ftcclRemoteError) << a.text;
    EXPECT_EQ(b.sum(), -ftcclRemoteError) << b.text;
    EXPECT_LT(proc::now() - begun, 45) << "not the deadline of 60 s";
    expect_view({&a, &b}, views({&a, &b}, {1}), 2, 1);
    c.child.signal(SIGCONT);
    c.child.tell("view 0");
    auto all = views_of({&a, &b}, 2, 3);
    all.push_back(c.view());
    expect_view({&a, &b, &c}, all, 3, 2);
    EXPECT_EQ(all[2].behind, 1) << all[2].text;
    EXPECT_EQ(all[2].sources.size(), 2u) << all[2].text;
}

/* The same, for a rank whose replica waits for it in a commit: its replica leaves it out. */
TEST_P(MemberApart, AStoppedRankIsLeftOutOfACommitAndComesBack)
{
    Env env{{"FTCCL_SUSPECT_MS", "1500"}, {"FTCCL_JOIN_WINDOW_MS", "3000"}};
    Job job(1, 3, env, GetParam());
    Rank &x = job.at("a", 0), &y = job.at("a", 1), &z = job.at("a", 2);
    expect_view(job.all(), views(job.all(), {0}), 1, 0);
    z.child.signal(SIGSTOP);
    EXPECT_EQ(commits({&x, &y}, 0, {1}), (std::vector<int>{0, 0}));
    x.child.tell("view 0");
    y.child.tell("view 0");
    z.child.signal(SIGCONT);
    z.tell_commit(0, 1);
    EXPECT_EQ(z.commit(), 0) << z.text;
    z.child.tell("view 0");
    std::vector<View> all;
    for (Rank *rank : job.all())
        all.push_back(rank->view());
    expect_view(job.all(), all, 1, 0);
    EXPECT_EQ(commits(job.all(), 1, {1}), std::vector<int>(3, 1));
}

/* ---- who may join -----------------------------------------------------------------------------
 */

TEST(Member, ARoleBelongsToOneProcess)
{
    Env hasty = patient();
    hasty["FTCCL_INIT_TIMEOUT_MS"] = "5000";
    Job job(1, 1);
    Rank *second = job.add({"a", 0, 1}, hasty);
    EXPECT_NE(second->joined(), ftcclSuccess);
    EXPECT_NE(second->text.find("replica a"), std::string::npos) << second->text;
    job.owned[0]->child.signal(SIGKILL);
    Rank *third = job.add({"a", 0, 1});
    EXPECT_EQ(third->joined(), ftcclSuccess) << third->text;
    expect_view({third}, {third->view(0)}, 1, 0);
}

TEST(Member, WhoDoesNotFitIsRefused)
{
    Job job(1, 2);
    Env other = patient();
    other["FTCCL_SECRET"] = "another-secret-than-theirs";
    Rank *stranger = job.add({"b", 0, 2}, other);
    EXPECT_EQ(stranger->joined(), ftcclRemoteError) << stranger->text;
    Env none = patient();
    none["FTCCL_SECRET"] = "";
    Rank *open = job.add({"b", 0, 2}, none);
    EXPECT_EQ(open->joined(), ftcclInvalidUsage) << open->text;
    EXPECT_NE(open->text.find("FTCCL_SECRET_FILE"), std::string::npos) << open->text;
    Rank *size = job.add({"a", 2, 3});
    EXPECT_EQ(size->joined(), ftcclInvalidUsage) << size->text;
    Env chunks = patient();
    chunks["FTCCL_CHUNKS"] = "2";
    Rank *settings = job.add({"b", 0, 2}, chunks);
    EXPECT_EQ(settings->joined(), ftcclInvalidUsage) << settings->text;
    Env retry = patient();
    retry["FTCCL_FAILURE_POLICY"] = "retry";
    Rank *policy = job.add({"b", 0, 2}, retry);
    EXPECT_EQ(policy->joined(), ftcclInvalidUsage) << policy->text;
}

TEST(Member, WhoLeavesIsNotWaitedFor)
{
    Job job(3, 1);
    expect_view(job.all(), views(job.all(), {0}), 3, 0);
    EXPECT_EQ(job.at("b", 0).left(), ftcclSuccess);
    Rank &a = job.at("a", 0), &c = job.at("c", 0);
    expect_view({&a, &c}, views({&a, &c}, {1}), 2, 1);
    EXPECT_EQ(c.left(), ftcclSuccess);
    expect_view({&a}, {a.view(2)}, 1, 2);
    EXPECT_EQ(a.left(), ftcclSuccess);
}

/* ---- in one process ---------------------------------------------------------------------------
 */

/* A member of this process. */
struct Local {
    ftcclMember_t handle = nullptr;
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream = nullptr;
    ftcclView_t view{};
    Local(const Coordinator &coordinator, const std::string &replica, int rank = 0, int size = 1,
          ftcclConfig_t *config = nullptr)
    {
        view.size = sizeof view;
        EXPECT_OK(ftcclMemberJoin(coordinator.address.c_str(), "threads", replica.c_str(), rank,
                                  size, config, &handle));
        EXPECT_OK(ftcclStreamCreate(&stream));
    }
    ~Local()
    {
        EXPECT_OK(ftcclMemberLeave(handle));
        EXPECT_OK(ftcclStreamDestroy(stream));
    }
    Local(const Local &) = delete;
    void next(uint64_t step)
    {
        EXPECT_OK(ftcclMemberView(handle, step, &view, &comm));
    }
    double sum() const
    {
        double value = 1;
        EXPECT_OK(ftcclAllReduce(&value, &value, 1, ftcclDouble, ftcclSum, comm, stream));
        EXPECT_OK(ftcclStreamSynchronize(stream));
        return value;
    }
};

TEST(Member, ThreadsOfOneProcess)
{
    Coordinator coordinator;
    proc::in_threads(6, [&](int i) {
        Local member(coordinator, std::string(1, static_cast<char>('a' + i / 2)), i % 2, 2);
        do
            member.next(0); /* the first views may be of fewer replicas */
        while (member.view.nranks < 3);
        for (uint64_t step = 0; step < 5; step++) {
            EXPECT_EQ(member.sum(), 3);
            int commit = 0;
            EXPECT_OK(ftcclMemberCommit(member.handle, step, 1, &commit));
            EXPECT_EQ(commit, 1);
        }
    });
}

TEST(Member, ArgumentsOfJoinAreChecked)
{
    Coordinator coordinator;
    const char *at = coordinator.address.c_str();
    ftcclMember_t none = nullptr;
    std::string longer(64, 'n');
    EXPECT_CALLER(ftcclMemberJoin(at, "g", "a", 0, 1, nullptr, nullptr));
    EXPECT_CALLER(ftcclMemberJoin(at, nullptr, "a", 0, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(at, "", "a", 0, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(at, longer.c_str(), "a", 0, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(at, "g", longer.c_str(), 0, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(at, "g", "a", 1, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(at, "g", "a", -1, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(at, "g", "a", 0, 1 << 20, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin("nonsense", "g", "a", 0, 1, nullptr, &none));
    EXPECT_CALLER(ftcclMemberJoin(nullptr, "g", "a", 0, 1, nullptr, &none)) << "no coordinator";
    EXPECT_EQ(none, nullptr);
}

TEST(Member, HandlesAreChecked)
{
    ftcclView_t view{};
    ftcclComm_t comm = nullptr;
    ftcclCoordinator_t other = nullptr;
    int commit = 1;
    char address[80], small[8];
    EXPECT_CALLER(ftcclMemberView(nullptr, 0, &view, &comm));
    EXPECT_CALLER(ftcclMemberCommit(reinterpret_cast<ftcclMember_t>(&view), 0, 1, &commit));
    EXPECT_CALLER(ftcclMemberLeave(nullptr));
    EXPECT_CALLER(ftcclCoordinatorStart(nullptr, address, sizeof address, &other));
    EXPECT_CALLER(ftcclCoordinatorStart("127.0.0.1:0", small, sizeof small, &other));
    EXPECT_CALLER(ftcclCoordinatorStop(nullptr));
    Coordinator coordinator;
    Local member(coordinator, std::string(63, 'n'));
    EXPECT_CALLER(ftcclMemberView(member.handle, 0, &view, &comm)) << "no size";
    EXPECT_CALLER(ftcclMemberView(member.handle, 0, nullptr, &comm));
    EXPECT_CALLER(ftcclMemberCommit(member.handle, 0, 1, nullptr));
    EXPECT_CALLER(ftcclMemberRole(member.handle, small, sizeof small, nullptr, nullptr));
}

/* The communicator of a view is the member's. One that a user made of it is the user's. */
TEST(Member, TheMemberEndsItsCommunicators)
{
    Coordinator coordinator;
    Local member(coordinator, "a");
    member.next(0);
    EXPECT_EQ(ftcclCommDestroy(member.comm), ftcclInvalidUsage);
    EXPECT_EQ(ftcclCommAbort(member.comm), ftcclInvalidUsage);
    EXPECT_EQ(ftcclCommFinalize(member.comm), ftcclInvalidUsage);
    EXPECT_EQ(member.sum(), 1);
    ftcclComm_t child = nullptr, last = member.comm;
    EXPECT_OK(ftcclCommSplit(member.comm, 0, 0, &child, nullptr));
    EXPECT_OK(ftcclCommDestroy(child));
    EXPECT_OK(ftcclCommRevoke(member.comm, FTCCL_REVOKE_DEFAULT));
    member.next(1);
    EXPECT_NE(member.comm, last);
    EXPECT_CALLER(ftcclCommDestroy(last));
    EXPECT_EQ(member.sum(), 1);
}

/* A communicator that was split from a view is usable after the member has left. */
TEST(Member, AChildOutlivesItsMember)
{
    Coordinator coordinator;
    ftcclComm_t child = nullptr;
    {
        Local member(coordinator, "a");
        member.next(0);
        EXPECT_OK(ftcclCommSplit(member.comm, 0, 0, &child, nullptr));
    }
    double value = 1;
    ftcclStream_t stream = nullptr;
    ASSERT_OK(ftcclStreamCreate(&stream));
    EXPECT_OK(ftcclAllReduce(&value, &value, 1, ftcclDouble, ftcclSum, child, stream));
    EXPECT_OK(ftcclStreamSynchronize(stream));
    EXPECT_OK(ftcclStreamDestroy(stream));
    EXPECT_OK(ftcclCommDestroy(child));
}

/* Allocated; 0 under sanitizers, which have allocators of their own. */
size_t heap_bytes()
{
    return mallinfo2().uordblks;
}

/* What this process holds does not grow with the number of views. One member stays; another comes
 * and goes, each time with a new engine. FT_MEMBER_VIEWS sets their number. */
TEST(Member, ManyViewsHoldNothing)
{
    const char *views = getenv("FT_MEMBER_VIEWS");
    int many = views ? std::stoi(views) : 200;
    Coordinator coordinator;
    Local stays(coordinator, "stays");
    auto round = [&](uint64_t step) {
        std::thread guest([&] {
            Local member(coordinator, "guest");
            do
                member.next(step);
            while (member.view.nranks < 2);
            EXPECT_EQ(member.sum(), 2);
        });
        do
            stays.next(step);
        while (stays.view.nranks < 2);
        EXPECT_EQ(stays.sum(), 2);
        guest.join();
        stays.next(step);
        EXPECT_EQ(stays.view.nranks, 1);
    };
    for (uint64_t i = 0; i < 20; i++)
        round(i);
    int fds = proc::descriptors(), threads = proc::threads();
    size_t bytes = heap_bytes();
    size_t shared = proc::shm_of(getpid()).size();
    for (uint64_t i = 0; i < static_cast<uint64_t>(many); i++)
        round(20 + i);
    EXPECT_LE(proc::descriptors(), fds + 2) << proc::descriptor_names();
    EXPECT_LE(proc::threads(), threads + 1);
    EXPECT_LE(proc::shm_of(getpid()).size(), shared + 2);
    /* a peer that is kept takes more than a kilobyte */
    EXPECT_LE(heap_bytes(), bytes + 64 * 1024 + 64 * static_cast<size_t>(many));
    printf("%d views: %zu bytes, %zu before\n", 2 * many, heap_bytes(), bytes);
}

/* ---- a random story ---------------------------------------------------------------------------
 */

/* The state of a replica after a step, whoever takes part. */
uint64_t next_state(uint64_t state, uint64_t step)
{
    return (state ^ step) * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
}

uint64_t state_at(uint64_t step)
{
    uint64_t state = 1;
    for (uint64_t i = 0; i < step; i++)
        state = next_state(state, i);
    return state;
}

/* A rank that trains: it takes the state of a healthy rank if it is behind, computes, and keeps the
 * result only if its replica commits. */
struct Trainer {
    Member member;
    ftcclView_t view{};
    uint64_t step = 0, state = 1, tried = 0, outcomes = 0;

    ftcclResult_t reduce(uint64_t *values, size_t count, ftcclRedOp_t op) const
    {
        ftcclResult_t result = ftcclAllReduce(values, values, count, ftcclUint64, op, member.comm,
                                              member.stream);
        return result == ftcclSuccess ? ftcclStreamSynchronize(member.stream) : result;
    }
    bool enter()
    {
        uint64_t epoch = view.epoch;
        view.size = sizeof view;
        ftcclResult_t result = ftcclMemberView(member.handle, step, &view, &member.comm);
        if (result == ftcclTimeout)
            return false;
        if (result != ftcclSuccess) {
            printf("bad view %d %s\n", result, why(result));
            exit(3);
        }
        if (view.epoch != epoch && tried > 0) {
            printf("epoch %llu tried %llu outcomes %llx\n", static_cast<unsigned long long>(epoch),
                   static_cast<unsigned long long>(tried),
                   static_cast<unsigned long long>(outcomes));
            tried = outcomes = 0;
        }
        return true;
    }
    /* The state of the healthy ranks, which all have the same one. There are none if the only
     * replica that is left has lost a rank: then all begin with a checkpoint of that step. */
    bool catch_up()
    {
        if (view.nhealthy == 0) {
            state = state_at(view.step);
            step = view.step;
            return true;
        }
        uint64_t words[2] = {view.behind ? 0 : state & 0xffffffffu, view.behind ? 0 : state >> 32};
        if (reduce(words, 2, ftcclMax) != ftcclSuccess)
            return false;
        if (view.behind)
            state = words[0] | words[1] << 32;
        step = view.step;
        return true;
    }
    void turn()
    {
        if (!enter())
            return;
        bool ok = view.nhealthy == view.nranks || catch_up();
        uint64_t one = 1;
        ok = ok && reduce(&one, 1, ftcclSum) == ftcclSuccess &&
             one == static_cast<uint64_t>(view.nranks);
        int commit = 0;
        ftcclResult_t result = ftcclMemberCommit(member.handle, view.step, ok, &commit);
        tried++;
        outcomes = outcomes * 31 + (result == ftcclSuccess ? 2 + static_cast<unsigned>(commit) : 1);
        if (!commit)
            return;
        state = next_state(state, step);
        step++;
        if (state == state_at(step))
            return;
        printf("bad state at step %llu\n", static_cast<unsigned long long>(step));
        exit(4);
    }
};

/* trainer COORDINATOR REPLICA RANK SIZE: until it is killed */
CHILD(trainer)
{
    Trainer trainer;
    ftcclResult_t result = ftcclMemberJoin(arguments[0].c_str(), "story", arguments[1].c_str(),
                                           std::stoi(arguments[2]), std::stoi(arguments[3]),
                                           nullptr, &trainer.member.handle);
    if (result != ftcclSuccess) {
        printf("not joined %d %s\n", result, why(result));
        return 2;
    }
    if (ftcclStreamCreate(&trainer.member.stream) != ftcclSuccess)
        return 1;
    double said = 0;
    for (;;) {
        trainer.turn();
        if (proc::now() - said > 0.05) {
            said = proc::now();
            printf("at %llu of %d\n", static_cast<unsigned long long>(trainer.step),
                   trainer.view.nranks);
        }
        usleep(1000); /* the step computes */
    }
}

class Story
{
  public:
    static constexpr int kReplicas = 3, kSize = 2;
    explicit Story(unsigned seed) : random_(seed)
    {
        for (int i = 0; i < kReplicas * kSize; i++)
            start(i);
    }
    void run(double seconds)
    {
        double end = proc::now() + seconds;
        while (proc::now() < end && !testing::Test::HasFailure()) {
            hear(0.001 * static_cast<double>(50 + random_() % 400));
            act();
        }
    }
    /* All go on together, from where the last one of them was. */
    void settle()
    {
        if (!served_)
            serve();
        for (int i = 0; i < kReplicas * kSize; i++) {
            if (stopped_[at(i)])
                resume(i);
            if (!child_[at(i)])
                start(i);
        }
        uint64_t from = step_;
        double end = proc::now() + 2 * kBound;
        auto all_there = [&] {
            for (int i = 0; i < kReplicas * kSize; i++)
                if (last_[at(i)] < from + 3 || nranks_[at(i)] != kReplicas)
                    return false;
            return true;
        };
        while (!all_there() && proc::now() < end && !testing::Test::HasFailure())
            hear(0.05);
        EXPECT_TRUE(all_there()) << told();
        check();
    }

  private:
    std::mt19937 random_;
    Coordinator coordinator_;
    bool served_ = true;
    std::unique_ptr<proc::Child> child_[kReplicas * kSize];
    bool stopped_[kReplicas * kSize] = {};
    uint64_t last_[kReplicas * kSize] = {}, step_ = 0;
    int nranks_[kReplicas * kSize] = {};
    std::vector<std::string> story_;
    /* of a replica's ranks in an epoch: how many commits they have tried, and the outcomes */
    std::map<std::pair<int, std::string>, std::vector<std::string>> outcomes_;

    static size_t at(int i)
    {
        return static_cast<size_t>(i);
    }
    void note(const std::string &what)
    {
        story_.push_back(what);
    }
    std::string told() const
    {
        std::string text;
        for (const auto &line : story_)
            text += line + "\n";
        for (int i = 0; i < kReplicas * kSize; i++)
            text += "rank " + std::to_string(i) + " at " + std::to_string(last_[at(i)]) + " of " +
                    std::to_string(nranks_[at(i)]) + "\n";
        return text;
    }
    void start(int i)
    {
        note("start " + std::to_string(i));
        child_[at(i)] = std::make_unique<proc::Child>(
            "trainer",
            std::vector<std::string>{coordinator_.address, std::string(1, "abc"[i / kSize]),
                                     std::to_string(i % kSize), std::to_string(kSize)},
            Env{{"FTCCL_SUSPECT_MS", "1000"},
                {"FTCCL_JOIN_WINDOW_MS", "200"},
                {"FTCCL_INIT_TIMEOUT_MS", "20000"}});
        last_[at(i)] = 0;
        nranks_[at(i)] = 0;
    }
    void serve()
    {
        note("another coordinator");
        coordinator_.start_again();
        served_ = true;
    }
    void resume(int i)
    {
        note("go on " + std::to_string(i));
        child_[at(i)]->signal(SIGCONT);
        stopped_[at(i)] = false;
    }
    void kill(int i)
    {
        note("kill " + std::to_string(i));
        child_[at(i)]->signal(SIGKILL);
        child_[at(i)]->wait(kBound);
        child_[at(i)].reset();
        stopped_[at(i)] = false;
    }
    void stop(int i)
    {
        note("stop " + std::to_string(i));
        child_[at(i)]->signal(SIGSTOP);
        stopped_[at(i)] = true;
    }
    void act()
    {
        int i = static_cast<int>(random_() % (kReplicas * kSize)),
            what = static_cast<int>(random_() % 10);
        if (what == 0 && served_) {
            note("no coordinator");
            coordinator_.stop();
            served_ = false;
        } else if (!served_) {
            serve();
        } else if (!child_[at(i)])
            start(i);
        else if (stopped_[at(i)])
            resume(i);
        else if (what <= 3)
            kill(i);
        else if (what <= 5)
            stop(i);
    }
    void take(int i, const std::string &line)
    {
        std::istringstream in(line);
        std::string what, of;
        in >> what;
        if (what == "at" && in >> last_[at(i)] >> of >> nranks_[at(i)])
            step_ = std::max(step_, last_[at(i)]);
        else if (what == "epoch" && in >> of)
            outcomes_[{i / kSize, of}].push_back(line);
        else
            ADD_FAILURE() << "rank " << i << ": " << line << "\n" << told();
    }
    void hear(double seconds)
    {
        for (double end = proc::now() + seconds; proc::now() < end;)
            for (int i = 0; i < kReplicas * kSize; i++)
                if (child_[at(i)] && !stopped_[at(i)])
                    for (std::string line; !(line = child_[at(i)]->line(0.002)).empty();)
                        take(i, line);
    }
    /* Ranks of a replica that went through the same view had the same outcomes. */
    void check()
    {
        size_t both = 0;
        for (const auto &entry : outcomes_) {
            both += entry.second.size() > 1;
            for (const auto &line : entry.second)
                EXPECT_EQ(line, entry.second[0]) << "replica " << entry.first.first << "\n"
                                                 << told();
        }
        printf("%zu views of a replica compared, %llu steps, %zu events\n", both,
               static_cast<unsigned long long>(step_), story_.size());
    }
};

/* FT_SEED repeats a story, FT_STORY_SECONDS sets its length. */
TEST(Member, AStoryOfKillsStopsAndCoordinators)
{
    const char *given = getenv("FT_SEED"), *length = getenv("FT_STORY_SECONDS");
    unsigned seed = given ? static_cast<unsigned>(std::stoul(given)) : std::random_device{}();
    printf("replay: FT_SEED=%u tests/proc/member_test --gtest_filter=Member.AStory*\n", seed);
    Story story(seed);
    story.run(length ? std::stod(length) : 8);
    story.settle();
}

} // namespace
