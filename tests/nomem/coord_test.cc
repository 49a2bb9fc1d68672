/*
 * Property: whichever single allocation of the coordinator fails, the member whom it concerns is
 * refused with a sentence, or its connection does not begin, or the view comes a little later; all
 * others get what they would have got. Nothing leaks: AddressSanitizer's builds see it. Method: the
 * n-th allocation fails, for every n, while members register, a view is made, a process is replaced
 * and the coordinator restarts; both with shared bytes of views and without.
 */
#include "tests/nomem/fail.h"
#include "tests/unit/coord_players.h"

namespace
{

using coord::Player;
using coord::World;
using Players = std::vector<Player *>;

// Until all are registered. A refusal must tell of memory.
void join_all(World &w, const Players &who)
{
    for (int i = 0; i < 3; i++) {
        for (Player *p : who) {
            if (p->joined)
                continue;
            w.join(p);
            if (p->joined)
                continue;
            if (p->status != FT_OK) {
                EXPECT_EQ(p->status, FT_NOMEM) << p->sentence;
                EXPECT_NE(p->sentence.find("no memory"), std::string::npos) << p->sentence;
            }
        }
    }
}

void expect_view(const Players &who, uint32_t nranks, uint64_t least_epoch)
{
    for (Player *p : who) {
        EXPECT_EQ(p->view.nranks, nranks) << nomem::failed_call();
        EXPECT_GE(p->view.epoch, least_epoch) << nomem::failed_call();
        EXPECT_FALSE(p->broken) << nomem::failed_call();
    }
}

// The n-th allocation fails. Returns how many there were.
long play(bool blobs, long n)
{
    World w(blobs);
    Players all;
    for (const char *name : {"a", "b", "c", "d", "e"})
        for (uint32_t rank = 0; rank < 2; rank++)
            all.push_back(w.add(name, rank, 2));
    for (Player *p : all)
        p->min_members = 5;
    Player *standby = w.add("");
    nomem::arm(nomem::MEMORY, n);

    join_all(w, all);
    join_all(w, {standby});
    w.ask_all(all);
    w.run(40);
    expect_view(all, 5, 1);
    const uint64_t first = all[0]->view.epoch;

    w.leave(all[3], FT_MEMBERS_GONE);
    all[3] = standby;
    EXPECT_EQ(standby->replica, "b");
    w.ask_all(all);
    w.run(40);
    expect_view(all, 5, first + 1);

    // not the coordinator itself: that is tested below
    nomem::disarm();
    const long counted = nomem::counted(nomem::MEMORY);
    w.restart();
    if (n > counted)
        nomem::arm(nomem::MEMORY, n - counted);
    join_all(w, all);
    w.ask_all(all);
    w.run(40);
    expect_view(all, 5, first + 2);
    nomem::disarm();
    return n > counted ? counted + nomem::counted(nomem::MEMORY) : counted;
}

class Coordinator : public testing::TestWithParam<bool>
{
};

TEST_P(Coordinator, GoesOnWithoutWhatItCouldNotAllocate)
{
    const long total = play(GetParam(), 1000000);
    EXPECT_GT(total, 40);
    for (long n = 1; n <= total && !HasFailure(); n++) {
        play(GetParam(), n);
        EXPECT_NE(nomem::failed_call(), "") << n;
    }
}

INSTANTIATE_TEST_SUITE_P(Of, Coordinator, testing::Bool(),
                         [](const testing::TestParamInfo<bool> &i) {
                             return i.param ? "SharedBytes" : "WholeMessages";
                         });

TEST(Open, TellsThatThereIsNoMemory)
{
    ft_coord_config config = {};
    ft_coord *made = nullptr;
    nomem::arm(nomem::MEMORY, 1);
    EXPECT_EQ(ft_coord_open(&config, &made), FT_NOMEM);
    nomem::disarm();
    EXPECT_EQ(made, nullptr);
}

} // namespace
