/*
 * Property: whichever single allocation, descriptor or registration with epoll of a probing fails,
 * the status says so, and nothing leaks. Method: the n-th call of each class fails, for every n, in
 * a probing of this machine.
 */
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/socket.h>

#include "tests/nomem/fail.h"
#include "tests/unit/path_config.h"

namespace
{

struct Case {
    nomem::Class which;
    int status;
    long least; /* calls of this class in a probing */
};

class Single : public testing::TestWithParam<Case>
{
};

int probe(const Case &c, long n)
{
    const ft_path_config config = path_to_this_machine();
    ft_path_table *table = nullptr;
    nomem::arm(c.which, n);
    const int status = ft_path_probe(&config, &table);
    nomem::disarm();
    EXPECT_EQ(table != nullptr, status == FT_OK);
    ft_path_table_free(table);
    return status;
}

void repeat(size_t times, const Case &c, long n)
{
    for (size_t i = 0; i < times; i++)
        probe(c, n);
}

TEST_P(Single, FailureIsToldAndLeaksNothing)
{
    const Case &c = GetParam();
    const size_t repeats = 20, smallest_bytes = 32; /* that malloc gives */
    long n = 1;
    for (int status; (status = probe(c, n)) != FT_OK && n < 100; n++) {
        EXPECT_EQ(status, c.status) << nomem::failed_call() << ": " << ft_fail_text();
        repeat(repeats, c, n); /* malloc's caches fill */
        const int descriptors = ft_fd_count();
        const size_t memory = mallinfo2().uordblks;
        repeat(repeats, c, n);
        EXPECT_LT(mallinfo2().uordblks, memory + repeats * smallest_bytes) << nomem::failed_call();
        EXPECT_EQ(ft_fd_count(), descriptors) << nomem::failed_call();
    }
    EXPECT_GT(n, c.least);
    EXPECT_LT(nomem::counted(c.which), n) << "a call that failed made no difference";
}

INSTANTIATE_TEST_SUITE_P(Of, Single,
                         testing::Values(Case{nomem::MEMORY, FT_NOMEM, 6},
                                         Case{nomem::DESCRIPTOR, FT_NOFILE, 3},
                                         Case{nomem::WATCH, FT_NOMEM, 2}),
                         [](const testing::TestParamInfo<Case> &i) {
                             return nomem::class_names[i.param.which];
                         });

TEST(Cache, TellsThatThereIsNoMemory)
{
    nomem::arm(nomem::MEMORY, 1);
    EXPECT_EQ(ft_path_cache_open(ft_env_real(), 4, 1), nullptr);
    nomem::disarm();
}

/* The finder itself, then the tables that it makes. */
TEST(Finder, TellsThatThereIsNoMemory)
{
    for (unsigned n = 1; n <= 2; n++) {
        nomem::arm(nomem::MEMORY, n);
        EXPECT_EQ(ft_path_finder_open(ft_env_real(), -1, nullptr), nullptr);
        nomem::disarm();
    }
    ft_net_address at = {};
    at.family = AF_INET, at.ip[0] = 127, at.ip[3] = 1, at.port = 9;
    ft_path_finder *finder = ft_path_finder_open(ft_env_real(), -1, nullptr);
    ft_port_finder *ports = ft_path_finder_ports(finder);
    ft_ports found;
    ASSERT_TRUE(ports);
    nomem::arm(nomem::MEMORY, 1);
    EXPECT_EQ(ports->find(ports, &at, &at, &found), FT_NOTSUP);
    nomem::disarm();
    EXPECT_EQ(ports->find(ports, &at, &at, &found), FT_NOTSUP) << "it is not tried at once";
    ft_path_finder_close(finder);
}

} // namespace
