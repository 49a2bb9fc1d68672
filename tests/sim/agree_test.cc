// Property: each rule of an agreement alone: which rank is excluded and when, which side may go on,
// what a decision contains, and that hostile bytes and late messages change nothing. Method: real
// machines in a simulated world (agree_world.h) with exactly the faults that the rule is about. The
// schedules that show why a looser rule would be wrong are written out.
#include <cstring>

#include "sim/agree_checks.h"

using namespace agree;

namespace
{

TEST(AgreeRules, HealthyRanksDecideAtOnceAndNobodyIsExcluded)
{
    for (int n = 1; n <= 9; n++) {
        World w(uint64_t(n), n);
        w.enter_all();
        EXPECT_TRUE(w.settle(30 * MS)) << n << " ranks";
        Ranks all;
        for (int r = 0; r < n; r++)
            all.push_back(r);
        EXPECT_EQ(decision(w, all).order, all);
        EXPECT_LE(w.messages, uint64_t(12 * n)) << n << " ranks";
    }
}

TEST(AgreeRules, NothingHappensUntilSomebodyEnters)
{
    World w(1, 4);
    w.run(10 * ENTER);
    EXPECT_EQ(w.messages, 0u);
    EXPECT_TRUE(w.decided.empty());
}

TEST(AgreeRules, AValueIsMadeOfWhatTheSurvivorsBrought)
{
    World w(2, 5);
    const int64_t keys[5] = {7, -1, 7, 0, INT64_MIN};
    for (int r = 0; r < 5; r++) {
        Input in;
        in.flags = ~(1ull << r);
        in.last_op = 50 + uint64_t(r * 7 % 5);
        in.key = keys[r];
        in.blob = r == 3 ? std::string("\0cards", 6) : "";
        w.enter(r, in);
    }
    ASSERT_TRUE(w.settle(30 * MS));
    const Decided &d = decision(w, {0, 1, 2, 3, 4});
    EXPECT_EQ(d.status, FT_OK);
    EXPECT_EQ(d.kind, FT_AGREE_SHRINK);
    EXPECT_EQ(d.order, (Ranks{4, 1, 3, 0, 2}));
    EXPECT_EQ(d.flags, ~31ull);
    EXPECT_EQ(d.first_op, 50u);
    EXPECT_EQ(d.last_op, 54u);
    EXPECT_EQ(d.blob, std::string("\0cards", 6));
    World again(3, 5);
    again.enter_all();
    ASSERT_TRUE(again.settle(30 * MS));
    EXPECT_NE(again.of(0)->nonce, d.nonce);
}

TEST(AgreeRules, AProvenDeathIsNotWaitedForWhoeverKnowsIt)
{
    for (int dead = 0; dead < 5; dead++) {
        World w(uint64_t(dead), 5);
        w.kill(dead);
        w.prove(dead, dead == 4 ? 3 : 4); // one rank that does not lead has the proof
        w.enter_all();
        if (dead != 0) {
            EXPECT_TRUE(w.settle(30 * MS)) << "dead " << dead;
        }
        EXPECT_TRUE(w.settle(3 * SILENT))
            << "dead " << dead; // the others of a dead rank 0 have to find the next leader
        Ranks rest;
        for (int r = 0; r < 5; r++)
            if (r != dead)
                rest.push_back(r);
        EXPECT_EQ(decision(w, rest).order, rest);
    }
}

TEST(AgreeRules, ASilentRankIsLeftOutAfterItsTimeAndThenTold)
{
    World w(4, 4);
    w.partition(1u << 2, true);
    for (int r : {0, 1, 3})
        w.enter(r);
    w.run(SILENT - 10 * MS);
    EXPECT_TRUE(w.decided.empty());
    EXPECT_TRUE(w.settle(30 * MS));
    EXPECT_EQ(ranks_of(decision(w, {0, 1, 3}).failed), (Ranks{2}));
    w.partition(1u << 2, false);
    w.enter(2);
    EXPECT_TRUE(w.settle(2 * SILENT));
    EXPECT_EQ(ranks_of(decision(w, {0, 1, 2, 3}).failed), (Ranks{2}));
}

TEST(AgreeRules, ARankWhoseUserDoesNotComeIsLeftOutAfterEnterNs)
{
    for (int absent : {0, 2}) {
        World w(5, 4);
        for (int r = 0; r < 4; r++)
            if (r != absent)
                w.enter(r);
        w.run(ENTER - 10 * MS);
        EXPECT_TRUE(w.decided.empty());
        EXPECT_TRUE(w.settle(40 * MS)) << "absent " << absent;
        w.run(10 * MS);
        EXPECT_EQ(ranks_of(decision(w, {0, 1, 2, 3}).failed), (Ranks{absent}));
        w.enter(absent);
        EXPECT_EQ(w.status[size_t(absent)], FT_OK); // it had been told
    }
}

// With the whole machine, at any moment: who had been asked has had no time to answer, and who was
// about to come none to do so.
TEST(AgreeRules, NobodyIsLeftOutForATimeInWhichAllStoodStill)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        World w(seed, 2 + int(seed % 4));
        for (int r = 0; r < w.n; r++)
            w.at(w.now + w.random(20 * MS), [&w, r] { w.enter(r); });
        w.run(w.random(20 * MS));
        w.now += ENTER + 9 * SILENT;
        w.run(30 * MS);
        EXPECT_TRUE(w.settle(SILENT)) << "seed " << seed;
        Ranks all;
        for (int r = 0; r < w.n; r++)
            all.push_back(r);
        EXPECT_EQ(decision(w, all).order, all) << "seed " << seed;
    }
}

