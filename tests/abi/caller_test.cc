/*
 * Property: callers of any version of NCCL are understood. Their configurations are read as far as
 * their version goes. They do not get result codes that they do not know. The version that the
 * library claims can be overridden. What is not supported is refused by name. The calls of ftccl
 * work on NCCL's communicators. The log has NCCL's form and is silent unless asked for. Method:
 * configurations cut to the size of each version, followed by bytes that every check would refuse;
 * a child process with the environment of each case.
 */
#include "tests/abi/nccl_header.h"
#include "tests/proc/proc.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <regex>
#include <thread>

#define OK(call) ASSERT_EQ(ncclSuccess, call) << ncclGetLastError(nullptr)

namespace
{

/* ---- configurations -------------------------------------------------------------------------- */

struct Version {
    int code;
    size_t bytes;
}; // of the struct in its header, with its padding
const Version kVersions[] = {{21403, 24}, {21701, 40}, {21803, 48}, {22602, 48}, {22703, 72},
                             {22809, 80}, {22907, 88}, {23004, 96}, {23007, 96}};

/* A configuration as a program of that version has it: nothing set, and what its header does not
 * name is garbage. */
struct Old {
    alignas(8) unsigned char bytes[256];
    ncclConfig_t *config = reinterpret_cast<ncclConfig_t *>(bytes);
    explicit Old(Version v)
    {
        ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
        memset(bytes, 0x80, sizeof bytes); // a negative number, and no address
        size_t named = v.code < 21700   ? offsetof(ncclConfig_t, cgaClusterSize)
                       : v.code < 21800 ? offsetof(ncclConfig_t, splitShare)
                       : v.code < 22600 ? offsetof(ncclConfig_t, trafficClass)
                       : v.code < 22700 ? offsetof(ncclConfig_t, commName)
                       : v.code < 22800 ? offsetof(ncclConfig_t, nChannelsPerNetPeer)
                       : v.code < 22900 ? offsetof(ncclConfig_t, graphUsageMode)
                       : v.code < 23000 ? offsetof(ncclConfig_t, maxP2pPeers)
                       : v.code < 23005 ? offsetof(ncclConfig_t, graphStreamOrdering)
                                        : sizeof whole;
        memcpy(bytes, &whole, named);
        config->size = v.bytes;
        config->version = static_cast<unsigned>(v.code);
    }
    /* Alone in a communicator. */
    ncclResult_t init(ncclComm_t *comm) const
    {
        ncclUniqueId id;
        ncclResult_t result = ncclGetUniqueId(&id);
        return result == ncclSuccess ? ncclCommInitRankConfig(comm, 1, id, 0, config) : result;
    }
};

TEST(NcclCaller, EveryVersionsConfigurationIsRead)
{
    for (Version v : kVersions) {
        ncclComm_t comm = nullptr;
        Old old(v);
        EXPECT_EQ(ncclSuccess, old.init(&comm)) << v.code << ": " << ncclGetLastError(nullptr);
        EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm)) << v.code;
        old.config->blocking = 17;
        EXPECT_EQ(ncclInvalidArgument, old.init(&comm)) << v.code << " has it";
        old.config->blocking = 0;
        EXPECT_EQ(ncclInProgress, old.init(&comm)) << v.code;
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress)
            ASSERT_EQ(ncclSuccess, ncclCommGetAsyncError(comm, &state));
        EXPECT_EQ(ncclSuccess, state);
        EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));
    }
}

TEST(NcclCaller, AFieldIsReadFromItsVersionOn)
{
    const struct {
        size_t at;
        int since;
    } fields[] = {
        {offsetof(ncclConfig_t, cgaClusterSize), 21700},
        {offsetof(ncclConfig_t, minCTAs), 21700},
        {offsetof(ncclConfig_t, splitShare), 21800},
        {offsetof(ncclConfig_t, trafficClass), 22600},
        {offsetof(ncclConfig_t, CTAPolicy), 22700},
        {offsetof(ncclConfig_t, nvlinkCentricSched), 22800},
        {offsetof(ncclConfig_t, graphUsageMode), 22900},
        {offsetof(ncclConfig_t, maxP2pPeers), 23000},
        {offsetof(ncclConfig_t, graphStreamOrdering), 23005},
    };
    for (Version v : kVersions)
        for (auto field : fields) {
            Old old(v);
            ncclComm_t comm = nullptr;
            int wrong = -5;
            memcpy(old.bytes + field.at, &wrong, sizeof wrong);
            EXPECT_EQ(v.code >= field.since ? ncclInvalidArgument : ncclSuccess, old.init(&comm))
                << v.code << ", offset " << field.at;
            ncclCommDestroy(comm);
        }
}

