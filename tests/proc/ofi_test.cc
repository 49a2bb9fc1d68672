/*
 * Property: libfabric's providers whose links hang or lose messages are not used, with a reason,
 * unless FTCCL_OFI_PROVIDER names one; then a warning says why not to. A provider that is not there
 * is an error that lists those that are. Method: two ranks in a child process; libfabric's own
 * FI_PROVIDER limits what it offers.
 */
#include <unistd.h>

#include "tests/proc/proc.h"

namespace
{

/* Two ranks reduce, or say why they cannot. */
CHILD(reduce)
{
    (void)arguments;
    ftcclUniqueId id;
    std::vector<std::string> said(2);
    if (ftcclGetUniqueId(&id) != ftcclSuccess)
        return 1;
    proc::in_threads(2, [&](int r) {
        ftcclComm_t comm;
        ftcclStream_t stream;
        int sum = r + 1;
        ftcclResult_t rc = ftcclStreamCreate(&stream);
        if (rc == ftcclSuccess)
            rc = ftcclCommInitRank(&comm, 2, id, r);
        if (rc == ftcclSuccess)
            rc = ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, comm, stream);
        if (rc == ftcclSuccess)
            rc = ftcclStreamSynchronize(stream);
        said[size_t(r)] = rc == ftcclSuccess ? std::to_string(sum) : ftcclGetLastError(nullptr);
        if (rc == ftcclSuccess)
            ftcclCommDestroy(comm);
        ftcclStreamDestroy(stream);
    });
    printf("%s\n%s\n", said[0].c_str(), said[1].c_str());
    return 0;
}

struct Outcome {
    std::string said, log;
    bool tells(const std::string &words) const
    {
        return (said + "\n" + log).find(words) != std::string::npos;
    }
};

std::ostream &operator<<(std::ostream &out, const Outcome &o)
{
    return out << o.said << '\n' << o.log;
}

Outcome reduce(std::map<std::string, std::string> env)
{
    Outcome out;
    const std::string file = testing::TempDir() + "ft-ofi-" + std::to_string(getpid());
    unlink(file.c_str());
    env.insert({{"FTCCL_TRANSPORTS", "ofi,tcp"},
                {"FTCCL_INIT_TIMEOUT_MS", "10000"},
                {"FTCCL_DEBUG", "INFO"},
                {"FTCCL_DEBUG_FILE", file}});
    proc::Child child("reduce", {}, env);
    out.said = child.line(60);
    child.wait();
    out.log = proc::text_of(file);
    unlink(file.c_str());
    return out;
}

const char *const kNotUsed = "libfabric here has only shm, which is not used unless "
                             "FTCCL_OFI_PROVIDER names it; shm: its links hang when a rank dies";

bool has_shm(const Outcome &probe)
{
    return !probe.tells("has no provider");
}

TEST(Ofi, ADoubtfulProviderIsLeftForTheNextTransport)
{
    Outcome out = reduce({{"FI_PROVIDER", "shm"}});
    if (!has_shm(out))
        GTEST_SKIP() << "libfabric here has no provider shm";
    EXPECT_EQ(out.said, "3") << out;
    EXPECT_TRUE(out.tells(kNotUsed)) << out;
    EXPECT_FALSE(out.tells("ofi uses provider")) << out;
}

TEST(Ofi, ADoubtfulProviderAloneIsAnErrorThatSaysWhy)
{
    Outcome out = reduce({{"FI_PROVIDER", "shm"}, {"FTCCL_TRANSPORTS", "ofi"}});
    if (!has_shm(out))
        GTEST_SKIP() << "libfabric here has no provider shm";
    EXPECT_NE(out.said, "3") << out;
    EXPECT_TRUE(out.tells(kNotUsed)) << out;
}

TEST(Ofi, ADoubtfulProviderIsUsedIfItIsNamedAndWarnedOf)
{
    Outcome out = reduce({{"FTCCL_OFI_PROVIDER", "shm"}});
    if (out.tells("FTCCL_OFI_PROVIDER is shm; libfabric here has"))
        GTEST_SKIP() << "libfabric here has no provider shm";
    /* Whether it works is its own affair: that of 2.5 ends some processes. */
    EXPECT_TRUE(out.tells("ofi uses provider shm on")) << out;
    EXPECT_TRUE(out.tells("for trials only: its links hang when a rank dies")) << out;
}

TEST(Ofi, SocketsIsRefusedEvenIfItIsNamed)
{
    Outcome out = reduce({{"FTCCL_OFI_PROVIDER", "sockets"}});
    EXPECT_NE(out.said, "3") << out;
    EXPECT_TRUE(out.tells("sockets, which is refused: it loses connections under load; there are"))
        << out;
}

TEST(Ofi, AnUnknownProviderListsThoseThatAreThere)
{
    Outcome out = reduce({{"FTCCL_OFI_PROVIDER", "no-such"}});
    EXPECT_NE(out.said, "3") << out;
    EXPECT_TRUE(out.tells("FTCCL_OFI_PROVIDER is no-such; libfabric here has ")) << out;
}

} // namespace
