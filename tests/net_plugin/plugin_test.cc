/*
 * Properties: ranks work over a network plugin of each version, and a plugin that cannot be used is
 * named in the log and the next transport is used. A plugin that reports wrong sizes is a protocol
 * error. A rank that is killed or stopped is handled as over any transport. Method: two ranks in a
 * child process of this program, with plugins of the tests, which misbehave as FT_TEST_PLUGIN says.
 */
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/proc/proc.h"

namespace
{

std::string plugin(int version)
{
    return std::string(FT_TEST_PLUGINS) + "/libnccl-net-ft" + std::to_string(version) + ".so";
}

CHILD(reduce)
{
    std::vector<ftcclComm_t> comm(2);
    std::vector<float> data(300000, 1);
    const int count = std::stoi(arguments[0]);
    ftcclUniqueId id;
    std::vector<ftcclResult_t> result(2);
    if (ftcclGetUniqueId(&id) != ftcclSuccess)
        return 1;
    proc::in_threads(2, [&](int r) {
        ftcclStream_t stream;
        std::vector<float> in(data), out(data.size());
        ftcclResult_t rc = ftcclStreamCreate(&stream);
        if (rc == ftcclSuccess)
            rc = ftcclCommInitRank(&comm[(size_t)r], 2, id, r);
        for (int i = 0; i < count && rc == ftcclSuccess; i++) {
            rc = ftcclAllReduce(in.data(), out.data(), i % 2 ? 3 : in.size(), ftcclFloat, ftcclSum,
                                comm[(size_t)r], stream);
            if (rc == ftcclSuccess)
                rc = ftcclStreamSynchronize(stream);
            if (rc == ftcclSuccess && (out[0] != 2 || out[2] != 2))
                rc = ftcclInternalError;
        }
        result[(size_t)r] = rc;
        if (rc == ftcclSuccess)
            ftcclCommDestroy(comm[(size_t)r]);
        else if (comm[(size_t)r])
            ftcclCommAbort(comm[(size_t)r]);
        ftcclStreamDestroy(stream);
    });
    printf("%d %d\n", result[0], result[1]);
    return 0;
}

struct Outcome {
    std::string results, log;
};

Outcome reduce(const std::string &name, const std::string &transports, const std::string &bad = "")
{
    Outcome out;
    std::string file = testing::TempDir() + "ft-plugin-" + std::to_string(getpid());
    unlink(file.c_str());
    proc::Child child("reduce", {"40"},
                      {{"FTCCL_NET_PLUGIN", name},
                       {"FTCCL_TRANSPORTS", transports},
                       {"FT_TEST_PLUGIN", bad},
                       {"FTCCL_OP_TIMEOUT_MS", "20000"},
                       {"FTCCL_DEBUG", "INFO"},
                       {"FTCCL_DEBUG_FILE", file}});
    out.results = child.line(60);
    child.wait();
    out.log = proc::text_of(file);
    unlink(file.c_str());
    return out;
}

void expect_said(const Outcome &out, const std::string &words)
{
    EXPECT_NE(std::string::npos, out.log.find(words)) << words << " is not in\n" << out.log;
}

TEST(NetPlugin, EveryVersionWorks)
{
    for (int version : {8, 11, 12}) {
        Outcome out = reduce(plugin(version), "net");
        EXPECT_EQ("0 0", out.results) << out.log;
        expect_said(out, "is up: plugin FTCCL test (v" + std::to_string(version) +
                             "), device 1, test_fast");
    }
}

TEST(NetPlugin, ItIsFoundAmongSeveralNames)
{
    Outcome out = reduce("ft_none_of_that_name," + plugin(12), "");
    EXPECT_EQ("0 0", out.results) << out.log;
    expect_said(out, "network plugin FTCCL test");
}

TEST(NetPlugin, RequestsThatAreNullComeLater)
{
    Outcome out = reduce(plugin(12), "net", "again=3");
    EXPECT_EQ("0 0", out.results) << out.log;
}

TEST(NetPlugin, WhatCannotBeUsedIsNamedAndTcpIsUsed)
{
    const std::string fails[][3] = {
        {plugin(0), "", "has none of ncclNetPlugin_v12"},
        {plugin(8), "fail_init", "init of plugin FTCCL test failed"},
        {plugin(11), "fail_init", "init of plugin FTCCL test failed"},
        {plugin(12), "no_devices", "plugin FTCCL test has no device"},
        {"ft_none_of_that_name", "", "libnccl-net-ft_none_of_that_name.so"},
        {"/nowhere/plugin.so", "", "/nowhere/plugin.so"},
    };
    for (auto &f : fails) {
        Outcome out = reduce(f[0], "net,tcp", f[1]);
        EXPECT_EQ("0 0", out.results) << f[0] << " " << f[1] << "\n" << out.log;
        expect_said(out, f[2]);
        Outcome alone = reduce(f[0], "net", f[1]);
        EXPECT_NE("0 0", alone.results) << f[0] << " " << f[1];
    }
}

TEST(NetPlugin, AListenThatFailsLeavesTheNextTransport)
{
    Outcome out = reduce(plugin(12), "net,tcp", "fail_listen");
    EXPECT_EQ("0 0", out.results) << out.log;
}

TEST(NetPlugin, WrongSizesAreAProtocolError)
{
    for (int version : {8, 12}) {
        Outcome out = reduce(plugin(version), "net", "size_after=6");
        EXPECT_NE("0 0", out.results);
        expect_said(out, "or network plugin FTCCL test: a frame of");
    }
}

TEST(NetPlugin, AReceiveThatFailsIsALostLink)
{
    Outcome out = reduce(plugin(12), "net", "break_after=9");
    EXPECT_NE("0 0", out.results);
    expect_said(out, "test of network plugin FTCCL test failed with 2");
}

/* A vendor's plugin, if there is one. */
TEST(NetPlugin, AVendorsWorks)
{
    const char *path = getenv("FTCCL_TEST_NET_PLUGIN");
    if (!path)
        GTEST_SKIP() << "FTCCL_TEST_NET_PLUGIN names no plugin";
    Outcome out = reduce(path, "net");
    EXPECT_EQ("0 0", out.results) << out.log;
}

} // namespace