TEST(NcclCaller, WhatIsNoConfigurationIsRefused)
{
    ncclComm_t comm = nullptr;
    Old old(kVersions[0]);
    old.config->magic = 0xf7cc1c0f; // ftccl's
    EXPECT_EQ(ncclInvalidArgument, old.init(&comm));
    EXPECT_NE(nullptr, strstr(ncclGetLastError(nullptr), "NCCL_CONFIG_INITIALIZER"))
        << ncclGetLastError(nullptr);
    Old small(kVersions[0]);
    small.config->size = 16;
    EXPECT_EQ(ncclInvalidArgument, small.init(&comm));
    Old newer({30000, sizeof(ncclConfig_t) + 64}); // more fields than are known here
    EXPECT_EQ(ncclSuccess, newer.init(&comm)) << ncclGetLastError(nullptr);
    ncclCommDestroy(comm);
}

/* ---- results and versions -------------------------------------------------------------------- */

/* timeout [VERSION ...]: prints the version that is claimed and the error of an operation that
 * nobody else calls, as NCCL's call and as ftccl's have it. A configuration of each version was
 * seen before. */
CHILD(timeout)
{
    int claimed = 0;
    ncclUniqueId id;
    ncclComm_t comm[2];
    ncclGetVersion(&claimed);
    for (auto &version : arguments) {
        ncclComm_t alone;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.version = static_cast<unsigned>(std::stoi(version));
        if (ncclGetUniqueId(&id) != ncclSuccess ||
            ncclCommInitRankConfig(&alone, 1, id, 0, &config) != ncclSuccess)
            return 1;
        ncclCommDestroy(alone);
    }
    if (ncclCommInitAll(comm, 2, nullptr) != ncclSuccess)
        return 1;
    int value = 0;
    ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm[0], nullptr);
    ftcclStreamSynchronize(nullptr);
    ncclResult_t theirs = ncclSuccess;
    ftcclResult_t ours = ftcclSuccess;
    ncclCommGetAsyncError(comm[0], &theirs);
    ftcclCommGetAsyncError(reinterpret_cast<ftcclComm_t>(comm[0]), &ours);
    printf("%d %d %d\n", claimed, theirs, ours);
    for (auto c : comm)
        ncclCommAbort(c);
    return 0;
}

std::string timeout_of(const std::string &claimed, const std::vector<std::string> &versions)
{
    std::map<std::string, std::string> env = {{"FTCCL_OP_TIMEOUT_MS", "50"}};
    if (!claimed.empty())
        env["FTCCL_NCCL_VERSION"] = claimed;
    proc::Child child("timeout", versions, env);
    return child.line(120);
}

TEST(NcclCaller, ATimeoutIsNamedToThoseWhoKnowIt)
{
    EXPECT_EQ("22606 6 8", timeout_of("", {}));
    EXPECT_EQ("22606 6 8", timeout_of("", {"22809"}));
    EXPECT_EQ("22606 8 8", timeout_of("", {"22900"}));
    EXPECT_EQ("22606 6 8", timeout_of("", {"23007", "22809"}))
        << "two libraries of different age in one process";
    EXPECT_EQ("22902 8 8", timeout_of("2.29.2", {}));
    EXPECT_EQ("22902 6 8", timeout_of("2.29.2", {"22703"}));
}

TEST(NcclCaller, TheVersionCanBeOverridden)
{
    EXPECT_EQ("22809 6 8", timeout_of("2.28.9", {}));
    for (const char *wrong : {"2.28", "2.28.9.1", "22809", "3.0.0", "2.1000.3"})
        EXPECT_EQ("22606 6 8", timeout_of(wrong, {})) << wrong;
}