TEST(AgreeRules, RankZeroLeadsForOthersBeforeItsOwnUserHasCome)
{
    World w(6, 3);
    int prepared_by_others = 0;
    w.drop = [&](int from, int, const ft_agree_msg &m) {
        prepared_by_others += m.type == FT_MSG_PREPARE && from != 0;
        return false;
    };
    w.enter(1);
    w.enter(2);
    w.run(100 * MS);
    w.enter(0);
    EXPECT_TRUE(w.settle(20 * MS));
    EXPECT_EQ(decision(w, {0, 1, 2}).nonce, w.of(0)->nonce);
    EXPECT_EQ(w.of(0)->order.size(), 3u);
    EXPECT_EQ(prepared_by_others, 0);
}

// ---- quorum ----

TEST(AgreeQuorum, OfTwoTheOtherGoesOnAfterAProofAndRankZeroAlsoWithout)
{
    for (int dead = 0; dead < 2; dead++) {
        for (bool proof : {true, false}) {
            World w(7, 2);
            w.enter_all();
            w.kill(dead);
            if (proof)
                w.prove_all(dead);
            EXPECT_TRUE(w.settle(ENTER + 3 * SILENT));
            EXPECT_EQ(w.status[size_t(1 - dead)], proof || dead == 1 ? FT_OK : FT_NOQUORUM)
                << dead << proof;
            EXPECT_EQ(w.fault_text(), "");
        }
    }
}

TEST(AgreeQuorum, OneSideOfAPartitionGoesOn)
{
    struct {
        int n;
        unsigned side, winner;
    } const cases[] = {{4, 0b0011, 0b0011},   {4, 0b0110, 0b1001},   {4, 0b0001, 0b1110},
                       {5, 0b00011, 0b11100}, {5, 0b10101, 0b10101}, {3, 0b001, 0b110}};
    for (auto &c : cases) {
        World w(8, c.n);
        w.partition(c.side, true);
        w.enter_all();
        EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
        for (int r = 0; r < c.n; r++)
            EXPECT_EQ(w.status[size_t(r)], c.winner >> r & 1 ? FT_OK : FT_NOQUORUM)
                << "rank " << r << " side " << c.side;
        EXPECT_EQ(w.fault_text(), "");
    }
}

TEST(AgreeQuorum, ThreePartsOfWhichNoneIsLargeEnoughAllStop)
{
    World w(9, 5);
    w.partition(0b00011, true);
    w.partition(0b01100, true);
    for (int r : {0, 1})
        for (int k : {2, 3})
            w.cut[size_t(r)][size_t(k)] = w.cut[size_t(k)][size_t(r)] = true;
    w.enter_all();
    EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
    for (int s : w.status)
        EXPECT_EQ(s, FT_NOQUORUM);
}

