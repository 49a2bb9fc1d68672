// Properties: what a user writes wrongly about RDMA devices is answered with what there is: unknown
// devices, GID indices that are empty or out of range, too little memory that may be locked.
// Method: opens the fabric in the machine of `rig` with each; the limit on memory in a process
// without the right to pass over it.
#include "tests/rdma/fabric_fixture.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

// The status of opening, and the sentence.
std::pair<int, std::string> opened(const std::vector<Variable> &variables)
{
    Variables set(variables);
    ft_fabric_config config = {ft_env_real(), -1};
    ft_fabric *f = nullptr;
    int rc = verbs_fabric_ops.open(&config, &f);
    std::string text = rc ? ft_fail_text() : "";
    if (f)
        verbs_fabric_ops.close(f);
    printf("%d %s\n", rc, text.c_str());
    return {rc, text};
}

bool has(const std::string &text, const char *part)
{
    return text.find(part) != std::string::npos;
}

TEST(VerbsInput, UnknownDeviceListsThoseThatAreThere)
{
    auto [rc, text] = opened({{"NCCL_IB_HCA", "mlx5_7"}});
    EXPECT_EQ(rc, FT_INVAL);
    EXPECT_TRUE(has(text, "'mlx5_7' leaves no RDMA port; there are: rxe0:1 (Ethernet, active), "
                          "rxe1:1 (Ethernet, active), rxe2:1"));
    EXPECT_EQ(opened({{"FTCCL_IB_HCA", "=rxe"}}).first, FT_INVAL);
    EXPECT_EQ(opened({{"FTCCL_IB_HCA", "^rxe"}}).first, FT_INVAL);
    EXPECT_EQ(opened({{"FTCCL_IB_HCA", "rxe0:2"}}).first, FT_INVAL);
    EXPECT_EQ(opened({{"FTCCL_IB_HCA", "rxe0:1"}}).first, FT_OK);
    EXPECT_EQ(opened({{"FTCCL_IB_DISABLE", "1"}}).first, FT_NOTSUP);
}

TEST(VerbsInput, WrongGidIndexListsTheTable)
{
    auto [rc, text] = opened({{"FTCCL_IB_HCA", "rxe0"}, {"FTCCL_IB_GID_INDEX", "9"}});
    EXPECT_EQ(rc, FT_INVAL);
    EXPECT_TRUE(has(text, "is empty; there are: 0: "));
    EXPECT_TRUE(has(text, "1: 10.77.0.1 (RoCE v2)"));
    auto [rc2, text2] = opened({{"FTCCL_IB_HCA", "rxe0"}, {"FTCCL_IB_GID_INDEX", "255"}});
    EXPECT_EQ(rc2, FT_INVAL);
    EXPECT_TRUE(has(text2, "1: 10.77.0.1 (RoCE v2)"));
    auto [rc3, text3] = opened({{"FTCCL_IB_HCA", "rxe0"}, {"FTCCL_IB_ADDR_RANGE", "192.0.2.0/24"}});
    EXPECT_EQ(rc3, FT_NOTSUP);
    EXPECT_TRUE(has(text3, "1: 10.77.0.1 (RoCE v2)"));
    EXPECT_EQ(opened({{"FTCCL_IB_ADDR_RANGE", "10.77.0.0/99"}}).first, FT_INVAL);
    EXPECT_EQ(opened({{"FTCCL_IB_ADDR_FAMILY", "inet"}}).first, FT_INVAL);
    EXPECT_EQ(opened({{"FTCCL_IB_MTU", "1500"}}).first, FT_INVAL);
    EXPECT_EQ(opened({{"FTCCL_IB_SOURCE_PORTS", "80"}}).first, FT_INVAL);
}

bool without_lock_right()
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) != 0)
        return false;
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    return syscall(SYS_capset, &header, data) == 0;
}

TEST(VerbsInput, TooLittleLockedMemoryNamesWhatIsNeeded)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {65536, 65536};
        if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !without_lock_right())
            _exit(3);
        auto [rc, text] = opened({{"FTCCL_IB_HCA", "rxe0"}});
        _exit(rc == FT_NOTSUP && has(text, "the limit on locked memory is 64 KiB (ulimit -l), and ")
                  ? 0
                  : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
}

TEST(VerbsInput, TheReportNamesPortsAndAddresses)
{
    char *text = nullptr;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    verbs_fabric_ops.describe(out);
    fclose(out);
    printf("%s", text);
    EXPECT_TRUE(has(text, "verbs: rxe0:1 RoCE, active, MTU 4096, GID 1 (10.77.0.1)\n"));
    EXPECT_TRUE(has(text, "verbs: rxe3:1 RoCE, active, MTU 4096, GID 1 (10.78.0.2)\n"));
    free(text);
}

} // namespace