/* ---- what is not to be had ------------------------------------------------------------------- */

TEST(NcclCaller, CallsForKernelsAreRefusedByName)
{
    const char *with_comm[] = {"DevCommCreate", "DevCommDestroy", "GinBarrierCreateRequirement",
                               "CommSuspend", "CommResume"};
    const char *without[] = {"LsaBarrierCreateRequirement",
                             "LLA2ACreateRequirement",
                             "GinOutboxCreateRequirement",
                             "GinInboxA2ACreateRequirement",
                             "GetLsaMultimemDevicePointer",
                             "GetMultimemDevicePointer",
                             "GetLsaDevicePointer",
                             "GetPeerDevicePointer",
                             "ParamBind",
                             "ParamGetI8",
                             "ParamGetI16",
                             "ParamGetI32",
                             "ParamGetI64",
                             "ParamGetU8",
                             "ParamGetU16",
                             "ParamGetU32",
                             "ParamGetU64",
                             "ParamGetStr",
                             "ParamGet",
                             "ParamGetParameter",
                             "ParamGetAllParameterKeys"};
    ncclComm_t comm = nullptr;
    OK(ncclCommInitAll(&comm, 1, nullptr));
    using Call = ncclResult_t (*)(void *, void *, void *, void *, void *);
    auto expect = [&](const char *name, void *first) {
        for (const std::string prefix : {"nccl", "pnccl"}) {
            auto call = reinterpret_cast<Call>(dlsym(RTLD_DEFAULT, (prefix + name).c_str()));
            ASSERT_NE(nullptr, call) << prefix << name;
            EXPECT_EQ(ncclInvalidUsage, call(first, nullptr, nullptr, nullptr, nullptr)) << name;
            EXPECT_NE(nullptr, strstr(ncclGetLastError(static_cast<ncclComm_t>(first)),
                                      (std::string("nccl") + name + ": ").c_str()))
                << name << " has " << ncclGetLastError(nullptr);
        }
    };
    for (const char *name : with_comm)
        expect(name, comm);
    for (const char *name : without)
        expect(name, nullptr);
    int value = 3;
    OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr))
        << "the communicator is as it was";
    EXPECT_OK(ftcclStreamSynchronize(nullptr));
    OK(ncclCommDestroy(comm));
}

TEST(NcclCaller, TeamsAndPropertiesAreTold)
{
    ncclComm_t comm[4];
    OK(ncclCommInitAll(comm, 4, nullptr));
    ncclTeam_t world = ncclTeamWorld(comm[2]), lsa = ncclTeamLsa(comm[2]),
               rail = pncclTeamRail(comm[2]);
    EXPECT_EQ(4, world.nRanks);
    EXPECT_EQ(2, world.rank);
    EXPECT_EQ(1, world.stride);
    EXPECT_EQ(1, lsa.nRanks);
    EXPECT_EQ(0, lsa.rank);
    EXPECT_EQ(4, rail.nRanks);
    EXPECT_EQ(2, rail.rank);
    EXPECT_EQ(3, ncclTeamRankToWorld(comm[2], rail, 3));
    EXPECT_EQ(2, ncclTeamRankToWorld(comm[2], lsa, 0));
    EXPECT_EQ(0, ncclTeamRankToLsa(comm[2], world, 2));
    EXPECT_EQ(0, ncclTeamWorld(nullptr).nRanks);
    auto slots = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_DEFAULT, "ncclLLA2ACalcSlots"));
    EXPECT_EQ(30, slots(10, 17));

    /* As 2.30.7 has them; 40 bytes of it in 2.29.2. */
    struct {
        size_t size;
        unsigned magic, version;
        int number[8], rest[8];
    } p;
    auto query = reinterpret_cast<ncclResult_t (*)(ncclComm_t, void *)>(
        dlsym(RTLD_DEFAULT, "ncclCommQueryProperties"));
    for (size_t size : {size_t{40}, size_t{52}, sizeof p}) {
        memset(&p, 0x55, sizeof p);
        p.size = size;
        p.magic = NCCL_API_MAGIC;
        OK(query(comm[2], &p));
        EXPECT_EQ(2, p.number[0]);
        EXPECT_EQ(4, p.number[1]);
        EXPECT_EQ(2, p.number[2]) << "the device of InitAll";
        EXPECT_EQ(0, p.number[4] & 0xffff) << "neither kernels nor multicast";
        EXPECT_EQ(0, p.number[5]);
        EXPECT_EQ(size < 52 ? 0x55555555 : 4, p.number[6])
            << "written as far as the caller's struct goes: " << size;
        EXPECT_EQ(0x55555555, p.rest[4]);
    }
    p.magic = 0;
    EXPECT_EQ(ncclInvalidArgument, query(comm[2], &p));
    uint64_t bytes = 1;
    OK(ncclCommMemStats(comm[0], ncclStatGpuMemTotal, &bytes));
    EXPECT_EQ(0u, bytes);
    EXPECT_EQ(ncclInvalidArgument, ncclCommMemStats(comm[0], ncclStatGpuMemTotal, nullptr));
    for (auto c : comm)
        OK(ncclCommDestroy(c));
}

