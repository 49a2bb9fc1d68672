/*
 * Property: if a process with two members and a coordinator once runs out of memory, descriptors or
 * threads, at any call of the library, nothing crashes, hangs or leaks. A call that fails may be
 * repeated, and soon both members commit a step in a view of both. Method: the n-th call of a class
 * fails (fail.h) while the members join, go through views and leave. A run draws some n of each
 * class by FT_SEED. FT_NOMEM=all runs all; FT_NOMEM=memory:37 runs one.
 */
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>

#include "tests/nomem/fail.h"
#include "tests/proc/proc.h"

namespace
{

using namespace nomem;

const int kSecretSet = setenv("FTCCL_SECRET", "members-without-memory", 0);
constexpr int kMembers = 2, kGoal = 2, kDraws = 10;
constexpr double kBound = 90; /* seconds, only against hangs */

ftcclConfig_t impatient()
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = 6000;
    options.initTimeoutMs = 6000;
    options.suspectMs = 2000;
    options.joinWindowMs = 200;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    return config;
}

/* Both go on until both have reached their goal, or the time is over. */
struct Goal {
    std::atomic<int> reached{0};
    double end = proc::now() + kBound;
    bool is_over() const
    {
        return reached == kMembers || proc::now() > end;
    }
};

ftcclMember_t join(const std::string &coordinator, int i, const Goal &goal)
{
    ftcclConfig_t config = impatient();
    ftcclMember_t member = nullptr;
    while (!goal.is_over())
        if (ftcclMemberJoin(coordinator.c_str(), "g", i ? "a" : "b", 0, 1, &config, &member) ==
            ftcclSuccess)
            return member;
    return nullptr;
}

/* One step, and whether both were in it. */
bool step(ftcclMember_t member, ftcclStream_t stream, uint64_t number)
{
    ftcclView_t view{};
    view.size = sizeof view;
    ftcclComm_t comm = nullptr;
    int commit = 0;
    float value = 1;
    if (ftcclMemberView(member, number, &view, &comm) != ftcclSuccess)
        return false;
    bool ok = ftcclAllReduce(&value, &value, 1, ftcclFloat, ftcclSum, comm, stream) ==
                  ftcclSuccess &&
              ftcclStreamSynchronize(stream) == ftcclSuccess;
    EXPECT_TRUE(!ok || value == static_cast<float>(view.nranks)) << value;
    ftcclResult_t result = ftcclMemberCommit(member, number, ok, &commit);
    bool committed = result == ftcclSuccess && commit && view.nranks == kMembers;
    /* the next view is a new one */
    if (committed) {
        EXPECT_EQ(ftcclCommRevoke(comm, FTCCL_REVOKE_DEFAULT), ftcclSuccess);
    }
    return committed;
}

void live(const std::string &coordinator, int i, Goal &goal)
{
    ftcclStream_t stream = nullptr;
    ftcclMember_t member = join(coordinator, i, goal);
    int committed = 0;
    while (!stream && !goal.is_over())
        ftcclStreamCreate(&stream);
    for (uint64_t number = 0; member && stream && !goal.is_over(); number++) {
        if (step(member, stream, number) && ++committed == kGoal)
            goal.reached++;
    }
    if (member) {
        EXPECT_OK(ftcclMemberLeave(member));
    }
    if (stream) {
        EXPECT_OK(ftcclStreamDestroy(stream));
    }
}

/* Returns how many calls of the class there were. */
long play(Class which, long n)
{
    ftcclCoordinator_t coordinator = nullptr;
    char address[80];
    EXPECT_OK(ftcclCoordinatorStart("127.0.0.1:0", address, sizeof address, &coordinator));
    Goal goal;
    arm(which, n);
    proc::in_threads(kMembers, [&](int i) { live(address, i, goal); });
    disarm();
    EXPECT_EQ(goal.reached, kMembers) << failed_call();
    EXPECT_OK(ftcclCoordinatorStop(coordinator));
    return counted(which);
}

class NoMemory : public testing::TestWithParam<int>
{
};

TEST_P(NoMemory, MembersGoOn)
{
    Class which = static_cast<Class>(GetParam());
    const char *what = getenv("FT_NOMEM"), *given = getenv("FT_SEED");
    std::string prefix = std::string(class_names[which]) + ":", text = what ? what : "";
    unsigned seed = given ? static_cast<unsigned>(std::stoul(given)) : std::random_device{}();
    std::mt19937 random(seed);
    play(which, 0); /* what a process keeps for ever */
    int fds = proc::descriptors(), threads = proc::threads();
    long most = play(which, 0);
    std::vector<long> all;
    if (text.compare(0, prefix.size(), prefix) == 0)
        all.push_back(std::stol(text.substr(prefix.size())));
    else if (text == "all")
        for (long n = 1; n <= most; n++)
            all.push_back(n);
    else
        for (int i = 0; i < kDraws && most > 0; i++)
            all.push_back(1 + static_cast<long>(random() % static_cast<unsigned long>(most)));
    printf("%zu of %ld calls; replay: FT_SEED=%u\n", all.size(), most, seed);
    for (long n : all) {
        double begun = proc::now();
        play(which, n);
        EXPECT_LE(proc::descriptors(), fds + 1) << failed_call() << proc::descriptor_names();
        EXPECT_LE(proc::threads(), threads + 1) << failed_call();
        if (HasFailure() || proc::now() - begun > 3) {
            printf("FT_NOMEM=%s%ld: %s, %.1f s\n", prefix.c_str(), n, failed_call().c_str(),
                   proc::now() - begun);
            fflush(stdout);
        }
        if (HasFailure())
            return;
    }
}

INSTANTIATE_TEST_SUITE_P(Of, NoMemory, testing::Range(0, static_cast<int>(CLASSES)),
                         [](const testing::TestParamInfo<int> &i) {
                             std::string name = class_names[i.param];
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

} // namespace
