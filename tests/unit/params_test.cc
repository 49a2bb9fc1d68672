/*
 * Property: a variable FTCCL_... that no program reads is reported once per process, with the
 * nearest parameter if one is near, and never with its value. Known variables are not reported.
 * Method: a child process sets it and reads parameters several times; this test reads its stderr.
 */
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" {
#include "base/base.h"
}

namespace
{

using Variables = std::vector<std::pair<std::string, std::string>>;

/* What a process with these variables writes to stderr. */
std::string said(const Variables &variables)
{
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        for (auto &variable : variables)
            setenv(variable.first.c_str(), variable.second.c_str(), 1);
        std::thread other([] { ft_param_int(FT_PARAM_CHUNKS); });
        ft_param_int(FT_PARAM_CHUNKS);
        other.join();
        ft_params_reload();
        ft_param_str(FT_PARAM_ALGO);
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char part[1024];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
        text.append(part, (size_t)n);
    close(ends[0]);
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    return text;
}

size_t lines(const std::string &text)
{
    size_t count = 0;
    for (char c : text)
        count += c == '\n';
    return count;
}

TEST(UnknownVariable, IsToldOnceWithTheNearestName)
{
    const std::pair<const char *, const char *> cases[] = {
        {"FTCCL_TRANSPORT", "FTCCL_TRANSPORTS"},
        {"FTCCL_CUNKS", "FTCCL_CHUNKS"},
        {"FTCCL_OP_TIMEOUT", "FTCCL_OP_TIMEOUT_MS"},
        {"FTCCL_TELEMTERY", "FTCCL_TELEMETRY"},
        {"FTCCL_ALGOS", "FTCCL_ALGO"},
        {"FTCCL_BUFFSIZE", "FTCCL_CHUNK_BYTES"},            /* NCCL's name */
        {"FTCCL_NSOCKS_PERTHREAD", "FTCCL_TCP_CONNECTIONS"} /* NCCL's name */
    };
    for (auto &[name, meant] : cases) {
        std::string text = said({{name, "a-secret"}});
        EXPECT_NE(text.find(std::string("unknown variable ") + name +
                            " in the environment; did you mean " + meant + "?\n"),
                  std::string::npos)
            << name << ": " << text;
        EXPECT_EQ(lines(text), 1u) << text;
        EXPECT_EQ(text.find("a-secret"), std::string::npos) << text;
    }
}

TEST(UnknownVariable, HasNoNearestNameWhenNoneIsNear)
{
    for (std::string name : {"FTCCL_", "FTCCL_QWERTZUIOP", "FTCCL_GO"}) {
        std::string text = said({{name, "1"}});
        EXPECT_NE(text.find("unknown variable " + name + " in the environment\n"),
                  std::string::npos)
            << text;
    }
    std::string text = said({{"FTCCL_" + std::string(5000, 'A'), "1"}});
    EXPECT_EQ(lines(text), 1u) << text;
    EXPECT_LT(text.size(), 200u) << text;
}

TEST(UnknownVariable, EachIsTold)
{
    std::string text = said({{"FTCCL_A_B_C", "1"}, {"FTCCL_D_E_F", "1"}});
    EXPECT_EQ(lines(text), 2u) << text;
}

TEST(UnknownVariable, IsNotToldWhoWantsNoLog)
{
    EXPECT_EQ(said({{"FTCCL_TRANSPORT", "1"}, {"FTCCL_DEBUG", "NONE"}}), "");
}

TEST(UnknownVariable, IsNoneThatIsKnown)
{
    Variables all = {{"FTCCL_UNIQUE_ID", "1"},    {"FTCCL_RESTART", "1"},
                     {"FTCCL_RUN_START", "1"},    {"FTCCL_PERF_MEET", "1"},
                     {"FTCCL_PREFIX", "/opt"},    {"FTCCLX", "1"},
                     {"NCCL_NEVER_HEARD_OF", "1"}};
#define INT(name, def) all.push_back({name, std::to_string(def)});
#define STR(name, def) all.push_back({name, def});
#define X(id, name, kind, def, lo, hi, unit, alias, help) kind(name, def)
    FT_PARAMS(X)
#undef X
    EXPECT_EQ(said(all), "");
}

} // namespace
