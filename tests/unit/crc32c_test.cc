// Property: ft_crc32c computes CRC32C. The processor's instruction and the tables give the same for
// every length, address and start value. Method: the vectors of RFC 3720 B.4 and the usual check
// value; random lengths around the sizes of blocks.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

extern "C" {
#include "base/base.h"
}

TEST(Crc32c, KnownVectors)
{
    std::vector<unsigned char> data(32);
    EXPECT_EQ(ft_crc32c(0, data.data(), 32), 0x8a9136aau) << "32 zeros";
    std::iota(data.begin(), data.end(), static_cast<unsigned char>(0));
    EXPECT_EQ(ft_crc32c(0, data.data(), 32), 0x46dd794eu) << "0, 1, ... 31";
    std::iota(data.rbegin(), data.rend(), static_cast<unsigned char>(0));
    EXPECT_EQ(ft_crc32c(0, data.data(), 32), 0x113fdb5cu) << "31, 30, ... 0";
    data.assign(32, 0xff);
    EXPECT_EQ(ft_crc32c(0, data.data(), 32), 0x62a8ab43u) << "32 ones";
    EXPECT_EQ(ft_crc32c(0, "123456789", 9), 0xe3069283u);
    EXPECT_EQ(ft_crc32c_table(0, "123456789", 9), 0xe3069283u);
    EXPECT_EQ(ft_crc32c(0, nullptr, 0), 0u);
}

TEST(Crc32c, InstructionAndTablesAgreeInPiecesToo)
{
    std::mt19937 random(17);
    std::vector<unsigned char> data(40000);
    for (auto &byte : data)
        byte = static_cast<unsigned char>(random());
    for (size_t len = 0; len < 900; len++)
        ASSERT_EQ(ft_crc32c(0, &data[len % 9], len), ft_crc32c_table(0, &data[len % 9], len))
            << len;
    for (int i = 0; i < 2000; i++) {
        size_t at = random() % 5000, len = random() % 30000, cut = random() % (len + 1);
        uint32_t start = random(), whole = ft_crc32c_table(start, &data[at], len);
        ASSERT_EQ(ft_crc32c(start, &data[at], len), whole)
            << "seed 17, round " << i << ": " << len << " bytes at " << at;
        ASSERT_EQ(ft_crc32c(ft_crc32c(start, &data[at], cut), &data[at + cut], len - cut), whole)
            << "cut at " << cut;
    }
}

TEST(Crc32c, OneBitAnywhereShows)
{
    std::vector<unsigned char> data(6200, 0x5a);
    const uint32_t whole = ft_crc32c(0, data.data(), data.size());
    for (size_t bit = 0; bit < 8 * data.size(); bit += 7) {
        data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
        ASSERT_NE(ft_crc32c(0, data.data(), data.size()), whole) << "bit " << bit;
        data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    }
}

// For numbers: tests/unit/crc32c_test --gtest_also_run_disabled_tests --gtest_filter=*Speed
TEST(Crc32c, DISABLED_Speed)
{
    for (size_t len : {64, 1024, 8192, 131072, 134217728}) {
        std::vector<unsigned char> data(len, 1);
        for (auto *f : {ft_crc32c, ft_crc32c_table}) {
            size_t rounds = std::max<size_t>((256u << 20) / len, 2);
            uint32_t crc = f(0, data.data(), len);
            auto start = std::chrono::steady_clock::now();
            for (size_t i = 0; i < rounds; i++)
                crc = f(crc, data.data(), len);
            std::chrono::duration<double> s = std::chrono::steady_clock::now() - start;
            std::printf("%9zu bytes %s %6.2f GB/s (%08x)\n", len,
                        f == ft_crc32c ? "best " : "table",
                        double(rounds) * double(len) / s.count() / 1e9, crc);
        }
    }
}