TEST(NcclCaller, FtcclsCallsWorkOnNcclsCommunicators)
{
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    proc::in_threads(2, [&](int r) {
        ncclComm_t comm = nullptr;
        OK(ncclCommInitRank(&comm, 2, id, r));
        auto ours = reinterpret_cast<ftcclComm_t>(comm);
        uint64_t flags = r == 0 ? 6 : 3, last = 1;
        ASSERT_OK(ftcclCommAgree(ours, &flags));
        EXPECT_EQ(2u, flags);
        ASSERT_OK(ftcclCommGetLastAgreedOp(ours, &last));
        EXPECT_EQ(0u, last);
        ftcclComm_t rest = nullptr;
        ASSERT_OK(ftcclCommShrink(ours, nullptr, 0, &rest, nullptr, FTCCL_SHRINK_DEFAULT));
        OK(ncclCommDestroy(reinterpret_cast<ncclComm_t>(rest)));
        ASSERT_OK(ftcclCommDestroy(ours));
    });
}

/* Waits until the communicator has left InProgress. */
ncclResult_t settled(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            return ncclInternalError;
        std::this_thread::yield();
    }
    return state;
}

/* Rank 0 has an operation that nobody else calls. */
void revoke(ncclConfig_t *config)
{
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    std::atomic<int> ready{0};
    proc::in_threads(2, [&](int r) {
        ncclComm_t comm = nullptr, rest = nullptr;
        ncclResult_t state = ncclSuccess;
        int value = 0, count = 0;
        bool blocking = config->blocking != 0;
        ncclCommInitRankConfig(&comm, 2, id, r, config);
        EXPECT_EQ(ncclSuccess, settled(comm));
        for (ready++; ready < 2;)
            std::this_thread::yield(); // else one may be told before it has asked
        if (r == 0) {
            OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
        } else {
            while (state == ncclSuccess)
                OK(ncclCommGetAsyncError(comm, &state));
            EXPECT_EQ(ncclRemoteError, state) << "the others are told";
        }
        EXPECT_EQ(blocking ? ncclSuccess : ncclInProgress,
                  ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
        EXPECT_EQ(ncclSuccess, settled(comm)) << "who revokes knows of the failure";
        if (r == 0) {
            EXPECT_EQ(ftcclRemoteError, ftcclStreamSynchronize(nullptr))
                << "and its operations have ended";
        }
        ftcclResult_t ours = ftcclSuccess;
        EXPECT_OK(ftcclCommGetAsyncError(reinterpret_cast<ftcclComm_t>(comm), &ours));
        EXPECT_EQ(ftcclRemoteError, ours);
        EXPECT_EQ(ncclRemoteError,
                  ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr))
            << "for management alone";
        ncclCommShrink(comm, nullptr, 0, &rest, nullptr, NCCL_SHRINK_DEFAULT);
        EXPECT_EQ(ncclSuccess, settled(comm));
        EXPECT_EQ(ncclSuccess, settled(rest));
        EXPECT_EQ(ncclSuccess, ncclCommCount(rest, &count));
        EXPECT_EQ(2, count);
        for (ready++; ready < 4;)
            std::this_thread::yield(); // an abort is an error of the other
        OK(ncclCommAbort(rest));
        OK(ncclCommAbort(comm));
    });
}

