// Property: the perf programs accept the options of nccl-tests, with their defaults, and refuse
// anything else with a message and a status. Method: a table of command lines, parsed in this
// process; standard error is captured.
#include <gtest/gtest.h>

#include <string>
#include <vector>

extern "C" {
#include "perf/perf.h"
}

namespace
{

int parse(std::vector<std::string> args, perf_options *o, std::string *said = nullptr)
{
    std::vector<char *> argv;
    args.insert(args.begin(), "dir/x_perf");
    for (std::string &a : args)
        argv.push_back(&a[0]);
    argv.push_back(nullptr);
    testing::internal::CaptureStderr();
    int status = perf_options_parse(o, (int)args.size(), argv.data());
    std::string text = testing::internal::GetCapturedStderr();
    if (said)
        *said = text;
    return status;
}

TEST(PerfOptions, Defaults)
{
    perf_options o;
    ASSERT_EQ(parse({}, &o), 0);
    EXPECT_EQ(o.nthreads, 1);
    EXPECT_EQ(o.ngpus, 1);
    EXPECT_EQ(o.min_bytes, 32u << 20);
    EXPECT_EQ(o.max_bytes, 32u << 20);
    EXPECT_EQ(o.step_bytes, 1u << 20);
    EXPECT_EQ(o.iters, 20);
    EXPECT_EQ(o.warmup_iters, 1);
    EXPECT_EQ(o.agg_iters, 1);
    EXPECT_EQ(o.check, 1);
    EXPECT_EQ(o.average, 1);
    EXPECT_EQ(o.op, ftcclSum);
    EXPECT_EQ(o.type, ftcclFloat32);
    EXPECT_EQ(o.root, 0);
}

TEST(PerfOptions, Values)
{
    perf_options o;
    ASSERT_EQ(parse({"-b", "8", "-e", "1.5G", "-f", "2", "-t", "3", "--ngpus", "0x2", "-d",
                     "bfloat16", "-o", "mulsum"},
                    &o),
              0);
    EXPECT_EQ(o.min_bytes, 8u);
    EXPECT_EQ(o.max_bytes, 3ull << 29);
    EXPECT_EQ(o.step_factor, 2);
    EXPECT_EQ(o.nthreads, 3);
    EXPECT_EQ(o.ngpus, 2);
    EXPECT_EQ(o.type, ftcclBfloat16);
    EXPECT_EQ(o.op, PERF_MULSUM);
    ASSERT_EQ(parse({"-b1k", "-e", "2MB", "-d", "all", "-o", "all", "-r", "all", "-i", "0"}, &o),
              0);
    EXPECT_EQ(o.min_bytes, 1024u);
    EXPECT_EQ(o.max_bytes, 2u << 20);
    EXPECT_EQ(o.type, PERF_ALL);
    EXPECT_EQ(o.op, PERF_ALL);
    EXPECT_EQ(o.root, PERF_ALL);
    EXPECT_GT(o.step_bytes, o.max_bytes); // a step of nothing would never end
    ASSERT_EQ(parse({"-b", "0", "-e", "8", "-f", "2"}, &o), 0);
    EXPECT_GT(o.min_bytes, 0u); // nor would a factor of nothing
    EXPECT_EQ(o.memory, API_HOST);
    ASSERT_EQ(parse({"-B", "device"}, &o), 0);
    EXPECT_EQ(o.memory, API_DEVICE);
    ASSERT_EQ(parse({"--buffers", "pinned"}, &o), 0);
    EXPECT_EQ(o.memory, API_PINNED);
    ASSERT_EQ(parse({"-I", "1", "-K", "3"}, &o), 0);
    EXPECT_EQ(o.blocking, 2);
}

TEST(PerfOptions, Refused)
{
    const std::vector<std::vector<std::string>> usage = {{"-t", "0"},
                                                         {"-g", "x"},
                                                         {"-b", "-1"},
                                                         {"-b", "1Q"},
                                                         {"-b", "8", "-e", "4"},
                                                         {"-e", ""},
                                                         {"-n", "0"},
                                                         {"-z", "4"},
                                                         {"-a", "5"},
                                                         {"-o", "median"},
                                                         {"-d", "float99"},
                                                         {"-r", "-2"},
                                                         {"-f", "0"},
                                                         {"-B", "disk"},
                                                         {"-n", "1e3"},
                                                         {"--nothing"},
                                                         {"stray"},
                                                         {"-J", "out.csv"},
                                                         {"-K", "1"},
                                                         {"-I", "1", "-n", "5000"},
                                                         {"-b", "1MBx"},
                                                         {"-c"}};
    for (const auto &args : usage) {
        perf_options o;
        std::string said;
        EXPECT_EQ(parse(args, &o, &said), PERF_USAGE + 1) << args[0];
        EXPECT_FALSE(said.empty()) << args[0];
    }
    for (const auto &args :
         std::vector<std::vector<std::string>>{{"-G", "1"}, {"-D", "1"}, {"-R", "2"}}) {
        perf_options o;
        std::string said;
        EXPECT_EQ(parse(args, &o, &said), PERF_NOT_HERE + 1) << args[0];
        EXPECT_NE(said.find(args[0]), std::string::npos) << said;
    }
}

} // namespace
