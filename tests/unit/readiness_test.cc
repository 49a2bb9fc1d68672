// Properties: a sender that asks another engine's readiness table waits until that engine has
// written there, and gets a yes only for what the engine said yes to. A sender that the table does
// not name, or that finds no table, gets a no. Closed tables are used again; after more contexts
// than there is room for, all are free again. Nonsense in the memory is an answer like any other.
// Method: pinned memory of one engine that another engine of this process has mapped.
#include <random>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/base.h"
}

namespace
{

class Board : public testing::Test
{
  protected:
    struct ft_pinned *own = nullptr, *other = nullptr, *met = nullptr;
    void SetUp() override
    {
        struct ft_pinned_place place;
        ASSERT_EQ(ft_pinned_make(65536, &own), FT_OK);
        ASSERT_EQ(ft_pinned_make(65536, &other), FT_OK);
        ft_pinned_locate(own, &place);
        ASSERT_EQ(ft_pinned_map(other, own->fd, &place, &met), FT_OK);
    }
    void TearDown() override
    {
        ft_pinned_release(met);
        while (struct ft_pinned *gone = ft_pinned_take_unkept(other, false))
            ft_pinned_close(gone);
        ft_pinned_close(other);
        ft_pinned_close(own);
    }
    int coll(uint64_t seq, int self = 3) const
    {
        return ft_readiness_query(met, 77, self, false, seq);
    }
    int receive(uint64_t seq, int self = 3) const
    {
        return ft_readiness_query(met, 77, self, true, seq);
    }
};

TEST_F(Board, AnswersWhatItsOwnerHasSaid)
{
    EXPECT_EQ(coll(1), FT_NOTSUP);
    struct ft_readiness *readiness = ft_readiness_open(own, 77);
    ASSERT_NE(readiness, nullptr);
    EXPECT_EQ(ft_readiness_find(own, 77), readiness);
    EXPECT_EQ(coll(1), FT_AGAIN) << "it does not know yet whom it reaches";
    ft_readiness_publish(readiness, 5, true);
    EXPECT_EQ(coll(1), FT_AGAIN);
    ft_readiness_add_rank(readiness, 3);
    ft_readiness_add_rank(readiness, 0);
    ft_readiness_set_complete(readiness);
    EXPECT_EQ(coll(5), FT_OK);
    EXPECT_EQ(coll(4), FT_OK) << "earlier in the same group";
    EXPECT_EQ(coll(6), FT_AGAIN);
    EXPECT_EQ(coll(5, 1), FT_NOTSUP) << "that rank's memory is not reached";
    EXPECT_EQ(coll(5, 0), FT_OK);
    ft_readiness_publish(readiness, 6, false);
    EXPECT_EQ(coll(6), FT_NOTSUP);
    EXPECT_EQ(receive(1), FT_AGAIN);
    ft_readiness_publish_receive(readiness, 3, 2, true);
    EXPECT_EQ(receive(2), FT_OK);
    EXPECT_EQ(receive(1), FT_NOTSUP) << "that receive is over";
    EXPECT_EQ(receive(3), FT_AGAIN);
    EXPECT_EQ(receive(2, 0), FT_AGAIN) << "another rank's";
    ft_readiness_close(own, 77);
    EXPECT_EQ(coll(5), FT_NOTSUP);
    EXPECT_EQ(ft_readiness_open(own, 77), readiness);
    EXPECT_EQ(coll(5), FT_AGAIN) << "of a life before";
}

TEST_F(Board, RunsOutOfRoomAndGetsItBack)
{
    uint64_t n = 1;
    while (ft_readiness_open(own, n))
        n++;
    EXPECT_GT(n, 100u);
    EXPECT_LT(n * 100, FT_PINNED_READINESS_BYTES);
    ft_readiness_close(own, n / 2);
    EXPECT_NE(ft_readiness_open(own, 1000), nullptr);
    EXPECT_EQ(ft_readiness_open(own, 1001), nullptr);
    EXPECT_EQ(ft_readiness_open(own, 0), nullptr);
    /* those that find no room are not reached */
    for (int rank = 0; rank < 100; rank++)
        ft_readiness_add_rank(ft_readiness_find(own, 1000), rank);
    ft_readiness_set_complete(ft_readiness_find(own, 1000));
    EXPECT_EQ(ft_readiness_query(met, 1000, 0, false, 1), FT_AGAIN);
    EXPECT_EQ(ft_readiness_query(met, 1000, 99, false, 1), FT_NOTSUP);
}

TEST_F(Board, NonsenseIsAnAnswer)
{
    std::mt19937_64 random(testing::UnitTest::GetInstance()->random_seed());
    auto *words = static_cast<uint64_t *>(ft_pinned_readiness_area(own));
    for (int i = 0; i < 1000; i++) {
        for (size_t k = 0; k < FT_PINNED_READINESS_BYTES / sizeof *words; k++)
            words[k] = random() % 4;
        int rc = ft_readiness_query(met, random() % 4, static_cast<int>(random() % 4), random() % 2,
                                    random() % 4);
        EXPECT_TRUE(rc == FT_OK || rc == FT_AGAIN || rc == FT_NOTSUP) << rc;
    }
}

} // namespace
