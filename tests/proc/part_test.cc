/*
 * Property 1: two live ranks cannot reach each other any more, in one or both directions, and all
 * others can. Then the first Shrink leaves one of the two out (the higher rank if both have noticed
 * it), and the others compute within a second after their error. Method: one process in each of
 * four network namespaces; packets between two of them are dropped. Every rank calls Shrink at its
 * error, and reduces. Property 2: a short break is no failure.
 */
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "tests/campaign/net.h"
#include "tests/proc/proc.h"

namespace
{

ftcclResult_t reduce(ftcclComm_t comm)
{
    static std::vector<float> data(1000);
    ftcclResult_t result = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclFloat,
                                          ftcclSum, comm, nullptr);
    return result == ftcclSuccess ? ftcclStreamSynchronize(nullptr) : result;
}

/* NAMESPACE NRANKS RANK. Returns 0, or the exit status. */
int join(const std::vector<std::string> &arguments, ftcclComm_t *comm)
{
    int ns = open(arguments[0].c_str(), O_RDONLY | O_CLOEXEC), n = std::stoi(arguments[1]),
        rank = std::stoi(arguments[2]);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0)
        return 3;
    char hex[1024];
    ftcclUniqueId id;
    if (rank == 0) {
        if (ftcclGetUniqueId(&id) != ftcclSuccess)
            return 4;
        printf("%s\n", proc::hex(id).c_str());
    } else {
        if (!fgets(hex, sizeof hex, stdin))
            return 5;
        id = proc::unhex(hex);
    }
    return ftcclCommInitRank(comm, n, id, rank) == ftcclSuccess ? 0 : 6;
}

/* host NAMESPACE NRANKS RANK: reduces until it fails, shrinks, reduces 50 times, tells how long
 * that took and how many are left. */
CHILD(host)
{
    ftcclComm_t comm, child;
    if (int status = join(arguments, &comm))
        return status;
    ftcclResult_t result = ftcclSuccess;
    for (int step = 0; result == ftcclSuccess; step++) {
        result = reduce(comm);
        if (step == 2)
            printf("ready\n");
    }
    double failed = proc::now(), first = 0;
    std::string why = ftcclGetLastError(comm);
    int lost[8], nlost = 0;
    ftcclCommGetFailedRanks(comm, lost, 8, &nlost);
    for (int i = 0; i < nlost; i++)
        why += " [" + std::to_string(lost[i]) + "]";
    result = ftcclCommShrink(comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT);
    if (result != ftcclSuccess) {
        printf("out %s\n", why.c_str());
        return 0;
    }
    for (int step = 0; step < 50 && result == ftcclSuccess; step++) {
        result = reduce(child);
        if (step == 0)
            first = proc::now() - failed;
    }
    int left = 0;
    ftcclCommCount(child, &left);
    printf("%s %d %.3f %s%s%s\n", result == ftcclSuccess ? "good" : "bad", left, first, why.c_str(),
           result == ftcclSuccess ? "" : "; then ",
           result == ftcclSuccess ? "" : ftcclGetLastError(child));
    char line[8];
    fgets(line, sizeof line, stdin); // its end is not to disturb the others
    return 0;
}

/* patient NAMESPACE NRANKS RANK: reduces for six seconds, and tells how that ended. */
CHILD(patient)
{
    ftcclComm_t comm;
    if (int status = join(arguments, &comm))
        return status;
    const double end = proc::now() + 6;
    float leaves = 0;
    ftcclResult_t result = ftcclSuccess;
    for (int step = 0; result == ftcclSuccess && leaves < 1; step++) {
        leaves = proc::now() > end;
        result = ftcclAllReduce(&leaves, &leaves, 1, ftcclFloat, ftcclSum, comm, nullptr);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(nullptr);
        if (step == 2)
            printf("ready\n");
    }
    printf("%s\n", result == ftcclSuccess ? "good" : ftcclGetLastError(comm));
    char line[8];
    fgets(line, sizeof line, stdin); // its end is not to disturb the others
    return 0;
}

using Ranks = std::vector<std::unique_ptr<proc::Child>>;

/* One rank in each namespace. Returns when all of them compute. */
void start(const campaign::Net &net, const char *child, Ranks &ranks)
{
    const int n = campaign::Net::HOSTS;
    for (int r = 0; r < n; r++)
        ranks.push_back(std::make_unique<proc::Child>(
            child, std::vector<std::string>{net.path(r), std::to_string(n), std::to_string(r)},
            std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", "tcp"}}));
    std::string id = ranks[0]->line();
    for (size_t r = 1; r < ranks.size(); r++)
        ranks[r]->tell(id);
    for (auto &rank : ranks)
        ASSERT_EQ(rank->line(), "ready");
}

struct Cut {
    int low, high;
    bool forth, back;
};

void PrintTo(const Cut &cut, std::ostream *out)
{
    *out << cut.low << (cut.back ? "<" : "-") << (cut.forth ? ">" : "-") << cut.high;
}

class Part : public testing::TestWithParam<Cut>
{
};

TEST_P(Part, TheFirstShrinkLeavesOneOut)
{
    const int n = campaign::Net::HOSTS;
    const Cut cut = GetParam();
    campaign::Net net;
    if (!net.missing().empty())
        GTEST_SKIP() << net.missing();
    Ranks rank;
    ASSERT_NO_FATAL_FAILURE(start(net, "host", rank));
    if (cut.forth)
        net.part(cut.low, cut.high);
    if (cut.back)
        net.part(cut.high, cut.low);
    int out = -1;
    bool low_noticed = false;
    for (int r = 0; r < n; r++) {
        std::string line = rank[static_cast<size_t>(r)]->line(60);
        printf("rank %d: %s\n", r, line.c_str());
        low_noticed |= r == cut.low && line.find("told by") == std::string::npos;
        int other = r == cut.low ? cut.high : cut.low;
        if (r == cut.low || r == cut.high) {
            EXPECT_NE(line.find(" [" + std::to_string(other) + "]"), std::string::npos);
        }
        if ((r == cut.low || r == cut.high) && line.substr(0, 3) == "out" && out < 0) {
            out = r;
            continue;
        }
        char word[8] = "";
        int left = 0;
        double seconds = 1e9;
        EXPECT_EQ(sscanf(line.c_str(), "%7s %d %lf", word, &left, &seconds), 3) << line;
        EXPECT_STREQ(word, "good") << line;
        EXPECT_EQ(left, n - 1) << line;
        EXPECT_LT(seconds, 1.0 * (getenv("FT_TEST_SLOWDOWN") ? 3 : 1)) << line;
    }
    EXPECT_NE(out, -1) << "both went on";
    if (cut.forth && cut.back && low_noticed) {
        EXPECT_EQ(out, cut.high);
    }
}

// What TCP repeats doubles its distance, up to a second. So after a break of 1.45 s, the first
// repetition that arrives may leave more than two seconds after the last answer.
TEST(Break, OfLessThanOneAndAHalfSecondsIsNoFailure)
{
    campaign::Net net;
    if (!net.missing().empty())
        GTEST_SKIP() << net.missing();
    Ranks ranks;
    ASSERT_NO_FATAL_FAILURE(start(net, "patient", ranks));
    net.half(1, true);
    usleep(1450000);
    net.heal(1);
    for (auto &rank : ranks)
        EXPECT_EQ(rank->line(60), "good");
}

INSTANTIATE_TEST_SUITE_P(, Part,
                         testing::Values(Cut{1, 2, true, true}, Cut{0, 1, true, true},
                                         Cut{0, 3, true, true}, Cut{0, 1, true, false},
                                         Cut{2, 3, false, true}));

} // namespace