// A side decided without the others, which were only silent; then `dead` of it died with proof. The
// rest must not go on.
void expect_no_second_decision(int n, unsigned side, const Ranks &dead)
{
    World w(10, n);
    std::vector<unsigned char> question;
    w.drop = [&](int from, int, const ft_agree_msg &m) {
        if (!(side >> from & 1) && m.type == FT_MSG_PREPARE)
            question = bytes_of(n, from, m);
        return false;
    };
    w.partition(side, true);
    int last = -1, asker = -1;
    for (int r = 0; r < n; r++)
        if (side >> r & 1)
            w.enter(r);
    EXPECT_TRUE(w.settle(ENTER));
    for (int r : dead)
        w.kill(r);
    for (int r : dead)
        w.prove_all(r);
    for (int r = 0; r < n; r++) {
        if (w.alive(r) && (side >> r & 1))
            last = r;
        if (side >> r & 1)
            continue;
        w.enter(r);
    }
    EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
    for (int r = 0; r < n; r++)
        if (!(side >> r & 1)) {
            EXPECT_EQ(w.status[size_t(r)], FT_NOQUORUM) << "rank " << r;
        }
    w.partition(side, false);
    ASSERT_FALSE(question.empty());
    asker = ft_ballot_rank(*reinterpret_cast<const uint64_t *>(question.data() + 24));
    w.inject(asker, last, question);
    w.run(10 * MS);
    EXPECT_EQ(decision(w, {last, asker}).nonce, w.of(last)->nonce); // whoever asks later is told
}

// Why the dead stay in the count. {2, 3, 4} of five decide; 3 and 4 die: {0, 1} are two of the
// three that are not proven dead.
TEST(AgreeQuorum, AMajorityOfTheLivingWouldBeASecondDecision)
{
    expect_no_second_decision(5, 0b11100, {3, 4});
}

// {1, 2, 3} of four decide; 1 and 2 die: rank 0 is half of the living, with the lowest rank of
// them.
TEST(AgreeQuorum, HalfOfTheLivingWouldBeASecondDecision)
{
    expect_no_second_decision(4, 0b1110, {1, 2});
}

// {0, 3} of four decide, for rank 0 is there; it dies: {1, 2} are half, with the lowest rank of the
// living.
TEST(AgreeQuorum, ATieThatGoesToTheLowestOfTheLivingWouldBeASecondDecision)
{
    expect_no_second_decision(4, 0b1001, {0});
}

// ---- leaders that die half-way ----

TEST(AgreeLeader, TheNextOneTakesTheValueThatOneRankHadAccepted)
{
    for (bool proof : {true, false}) {
        World w(12, 5);
        uint64_t nonce = 0;
        w.drop = [&](int from, int to, const ft_agree_msg &m) {
            if (from != 0 || m.type != FT_MSG_ACCEPT)
                return false;
            nonce = *reinterpret_cast<const uint64_t *>(m.body + 32);
            if (to == 3)
                return false;
            w.at(w.now + 3 * MS, [&] { w.kill(0); });
            return true;
        };
        w.enter_all();
        w.run(20 * MS);
        ASSERT_FALSE(w.alive(0));
        if (proof)
            w.prove_all(0);
        EXPECT_TRUE(w.settle(ENTER + 4 * SILENT));
        const Decided &d = decision(w, {1, 2, 3, 4});
        EXPECT_EQ(d.nonce, nonce);
        EXPECT_EQ(d.order.size(),
                  5u); // so the dead leader is in it: the next agreement is for that
    }
}

TEST(AgreeLeader, OneThatHearsNobodyElseDoesNotStopTheRest)
{
    World w(13, 5);
    for (int r = 2; r < 5; r++)
        w.cut[0][size_t(r)] = w.cut[size_t(r)][0] = true; // rank 0 and rank 1 hear each other
    w.enter_all();
    EXPECT_TRUE(w.settle(ENTER + 6 * SILENT));
    const Decided &d = decision(w, {0, 1, 2, 3, 4});
    EXPECT_EQ(ranks_of(d.failed), (Ranks{0}));
}

TEST(AgreeLeader, OneThatCannotBeReachedAnyMoreIsReplacedSoon)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        World w(30 + seed, 4);
        for (int r : {0, 1, 2})
            w.enter(r);
        w.run(SILENT); // they have promised to 0, which waits for 3
        w.kill(0);     // without proof
        for (int r : {1, 2, 3})
            w.learn(r, 0, FT_UNREACHABLE);
        w.enter(3);
        EXPECT_TRUE(w.settle(SILENT / 2)) << "seed " << seed;
        EXPECT_EQ(ranks_of(decision(w, {1, 2, 3}).failed), (Ranks{0}));
    }
}

TEST(AgreeLeader, LearnersAskUntilTheyAreTold)
{
    World w(14, 4);
    int dropped = 0;
    w.drop = [&](int, int, const ft_agree_msg &m) {
        return m.type == FT_MSG_DECIDE && dropped++ < 9;
    };
    w.enter_all();
    EXPECT_TRUE(w.settle(2 * SILENT));
    EXPECT_EQ(decision(w, {0, 1, 2, 3}).order.size(), 4u);
    EXPECT_GE(dropped, 9);
}