TEST(NcclCaller, WhoRevokesGoesOnTheOthersAreTold)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    revoke(&config);
    config.blocking = 0;
    revoke(&config);
    EXPECT_EQ(ncclSuccess, ncclCommRevoke(nullptr, NCCL_REVOKE_DEFAULT)) << "as NCCL";
    ncclComm_t comm;
    OK(ncclCommInitAll(&comm, 1, nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclCommRevoke(comm, 1));
    ncclResult_t state = ncclInternalError;
    OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(ncclSuccess, state);
    EXPECT_OK(ftcclCommRevoke(reinterpret_cast<ftcclComm_t>(comm), FTCCL_REVOKE_DEFAULT));
    OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(ncclRemoteError, state) << "ftccl's own stays an error";
    OK(ncclCommAbort(comm));
}

/* What a program hands back without having it: a communicator that could not be made, a
 * registration that NCCL left out. */
TEST(NcclCaller, NothingIsTakenBackAsByNccl)
{
    for (auto call : {ncclCommFinalize, ncclCommDestroy, ncclCommAbort})
        EXPECT_EQ(ncclSuccess, call(nullptr));
    ncclComm_t comm;
    int value = 1;
    void *handle = nullptr;
    OK(ncclCommInitAll(&comm, 1, nullptr));
    EXPECT_EQ(ncclSuccess, ncclCommDeregister(comm, nullptr)) << ncclGetLastError(comm);
    EXPECT_EQ(ncclSuccess, ncclCommWindowDeregister(comm, nullptr)) << ncclGetLastError(comm);
    EXPECT_EQ(ncclInvalidArgument, ncclCommDeregister(nullptr, nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclCommWindowDeregister(nullptr, nullptr));
    OK(ncclCommRegister(comm, &value, sizeof value, &handle));
    EXPECT_NE(ncclSuccess, ncclCommDeregister(comm, &value));
    OK(ncclCommDeregister(comm, handle));
    OK(ncclCommDestroy(comm));
}

TEST(NcclCaller, EstimatesAreInMicroseconds)
{
    ncclComm_t comm[2];
    std::vector<int> data(1 << 20);
    OK(ncclCommInitAll(comm, 2, nullptr));
    auto group = [&] {
        EXPECT_EQ(ncclSuccess, ncclGroupStart());
        EXPECT_EQ(ncclSuccess, ncclAllReduce(data.data(), data.data(), data.size(), ncclInt32,
                                             ncclSum, comm[0], nullptr));
    };
    ncclSimInfo_t micros = NCCL_SIM_INFO_INITIALIZER, inner = NCCL_SIM_INFO_INITIALIZER;
    ftcclSimInfo_t seconds = FTCCL_SIM_INFO_INITIALIZER;
    group();
    OK(ncclGroupStart());
    OK(ncclGroupSimulateEnd(&inner));
    EXPECT_EQ(NCCL_UNDEF_FLOAT, inner.estimatedTime);
    OK(ncclGroupSimulateEnd(&micros));
    group();
    EXPECT_OK(ftcclGroupSimulateEnd(&seconds));
    EXPECT_GT(seconds.estimatedTime, 0);
    EXPECT_FLOAT_EQ(1e6f * seconds.estimatedTime, micros.estimatedTime);
    group();
    OK(ncclGroupSimulateEnd(nullptr));
    ncclSimInfo_t none = {};
    EXPECT_EQ(ncclInvalidArgument, ncclGroupSimulateEnd(&none));
    for (ncclComm_t c : comm)
        OK(ncclCommDestroy(c));
}

/* ---- the log --------------------------------------------------------------------------------- */

/* speak: one all-reduce, one mistake. What it writes is in NCCL_DEBUG_FILE, else on stderr, which
 * is one pipe with stdout. */
CHILD(speak)
{
    dup2(1, 2);
    ncclUniqueId id;
    ncclComm_t comm;
    int value = 1;
    if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 1, id, 0) != ncclSuccess)
        return 1;
    ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr);
    ftcclStreamSynchronize(nullptr);
    ncclCommCount(comm, nullptr);
    ncclCommDestroy(comm);
    printf("end\n");
    return 0;
}

