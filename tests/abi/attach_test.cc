/*
 * Property: loading libnccl.so.2 changes only the default of the deadline in libftccl, even if
 * parameters were read before. It changes neither what the environment says nor other defaults. The
 * log is silent unless asked for, and can be narrowed. Method: the test makes the call that the
 * library's constructor makes, and looks at the parameters.
 */
#include <gtest/gtest.h>
#include <cstdlib>
extern "C" {
#include "base/base.h"
void ft_shim_attach(void);
}

namespace
{

/* One case in a process of its own, for attaching lasts. */
#define ALONE(body)                                     \
    EXPECT_EXIT(                                        \
        {                                               \
            body;                                       \
            _exit(testing::Test::HasFailure() ? 1 : 0); \
        },                                              \
        testing::ExitedWithCode(0), "")

TEST(Attach, ChangesDefaults)
{
    unsetenv("FTCCL_OP_TIMEOUT_MS");
    ALONE(EXPECT_EQ(60000, ft_param_int(FT_PARAM_OP_TIMEOUT_MS)); ft_shim_attach();
          EXPECT_EQ(1800000, ft_param_int(FT_PARAM_OP_TIMEOUT_MS)));
    ALONE(ft_shim_attach(); EXPECT_EQ(1800000, ft_param_int(FT_PARAM_OP_TIMEOUT_MS));
          EXPECT_EQ(60000, ft_param_int(FT_PARAM_INIT_TIMEOUT_MS)));
    setenv("FTCCL_OP_TIMEOUT_MS", "77", 1);
    ALONE(ft_shim_attach(); EXPECT_EQ(77, ft_param_int(FT_PARAM_OP_TIMEOUT_MS)));
    setenv("FTCCL_OP_TIMEOUT_MS", "x", 1);
    ALONE(ft_shim_attach(); EXPECT_EQ(1800000, ft_param_int(FT_PARAM_OP_TIMEOUT_MS)));
    unsetenv("FTCCL_OP_TIMEOUT_MS");
}

TEST(Attach, ChangesTheLog)
{
    unsetenv("FTCCL_DEBUG");
    unsetenv("NCCL_DEBUG");
    ALONE(EXPECT_TRUE(ft_log_on(FT_LOG_WARN)); ft_shim_attach();
          EXPECT_FALSE(ft_log_on(FT_LOG_WARN)); EXPECT_FALSE(ft_log_on(FT_LOG_VERSION)));
    setenv("NCCL_DEBUG", "warn", 1);
    ALONE(ft_shim_attach(); EXPECT_TRUE(ft_log_on(FT_LOG_WARN));
          EXPECT_FALSE(ft_log_on(FT_LOG_INFO)));
    unsetenv("NCCL_DEBUG");
}

TEST(Attach, SubsystemsAreChosen)
{
    const struct {
        const char *list;
        bool init, net, coll;
    } cases[] = {
        {"", true, true, false},           {"ALL", true, true, true},
        {"coll", false, false, true},      {"INIT,COLL", true, false, true},
        {"^NET", true, false, true},       {"^ALL", false, false, false},
        {"^init,net", false, false, true}, {"NE,NETS,,GRAPH", false, false, false},
        {"^", true, true, true},
    };
    setenv("FTCCL_DEBUG", "INFO", 1);
    for (auto &c : cases) {
        setenv("FTCCL_DEBUG_SUBSYS", c.list, 1);
        ALONE(EXPECT_EQ(c.init, ft_log_shows(FT_LOG_INFO, "init")) << c.list;
              EXPECT_EQ(c.net, ft_log_shows(FT_LOG_INFO, "net")) << c.list;
              EXPECT_EQ(c.coll, ft_log_shows(FT_LOG_INFO, "coll")) << c.list;
              EXPECT_FALSE(ft_log_shows(FT_LOG_TRACE, "init"));
              EXPECT_TRUE(ft_log_shows(FT_LOG_WARN, "net")) << "warnings always pass");
    }
    unsetenv("FTCCL_DEBUG");
    unsetenv("FTCCL_DEBUG_SUBSYS");
}

} // namespace