// Ranks 0, 1 and 2 decide, their word to 3 and 4 is still under way, they die, and 3 has the proof.
// 4 promises to 3 and so stops hearing the dead: were it to believe the late word, 3 and 4 would
// decide differently.
TEST(AgreeLeader, AWordOfTheDeadThatComesLateIsNotHeard)
{
    World w(15, 5);
    std::vector<Held> held;
    w.drop = [&](int from, int to, const ft_agree_msg &m) {
        if (m.type == FT_MSG_DECIDE && from == 0)
            held.push_back({from, to, bytes_of(5, from, m)});
        return to >= 3 || from >= 3 ? from < 3 || to < 3 : false;
    };
    for (int r : {0, 1, 2})
        w.enter(r);
    EXPECT_TRUE(w.settle(ENTER));
    ASSERT_TRUE(w.of(0));
    for (int r : {0, 1, 2})
        w.kill(r);
    for (int r : {0, 1, 2})
        w.prove(r, 3);
    w.enter(4);
    bool came = false;
    const auto rule = w.drop;
    w.drop = [&](int from, int to, const ft_agree_msg &m) {
        if (from == 4 && m.type == FT_MSG_PROMISE && !came) {
            came = true;
            w.at(w.now, [&] {
                for (auto &h : held)
                    if (h.to == 4)
                        w.inject(h.from, 4, h.bytes);
            });
        }
        return rule(from, to, m);
    };
    w.enter(3);
    EXPECT_TRUE(w.settle(ENTER + 4 * SILENT));
    EXPECT_TRUE(came);
    EXPECT_EQ(ranks_of(decision(w, {3, 4}).failed), (Ranks{0, 1, 2}));
}

// Rank 0 leads, loses to rank 1, and leads again; what 1 and 2 answered the first time arrives
// then.
TEST(AgreeLeader, AnAnswerToAnEarlierBallotDoesNotCount)
{
    for (ft_agree_type answer : {FT_MSG_PROMISE, FT_MSG_ACCEPTED}) {
        const ft_agree_type request = answer == FT_MSG_PROMISE ? FT_MSG_PREPARE : FT_MSG_ACCEPT;
        World w(24, 3);
        std::vector<Held> held;
        uint64_t first = 0;
        bool came = false;
        w.drop = [&](int from, int to, const ft_agree_msg &m) {
            if (came)
                return false;
            if (from == 0 && m.type == request && first == 0)
                first = m.ballot;
            if (from == 0 && m.type == request && m.ballot != first) {
                came = true;
                w.at(w.now, [&] {
                    for (auto &h : held)
                        w.inject(h.from, h.to, h.bytes);
                });
            }
            if (to == 0 && m.type == answer && m.ballot == first)
                held.push_back({from, to, bytes_of(3, from, m)});
            return (to == 0 && m.type == answer) || (from != 0 && m.type == FT_MSG_ACCEPT);
        };
        w.enter_all();
        EXPECT_TRUE(w.settle(ENTER + 12 * SILENT));
        EXPECT_TRUE(came && !held.empty());
        EXPECT_EQ(decision(w, {0, 1, 2}).order, (Ranks{0, 1, 2}));
    }
}

// ---- sizes and hostile bytes ----

TEST(AgreeHostile, SizesThatDoNotFitAreRefused)
{
    World w(29, 3);
    Input in;
    ft_agree_config config{};
    config.nranks = 3;
    config.message_bytes = MESSAGE;
    in.blob.assign(ft_agree_blob_room(&config) + 1, 'x');
    EXPECT_EQ(w.enter(0, in), FT_NOTSUP);
    in.blob.pop_back();
    EXPECT_EQ(w.enter(0, in), FT_OK);
    w.enter(1);
    w.enter(2);
    EXPECT_TRUE(w.settle(50 * MS));
    EXPECT_EQ(decision(w, {0, 1, 2}).blob, in.blob);
    config.message_bytes = ft_agree_head_bytes(3) + ft_value_bytes(3) - 1;
    ft_agree *a = nullptr;
    EXPECT_EQ(ft_agree_open(&config, &a), FT_NOTSUP);
}