/* What it says under an environment, line by line. */
std::vector<std::string> said(const std::map<std::string, std::string> &env)
{
    proc::Child child("speak", {}, env);
    std::vector<std::string> lines;
    for (std::string line = child.line(60); line != "end" && !line.empty(); line = child.line(60))
        lines.push_back(line);
    return lines;
}

int count(const std::vector<std::string> &lines, const std::string &pattern)
{
    std::regex re(pattern);
    int n = 0;
    for (auto &line : lines)
        n += std::regex_match(line, re);
    return n;
}

const std::string kHead = "[^: ]+:[0-9]+:[0-9]+ \\[[0-9]+\\] NCCL ";
const std::string kCall = kHead + "INFO AllReduce: sendbuff 0x[0-9a-f]+ recvbuff 0x[0-9a-f]+ count "
                                  "1 datatype 2 op 0 root 0 comm 0x[0-9a-f]+ "
                                  "\\[nranks=1\\] stream .*";
const std::string kVersion = "NCCL version 2\\.26\\.6 \\(FTCCL [0-9.]+\\)";

TEST(NcclCaller, TheLogHasNcclsForm)
{
    EXPECT_EQ(std::vector<std::string>(), said({})) << "silent unless asked";
    auto version = said({{"NCCL_DEBUG", "VERSION"}});
    EXPECT_EQ(1u, version.size());
    EXPECT_EQ(1, count(version, kVersion));
    auto warn = said({{"NCCL_DEBUG", "WARN"}});
    EXPECT_EQ(static_cast<int>(warn.size()),
              count(warn, kHead + "WARN .*") + count(warn, kVersion));
    EXPECT_EQ(1, count(warn, kHead + "WARN INIT : rank 0: .* is NULL")) << warn.back();
    auto info = said({{"NCCL_DEBUG", "INFO"}});
    EXPECT_EQ(static_cast<int>(info.size()), count(info, kHead + ".*") + count(info, kVersion));
    EXPECT_LE(1, count(info, kHead + "INFO INIT : rank 0: .*"));
    EXPECT_EQ(0, count(info, kCall));
}

TEST(NcclCaller, SubsystemsAndFilesAreNccls)
{
    auto coll = said({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "GRAPH,COLL"}});
    EXPECT_EQ(1, count(coll, kCall));
    EXPECT_EQ(0, count(coll, kHead + "INFO INIT.*"));
    auto but = said({{"NCCL_DEBUG", "info"}, {"NCCL_DEBUG_SUBSYS", "^INIT,NET"}});
    EXPECT_EQ(1, count(but, kCall));
    EXPECT_EQ(0, count(but, kHead + "INFO INIT.*"));
    auto all = said({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}});
    EXPECT_EQ(1, count(all, kCall));
    EXPECT_LE(1, count(all, kHead + "INFO INIT.*"));

    std::string folder = testing::TempDir() + "ft_nccl_log_" + std::to_string(getpid());
    ASSERT_EQ(std::vector<std::string>(),
              said({{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", folder + ".%h.%p"}}));
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    std::string list = "ls " + folder + "." + host + ".*[0-9]";
    FILE *names = popen(list.c_str(), "r");
    char path[1024] = "";
    ASSERT_NE(nullptr, fgets(path, sizeof path, names)) << list;
    pclose(names);
    path[strcspn(path, "\n")] = '\0';
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
        lines.push_back(line);
    unlink(path);
    EXPECT_EQ(1, count(lines, kHead + "WARN INIT : rank 0: .* is NULL"))
        << "warnings go to the file too";
}

} // namespace
