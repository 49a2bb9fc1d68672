// Property: if digests differ, the odd ones are named, by the majority if there is one. The
// signature of a comparison differs from every call's and leads back to its collective. A changed
// bit of a header or payload changes a message's checksum. Method: cases written by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

extern "C" {
#include "core/core.h"
}

struct Verdict {
    bool differ;
    int odd;
    std::string text;
};

static Verdict verdict(const std::vector<uint32_t> &digests, size_t room = 256)
{
    std::vector<char> text(room, '#');
    Verdict v{};
    v.differ = ft_verify_differ(digests.data(), static_cast<int>(digests.size()), &v.odd,
                                text.data(), room);
    if (v.differ)
        v.text = text.data();
    return v;
}

TEST(Verify, EqualDigestsAreFine)
{
    for (size_t n = 1; n < 9; n++)
        EXPECT_FALSE(verdict(std::vector<uint32_t>(n, 0xabcdef01)).differ) << n;
}

TEST(Verify, TheOddOneOutIsNamed)
{
    for (int n = 3; n < 9; n++)
        for (int bad = 0; bad < n; bad++) {
            std::vector<uint32_t> digests(static_cast<size_t>(n), 7);
            digests[static_cast<size_t>(bad)] = 0x1234;
            Verdict v = verdict(digests);
            EXPECT_TRUE(v.differ);
            EXPECT_EQ(v.odd, bad);
            EXPECT_EQ(v.text, "rank " + std::to_string(bad) + " has 00001234; the other " +
                                  std::to_string(n - 1) + " ranks have 00000007");
        }
}

TEST(Verify, SeveralOddOnesAreAllNamed)
{
    Verdict v = verdict({5, 1, 5, 2, 5});
    EXPECT_EQ(v.odd, 1);
    EXPECT_EQ(v.text, "rank 1 has 00000001, rank 3 has 00000002; the other 3 ranks have 00000005");
}

TEST(Verify, WithoutMajorityNobodyIsToBlame)
{
    Verdict v = verdict({5, 6});
    EXPECT_TRUE(v.differ);
    EXPECT_EQ(v.odd, -1);
    EXPECT_EQ(v.text, "rank 0 has 00000005, rank 1 has 00000006; no value is that of most");
    EXPECT_EQ(verdict({5, 5, 6, 6}).odd, -1);
    EXPECT_EQ(verdict({1, 2, 3}).odd, -1);
}

TEST(Verify, ManyRanksFitASentence)
{
    std::vector<uint32_t> digests(1000);
    for (size_t i = 0; i < digests.size(); i++)
        digests[i] = static_cast<uint32_t>(i);
    Verdict v = verdict(digests);
    EXPECT_NE(v.text.find("rank 7 has"), std::string::npos) << v.text;
    EXPECT_EQ(v.text.find("rank 8 has"), std::string::npos) << v.text;
    EXPECT_NE(v.text.find("and so on"), std::string::npos) << v.text;
    EXPECT_EQ(verdict(digests, 20).text.size(), 19u);
}

TEST(Verify, SignaturesOfComparisonsLeadBackToTheCall)
{
    for (int kind = 0; kind < FT_KINDS; kind++) {
        ft_coll coll{};
        coll.kind = ft_kind(kind), coll.type = FT_FLOAT32, coll.red = FT_MAX, coll.root = 3,
        coll.count = kind % 2 ? 1000 : SIZE_MAX;
        uint64_t sig = ft_sig(&coll);
        EXPECT_EQ(ft_sig_call(sig), sig) << ft_kind_name(coll.kind);
        EXPECT_NE(sig | FT_SIG_VERIFY, sig);
        EXPECT_EQ(ft_sig_call(sig | FT_SIG_VERIFY), sig) << ft_kind_name(coll.kind);
        char call[128], comparing[160];
        ft_sig_text(sig, call, sizeof call);
        ft_sig_text(sig | FT_SIG_VERIFY, comparing, sizeof comparing);
        EXPECT_EQ(comparing, std::string("comparing the results of ") + call);
        ft_sig_text(sig | FT_SIG_VERIFY, comparing, 10); // does not fit
        EXPECT_STREQ(comparing, "comparing");
    }
}

TEST(Verify, EveryBitOfHeaderAndPayloadCounts)
{
    std::vector<unsigned char> data(100, 3);
    ft_header header{};
    header.ctx = 7, header.sig = 8, header.seq = 9, header.len = 100, header.lane = 1,
    header.step = 2;
    const uint32_t sum = ft_message_sum(&header, data.data());
    for (size_t bit = 0; bit < 8 * offsetof(ft_header, crc); bit++) {
        ft_header other = header;
        reinterpret_cast<unsigned char *>(&other)[bit / 8] ^= static_cast<unsigned char>(
            1u << bit % 8);
        other.len = ft_min(other.len, 100);
        if (other.len == header.len && bit / 32 == offsetof(ft_header, len) / 4)
            continue; // more bytes than there are
        EXPECT_NE(ft_message_sum(&other, data.data()), sum) << "bit " << bit;
    }
    for (size_t bit = 0; bit < 8 * data.size(); bit++) {
        data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
        EXPECT_NE(ft_message_sum(&header, data.data()), sum) << "payload bit " << bit;
        data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    }
    header.crc = sum; // is no part of itself
    EXPECT_EQ(ft_message_sum(&header, data.data()), sum);
}