TEST(AgreeHostile, ABlobThatWouldNotFitIntoAValueIsRefused)
{
    ft_agree_config config{};
    config.nranks = 200; // so many that a value is far longer than a contribution
    config.message_bytes = 4 * MESSAGE;
    const std::vector<unsigned char> none(25), blob(4 * MESSAGE);
    std::vector<unsigned char> body(8 * MESSAGE), out(12 * MESSAGE);
    ft_agree_input in{FT_AGREE_SHRINK, 0, 0, 0, nullptr, blob.data(), 0};
    for (int more = 0; more < 2; more++) {
        ft_agree_msg m{}, back;
        in.blob_bytes = uint32_t(ft_agree_blob_room(&config)) + uint32_t(more);
        m.type = FT_MSG_ENTER;
        m.body_kind = FT_BODY_CONTRIBUTION;
        m.dead = m.unreachable = m.fenced = none.data();
        m.body = body.data();
        m.body_bytes = ft_contribution_encode(body.data(), config.nranks, &in);
        const size_t len = ft_agree_encode(out.data(), &config, &m);
        ASSERT_LE(len, config.message_bytes);
        ASSERT_GT(in.blob_bytes, 100u);
        EXPECT_EQ(ft_agree_decode(&config, out.data(), len, &back), more ? FT_PROTOCOL : FT_OK);
    }
}

TEST(AgreeHostile, GarbageFromTheOutsideChangesNothing)
{
    World w(30, 5);
    w.drop = [&](int from, int to, const ft_agree_msg &m) {
        if (m.type == FT_MSG_ENTER &&
            from == 3) { // a message with a byte changed, cut short or grown
            std::vector<unsigned char> b = bytes_of(5, from, m);
            for (int i = 0; i < 20; i++) {
                std::vector<unsigned char> bad = b;
                bad[w.random(24)] ^= 1 + w.random(255); // the head: nothing of it may be wrong
                bad.resize(bad.size() - (w.random(2) ? w.random(bad.size()) : 0));
                ft_agree_receive(w.machine[size_t(to)], from, bad.data(), bad.size());
            }
        }
        return false;
    };
    w.enter_all();
    ft_agree_receive(w.machine[0], -1, "", 0);
    ft_agree_receive(w.machine[0], 5, "", 0);
    ft_agree_receive(w.machine[0], 0, "", 0);
    EXPECT_TRUE(w.settle(50 * MS));
    EXPECT_EQ(w.of(4)->order.size(), 5u);
}

TEST(AgreeHostile, ABallotAtTheEndOfAllRoundsStopsNobodyForEver)
{
    World w(31, 3);
    static const unsigned char none[1] = {0};
    ft_agree_msg m{};
    m.type = FT_MSG_PREPARE;
    m.ballot = FT_BALLOT_MAX - (1 << FT_BALLOT_RANK_BITS) + 2;
    m.dead = m.unreachable = m.fenced = none;
    for (int r : {0, 1})
        ft_agree_receive(w.machine[size_t(r)], 2, bytes_of(3, 2, m).data(),
                         bytes_of(3, 2, m).size());
    w.faults.clear(); // the referee did not see it
    w.enter(0);
    w.enter(1);
    EXPECT_TRUE(w.settle(ENTER + 9 * SILENT));
    EXPECT_NE(w.status[0], FT_AGAIN);
}

// ---- the referee itself ----

TEST(AgreeReferee, ALegalTraceSurvivesBeingWrittenAndReadAndAChangedOneDoesNot)
{
    World w(32, 3);
    w.keep_trace = true;
    w.enter_all();
    ASSERT_TRUE(w.settle(50 * MS));
    int refused = 0, changed = 0;
    for (size_t change = 0; change <= w.trace.size(); change++) {
        Referee referee(3);
        std::string wrong;
        for (size_t i = 0; i < w.trace.size() && wrong.empty(); i++) {
            Step s;
            ASSERT_TRUE(Step::parse(w.trace[i].line(), &s));
            if (i == change && s.what == What::Send && s.type == Type::Promise)
                s.ballot += 1 << 20, changed++;
            if (i == change && s.what == What::Send && s.type == Type::Accepted)
                s.ballot -= 1 << 20, changed++;
            if (i == change && s.what == What::Send && s.type == Type::Accept)
                s.value++, changed++;
            if (i == change && s.what == What::Decide)
                s.value++, changed++;
            wrong = referee.check(s);
        }
        if (change == w.trace.size()) {
            EXPECT_EQ(wrong, "");
        }
        refused += !wrong.empty();
    }
    EXPECT_EQ(refused, changed);
    EXPECT_GE(changed, 8);
}

} // namespace
