// Property: which ranks an agreement leaves out because of broken links, and the effect of lists
// and of different kinds of calls. Method: as in agree_test.cc.
#include "sim/agree_checks.h"

using namespace agree;

namespace
{

// ---- broken links ----

TEST(AgreeLinks, OfAPairThatDoesNotHearEachOtherTheHigherRankGoes)
{
    for (int who : {1, 2, 3}) { // reported by the lower, the higher, both
        World w(16, 4);
        w.cut[1][2] = w.cut[2][1] = true;
        if (who & 1)
            w.learn(1, 2, FT_UNREACHABLE);
        if (who & 2)
            w.learn(2, 1, FT_UNREACHABLE);
        w.enter_all();
        EXPECT_TRUE(w.settle(ENTER));
        EXPECT_EQ(ranks_of(decision(w, {0, 1, 2, 3}).failed), (Ranks{2}));
    }
}

TEST(AgreeLinks, OneThatDiedAfterItPromisedGoesAndNotTheOneThatSaysSo)
{
    for (bool told : {true, false}) { // whether the leader sees it too
        World w(20, 4);
        for (int r : {0, 1, 2})
            w.enter(r);
        w.run(50 * MS); // the leader has the promises of these, and waits for 3
        w.kill(1);
        if (told)
            w.learn(0, 1, FT_UNREACHABLE);
        w.learn(2, 1, FT_UNREACHABLE);
        w.run(SILENT / 2); // it has said so
        w.enter(3);
        EXPECT_TRUE(w.settle(ENTER));
        EXPECT_EQ(ranks_of(decision(w, {0, 2, 3}).failed), (Ranks{1}));
    }
}

TEST(AgreeLinks, TheLeastAreLeftOut)
{
    World star(17, 5); // 1 does not hear 2, 3 and 4: one is enough
    for (int r : {2, 3, 4}) {
        star.learn(1, r, FT_UNREACHABLE);
        star.learn(r, 1, FT_UNREACHABLE);
    }
    star.enter_all();
    EXPECT_TRUE(star.settle(ENTER));
    EXPECT_EQ(ranks_of(decision(star, {0, 1, 2, 3, 4}).failed), (Ranks{1}));
    World listed(18, 4); // the pair is not broken any more when one of it is on a list
    listed.learn(1, 2, FT_UNREACHABLE);
    Input in;
    in.exclude = {1};
    for (int r : {0, 2, 3})
        listed.enter(r, in);
    EXPECT_TRUE(listed.settle(ENTER));
    EXPECT_EQ(decision(listed, {0, 2, 3}).order, (Ranks{0, 2, 3}));
}

TEST(AgreeLinks, SuspicionThatIsTakenBackExcludesNobody)
{
    World w(19, 4);
    w.learn(1, 2, FT_UNREACHABLE);
    w.learn(0, 3, FT_SILENT);
    w.learn(1, 2, FT_ALIVE);
    w.enter_all();
    EXPECT_TRUE(w.settle(50 * MS));
    EXPECT_EQ(decision(w, {0, 1, 2, 3}).order.size(), 4u);
}

// ---- kinds and lists ----

TEST(AgreeLists, DifferentKindsAreAnErrorForAll)
{
    World w(20, 3);
    Input in;
    w.enter(0, in);
    w.enter(1, in);
    in.kind = FT_AGREE_GROW;
    w.enter(2, in);
    EXPECT_TRUE(w.settle(50 * MS));
    const Decided &d = decision(w, {0, 1, 2});
    EXPECT_EQ(d.status, FT_MIXED);
    EXPECT_EQ(d.order, (Ranks{0, 1, 2}));
}

TEST(AgreeLists, AListedRankIsNotWaitedForAndIsTold)
{
    World w(21, 5);
    Input in;
    in.exclude = {0, 4};
    for (int r : {1, 2, 3})
        w.enter(r, in);
    EXPECT_TRUE(w.settle(50 * MS));
    w.run(10 * MS);
    const Decided &d = decision(w, {0, 1, 2, 3, 4});
    EXPECT_EQ(ranks_of(d.excluded), (Ranks{0, 4}));
    EXPECT_EQ(d.order, (Ranks{1, 2, 3}));
}

TEST(AgreeLists, AListedRankThatDoesNotAnswerIsWaitedForShortly)
{
    World w(29, 3);
    w.kill(2); // nobody suspects it yet
    Input in;
    in.exclude = {2};
    for (int r : {0, 1})
        w.enter(r, in);
    EXPECT_TRUE(w.settle(SILENT / 8));
    EXPECT_EQ(decision(w, {0, 1}).order, (Ranks{0, 1}));
}

TEST(AgreeLists, DifferingListsAreUnited)
{
    World w(22, 5);
    for (int r = 0; r < 5; r++) {
        Input in;
        in.exclude = r < 3 ? Ranks{4} : r == 3 ? Ranks{} : Ranks{0};
        w.enter(r, in);
    }
    EXPECT_TRUE(w.settle(50 * MS));
    EXPECT_EQ(ranks_of(decision(w, {0, 1, 2, 3, 4}).excluded), (Ranks{0, 4}));
}

TEST(AgreeLists, WhenNobodyWouldBeLeftNobodyIsExcluded)
{
    World w(23, 4);
    for (int r : {1, 0, 2, 3}) { // rank 0 leads and must hear all of them: it is not first
        Input in;
        in.exclude = r < 2 ? Ranks{2, 3} : Ranks{0, 1};
        w.enter(r, in);
    }
    EXPECT_TRUE(w.settle(50 * MS));
    const Decided &d = decision(w, {0, 1, 2, 3});
    EXPECT_EQ(d.status, FT_USAGE);
    EXPECT_EQ(d.order.size(), 4u);
    EXPECT_TRUE(ranks_of(d.excluded).empty());
}

TEST(AgreeLists, FlagsTakeNoLists)
{
    World w(24, 3);
    Input in;
    in.kind = FT_AGREE_FLAGS;
    in.exclude = {1};
    w.enter_all(in);
    EXPECT_TRUE(w.settle(50 * MS));
    EXPECT_EQ(decision(w, {0, 1, 2}).order.size(), 3u);
}

TEST(AgreeLists, FromEightToTwoAliveSilentOrDead)
{
    for (int how = 0; how < 3;
         how++) { // the six: never enter; silent without a proof; some silent, some proven dead
        World w(uint64_t(25 + how), 8);
        if (how > 0)
            w.partition(0b00100100, true);
        if (how == 2) {
            for (int r : {0, 1})
                w.kill(r);
            for (int r : {0, 1})
                w.prove_all(r);
        }
        Input in;
        in.exclude = {0, 1, 3, 4, 6, 7};
        w.enter(2, in);
        w.enter(5, in);
        EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
        EXPECT_EQ(decision(w, {2, 5}).order, (Ranks{2, 5})) << "how " << how;
        w.partition(0b00100100, false);
        w.enter(6);
        EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
        EXPECT_EQ(decision(w, {2, 5, 6}).order, (Ranks{2, 5})) << "the listed are told";
    }
}

TEST(AgreeLists, AMinorityWhoseListsDifferHasNoQuorum)
{
    World w(28, 8);
    w.partition(0b00100100, true);
    Input in;
    in.exclude = {0, 1, 3, 4, 6, 7};
    w.enter(2, in);
    in.exclude = {0, 1, 3, 4, 6};
    w.enter(5, in);
    EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
    EXPECT_EQ(w.status[2], FT_NOQUORUM);
    EXPECT_EQ(w.status[5], FT_NOQUORUM);
}

} // namespace
