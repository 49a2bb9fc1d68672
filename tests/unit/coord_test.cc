// Properties of the coordinator, one per test: when there is a view and who is in it, what a member
// gets of it, who has a role, what a death, a restart of the coordinator or a refusal means to the
// others. Method: members in virtual time, see coord_players.h, where what must always be true is
// checked.
#include "tests/unit/coord_players.h"

namespace
{

using coord::Player;
using coord::World;
using Players = std::vector<Player *>;

Players operator+(Players a, const Players &b)
{
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

void set_min(const Players &players, uint32_t min_members)
{
    for (Player *p : players)
        p->min_members = min_members;
}

// ---- when there is a view --------------------------------------------------------------------

TEST(Quorum, OneReplicaIsEnoughIfNoMoreAreAskedFor)
{
    World w;
    Players a = w.add_replica("a", 4);
    for (size_t i = 0; i < 3; i++)
        w.ask(a[i]);
    EXPECT_EQ(a[0]->views, 0) << "a rank has not asked";
    w.ask(a[3]);
    for (Player *p : a) {
        EXPECT_EQ(p->views, 1);
        EXPECT_EQ(p->view.nranks, 1u);
        EXPECT_EQ(p->view.epoch, 1u);
        EXPECT_EQ(p->view.local.size(), 4u);
        EXPECT_TRUE(p->whole);
    }
}

TEST(Quorum, WaitsForAsManyReplicasAsAreAskedFor)
{
    World w;
    Players a = w.add_replica("a", 2), b = w.add_replica("b", 2), c = w.add_replica("c", 2);
    set_min(a, 3); // the largest counts: it registers again to say so
    w.join(a[0], a[0]->conn, 0);
    w.ask_all(a + b);
    w.run(5000);
    EXPECT_EQ(a[0]->views + b[0]->views, 0);
    w.ask_all(c);
    for (Player *p : a + b + c) {
        EXPECT_EQ(p->views, 1);
        EXPECT_EQ(p->view.nranks, 3u);
    }
}

TEST(Quorum, WhoHadTheLastViewNeedNotWaitForWhoHasNotAsked)
{
    World w;
    Players a = w.add_replica("a", 2), b = w.add_replica("b", 2);
    w.ask_all(a + b);
    w.run(1000); // the first view may have been of a alone
    w.ask_all(a + b);
    ASSERT_EQ(a[0]->view.nranks, 2u);
    Players c = w.add_replica("c", 2), d = w.add_replica("d", 2);
    const int before = a[0]->views;
    w.ask_all(c);
    EXPECT_EQ(c[0]->views, 0) << "there is no majority of 4 replicas";
    w.ask_all(a + b);
    EXPECT_EQ(a[0]->views, before + 1) << "d is alive and has not asked, but is new";
    for (Player *p : a + b + c)
        EXPECT_EQ(p->view.nranks, 3u);
    EXPECT_EQ(d[0]->views, 0);
}

Players three_in_a_view(World &w, uint32_t size)
{
    Players all;
    for (const char *name : {"a", "b", "c"})
        all = all + w.add_replica(name, size);
    set_min(all, 3);
    for (uint32_t i = 0; i < all.size(); i++)
        w.join(all[i], all[i]->conn, i % size);
    w.ask_all(all);
    EXPECT_EQ(all[0]->view.nranks, 3u);
    set_min(all, 1);
    for (uint32_t i = 0; i < all.size(); i++)
        w.join(all[i], all[i]->conn, i % size);
    return all;
}

TEST(Quorum, TheSameViewIsSentAgainWithANewStep)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t views = w.counts().views, epoch = all[0]->view.epoch;
    for (uint64_t step = 1; step < 5; step++) {
        for (Player *p : all) {
            p->step = step;
            w.ask(p);
        }
        for (Player *p : all) {
            EXPECT_TRUE(p->same);
            EXPECT_EQ(p->view.epoch, epoch);
            EXPECT_EQ(p->view.step, step);
            EXPECT_FALSE(p->broken);
        }
    }
    EXPECT_EQ(w.counts().views, views);
}

TEST(Quorum, AFailureThatOneTellsMakesAnotherViewOfTheSame)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t epoch = all[0]->view.epoch;
    all[3]->failed = true;
    w.ask_all(all);
    for (Player *p : all) {
        EXPECT_EQ(p->view.epoch, epoch + 1);
        EXPECT_EQ(p->view.nranks, 3u);
        EXPECT_FALSE(p->whole) << "nothing has changed";
    }
}

TEST(Quorum, AMajorityOfThoseAliveIsNeededAndTheWindow)
{
    World w;
    Players all = three_in_a_view(w, 1);
    Players d = w.add_replica("d", 1);
    const int before = all[0]->views;
    w.ask(all[0]);
    w.ask(all[1]);
    w.run(5000);
    EXPECT_EQ(all[0]->views, before) << "2 of 4 are no majority";
    w.leave(d[0]);
    w.run(100);
    EXPECT_EQ(all[0]->views, before + 1) << "2 of 3, and the window is over";
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_TRUE(all[2]->broken) << "the others have gone on";
    EXPECT_NE(all[2]->sentence.find("without replica c"), std::string::npos) << all[2]->sentence;
    EXPECT_FALSE(all[0]->broken);
}

TEST(Quorum, TheWindowIsWaitedFor)
{
    World w;
    Players all = three_in_a_view(w, 1);
    const int before = all[0]->views;
    w.ask(all[0]);
    w.ask(all[1]);
    w.run(900);
    EXPECT_EQ(all[0]->views, before);
    w.run(200);
    EXPECT_EQ(all[0]->views, before + 1);
    // and whoever comes later is in the next one
    w.ask_all({all[2], all[0], all[1]});
    for (Player *p : all)
        EXPECT_EQ(p->view.nranks, 3u);
}

TEST(Quorum, TheDeadAreNotWaitedFor)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.ask_all({all[0], all[1], all[2], all[3]});
    const int before = all[0]->views;
    w.cut(all[4]->conn);
    w.deliver();
    EXPECT_EQ(all[0]->views, before + 1);
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_EQ(w.counts().replicas, 2);
}

TEST(Quorum, AReplicaThatLacksARankDoesNotCount)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.leave(all[5]);
    const int before = all[0]->views;
    w.ask_all({all[4], all[0], all[1], all[2], all[3]});
    EXPECT_EQ(all[0]->views, before + 1);
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_EQ(all[4]->views, before);
    EXPECT_TRUE(all[4]->broken);
}

TEST(Quorum, AnAskForAnotherViewIsAnsweredWithItsNumber)
{
    World w;
    Players all = three_in_a_view(w, 1);
    const int before = all[0]->views;
    all[0]->epoch -= 1; // it believes that the last view is an older one
    all[1]->term += 1;
    w.ask_all(all);
    EXPECT_EQ(all[0]->views, before + 1) << "it has asked again";
    EXPECT_EQ(all[0]->view.nranks, 3u);
}

TEST(Quorum, GroupsHaveNothingToDoWithEachOther)
{
    World w;
    Players a = w.add_replica("a", 2, "one"), b = w.add_replica("a", 2, "two");
    w.ask_all(a);
    EXPECT_EQ(a[0]->view.nranks, 1u);
    EXPECT_EQ(b[0]->views, 0);
    EXPECT_EQ(w.counts().groups, 2);
    w.cut(a[0]->conn);
    EXPECT_EQ(w.counts().groups, 1);
    EXPECT_EQ(w.counts().members, 2);
}

// ---- what a member gets ----------------------------------------------------------------------

TEST(Lists, WhoHasTheLastViewGetsOnlyWhatHasChanged)
{
    for (bool blobs : {true, false}) {
        World w(blobs);
        Players all = three_in_a_view(w, 2);
        w.cut(all[2]->conn); // b ends, and d comes
        Players d = w.add_replica("d", 2);
        w.ask_all({all[0], all[1], all[4], all[5], d[0], d[1]});
        for (Player *p : {all[0], all[1], all[4], all[5]}) {
            EXPECT_FALSE(p->whole);
            EXPECT_EQ(p->view.nranks, 3u);
        }
        EXPECT_TRUE(d[0]->whole);
        EXPECT_EQ(d[0]->view.rank, 2u);
        EXPECT_EQ(all[4]->view.rank, 1u);
        // b comes back, behind the others
        Players b = w.add_replica("b", 2);
        w.ask_all(b + Players{all[0], all[1], all[4], all[5], d[0], d[1]});
        EXPECT_EQ(b[0]->view.rank, 3u);
    }
}

TEST(Lists, AReplicaKeepsItsPlaceWhileItIsKnown)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.ask(all[0]);
    w.ask(all[2]);
    w.run(1200); // b is left out
    EXPECT_EQ(all[2]->view.rank, 1u);
    w.ask_all(all);
    EXPECT_EQ(all[1]->view.rank, 1u);
    EXPECT_EQ(all[2]->view.rank, 2u);
}

TEST(Lists, ANewProcessInARoleIsNewToItsRankGroupAndItsReplica)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.leave(all[3], FT_MEMBERS_GONE);
    Player *fresh = w.add("b", 1, 2);
    w.join(fresh);
    ASSERT_TRUE(fresh->joined);
    w.ask_all({all[0], all[1], all[2], fresh, all[4], all[5]});
    EXPECT_TRUE(fresh->whole);
    EXPECT_EQ(fresh->view.rank, 1u);
    for (Player *p : {all[0], all[1], all[2], all[4], all[5]}) {
        EXPECT_FALSE(p->whole);
        EXPECT_EQ(p->view.nranks, 3u);
    }
    EXPECT_EQ(all[1]->view.peers[1], fresh->endpoint);
    EXPECT_EQ(all[2]->view.local[1], fresh->endpoint);
}

TEST(Steps, TheHighestOfCompleteReplicasCountsAndSourcesAreSpread)
{
    World w;
    Players all;
    for (int i = 0; i < 12; i++)
        all = all + w.add_replica("r" + std::to_string(i), 1);
    set_min(all, 12);
    for (int i = 0; i < 12; i++) {
        all[(size_t)i]->step = i < 4 ? 10 : 3; // four are healthy
        w.join(all[(size_t)i], all[(size_t)i]->conn, 0);
    }
    w.ask_all(all);
    std::map<uint32_t, int> first;
    for (Player *p : all) {
        EXPECT_EQ(p->view.step, 10u);
        EXPECT_EQ(p->view.nhealthy, 4u);
        if (p->view.behind)
            first[p->view.sources.at(0)]++;
    }
    EXPECT_EQ(first.size(), 4u);
    for (auto &f : first)
        EXPECT_EQ(f.second, 2) << "rank " << f.first;
}

TEST(Steps, AReplicaIsWhereItsLastRankIs)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t steps[] = {5, 5, 7, 4, 5, 5};
    for (size_t i = 0; i < all.size(); i++)
        all[i]->step = steps[i];
    w.ask_all(all);
    EXPECT_EQ(all[0]->view.step, 5u);
    EXPECT_FALSE(all[0]->view.behind);
    EXPECT_TRUE(all[2]->view.behind) << "it is ahead, and must go back";
    EXPECT_TRUE(all[3]->view.behind);
    EXPECT_EQ(all[3]->view.nhealthy, 2u);
}

// Otherwise rank groups would divide the work of a step among different replicas.
TEST(Steps, AReplicaIsBehindWithAllItsRanks)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t steps[] = {5, 5, 5, 0, 5, 5}; // rank 1 of replica b has begun again
    for (size_t i = 0; i < all.size(); i++)
        all[i]->step = steps[i];
    w.ask_all(all);
    for (size_t i = 0; i < all.size(); i++) {
        const bool behind = i / 2 == 1;
        EXPECT_EQ(all[i]->view.step, 5u);
        EXPECT_EQ(all[i]->view.nhealthy, 2u);
        EXPECT_EQ(all[i]->view.behind, behind) << i;
        EXPECT_EQ(all[i]->view.sources,
                  behind ? std::vector<uint32_t>({0, 2}) : std::vector<uint32_t>());
    }
}

// ---- roles -------------------------------------------------------------------------------------

TEST(Roles, AnotherProcessMustWaitUntilTheRoleIsFree)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Player *other = w.add("b", 1, 2);
    w.join(other);
    EXPECT_EQ(other->status, FT_AGAIN);
    EXPECT_NE(other->sentence.find("rank 1 of replica b is held by another process"),
              std::string::npos)
        << other->sentence;
    w.leave(all[3], FT_MEMBERS_GONE);
    w.join(other);
    EXPECT_EQ(other->status, FT_OK);
    EXPECT_TRUE(other->joined);
}

// Who wants a role waits as long as its process may be dead, and no longer.
TEST(Roles, WhoWantsTheRoleOfOneThatLivesIsSentAwayAfterItsSuspectMs)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Player *other = w.add("b", 1, 2), *second = w.add("c", 1, 2);
    w.conns[(size_t)all[5]->conn].beats = false;
    w.join(other);
    w.join(second);
    w.run(1500);
    w.join(other);
    EXPECT_EQ(other->status, FT_AGAIN) << other->sentence;
    w.run(700);
    w.join(other);
    EXPECT_EQ(other->status, FT_USAGE);
    EXPECT_NE(other->sentence.find("rank 1 of replica b is held by another process"),
              std::string::npos)
        << other->sentence;
    w.join(second);
    EXPECT_TRUE(second->joined) << second->sentence;
}

TEST(Roles, AProcessOnANewConnectionReplacesItselfAndDisturbsNobody)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t epoch = all[0]->view.epoch;
    const int old = all[3]->conn;
    w.join(all[3]);
    EXPECT_TRUE(all[3]->joined);
    w.cut(old); // all[2] ends with it, and comes back too
    w.join(all[2]);
    w.ask_all(all);
    for (Player *p : all) {
        EXPECT_TRUE(p->same);
        EXPECT_FALSE(p->broken);
        EXPECT_EQ(p->view.epoch, epoch);
    }
}

TEST(Roles, WhoHasNotGotTheViewEndsItForTheOthers)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.leave(all[2]);
    w.ask(all[0]);
    w.conns[(size_t)all[1]->conn].deaf = true;
    w.ask(all[1]); // the view of a and b does not reach b
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_FALSE(all[0]->broken);
    w.cut(all[1]->conn);
    w.join(all[1]);
    w.deliver();
    EXPECT_TRUE(all[0]->broken) << "it would wait for b";
    w.ask(all[0]);
    w.run(0);
    EXPECT_EQ(all[1]->view.nranks, 2u);
    EXPECT_EQ(all[0]->view.epoch, all[1]->view.epoch);
}

// a has the view once more and is in the next step; b has lost it and asks again. Each would wait
// for the other.
void lose_the_same_view(World &w, const Players &all)
{
    for (Player *p : all)
        p->asking = false;
    w.ask(all[0]);
    w.ask(all[1]);
    w.conns[(size_t)all[1]->conn].deaf = true;
    w.ask(all[2]);
    EXPECT_TRUE(all[0]->same);
    EXPECT_EQ(all[0]->view.times, 2u);
    EXPECT_EQ(all[1]->view.times, 1u);
}

void expect_another_view(World &w, const Players &all)
{
    const uint64_t epoch = all[0]->view.epoch;
    EXPECT_TRUE(all[0]->broken) << "it would wait for b";
    w.ask_all(all);
    w.run(0);
    for (Player *p : all) {
        EXPECT_EQ(p->view.nranks, 3u);
        EXPECT_EQ(p->view.epoch, all[0]->view.epoch);
        EXPECT_GT(p->view.epoch, epoch);
        EXPECT_FALSE(p->broken);
    }
}

TEST(Roles, WhoHasNotGotTheSameViewAgainEndsItForTheOthers)
{
    World w;
    Players all = three_in_a_view(w, 1);
    lose_the_same_view(w, all);
    EXPECT_FALSE(all[0]->broken);
    w.cut(all[1]->conn);
    w.join(all[1]);
    w.deliver();
    expect_another_view(w, all);
}

TEST(Roles, AStandbyGetsAVacantRoleAtOnce)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Player *standby = w.add("");
    w.join(standby);
    EXPECT_TRUE(standby->joined);
    EXPECT_EQ(w.counts().standbys, 1);
    w.leave(all[3], FT_MEMBERS_GONE);
    EXPECT_EQ(standby->replica, "b");
    EXPECT_EQ(standby->local_rank, 1u);
    EXPECT_EQ(standby->local_size, 2u);
    EXPECT_EQ(w.counts().standbys, 0);
    w.ask_all({all[0], all[1], all[2], standby, all[4], all[5]});
    EXPECT_EQ(standby->view.nranks, 3u);
    EXPECT_EQ(standby->view.rank, 1u);
    // the process that had the role
    all[3]->status = FT_OK;
    w.join(all[3]);
    EXPECT_EQ(all[3]->status, FT_FENCED) << all[3]->sentence;
}

TEST(Roles, AStandbyThatHasNotHeardOfItsRoleIsToldAgain)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Player *standby = w.add("");
    w.join(standby);
    w.conns[(size_t)standby->conn].deaf = true;
    w.leave(all[3], FT_MEMBERS_GONE);
    EXPECT_EQ(standby->replica, "");
    w.join(standby);
    EXPECT_EQ(standby->replica, "b");
    EXPECT_EQ(standby->local_rank, 1u);
}

TEST(Roles, StandbysGoFirstWhereFewestAreMissing)
{
    World w;
    Players all = three_in_a_view(w, 3);
    w.leave(all[0], FT_MEMBERS_GONE);
    w.leave(all[1], FT_MEMBERS_GONE);
    w.leave(all[5], FT_MEMBERS_GONE);
    Players standbys;
    for (int i = 0; i < 4; i++) {
        standbys.push_back(w.add(""));
        w.join(standbys.back());
    }
    EXPECT_EQ(standbys[0]->replica, "b");
    EXPECT_EQ(standbys[1]->replica, "a");
    EXPECT_EQ(standbys[2]->replica, "a");
    EXPECT_EQ(standbys[3]->replica, "");
}

TEST(Roles, AWholeReplicaOfTheViewIsReplaced)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Players standbys = {w.add(""), w.add("")};
    for (Player *p : standbys)
        w.join(p);
    w.cut(all[2]->conn);
    w.deliver();
    w.ask_all({all[0], all[1], all[4], all[5]});
    w.ask_all(standbys);
    w.run(1100);
    EXPECT_EQ(standbys[0]->replica, "b");
    EXPECT_EQ(standbys[0]->view.nranks, 3u);
    EXPECT_EQ(standbys[1]->view.rank, 1u);
}

TEST(Roles, WhoLeavesLeavesNoVacancyAndNoneIsAtTheBeginning)
{
    World w;
    Player *standby = w.add("");
    w.join(standby);
    Player *a0 = w.add("a", 0, 2), *a1 = w.add("a", 1, 2);
    w.join(a0);
    EXPECT_EQ(standby->replica, "") << "rank 1 of a has not come yet";
    w.join(a1);
    w.ask_all({a0, a1});
    EXPECT_EQ(a0->views, 1);
    w.leave(a1);
    EXPECT_EQ(standby->replica, "");
    EXPECT_EQ(w.counts().standbys, 1);
}

TEST(Roles, WhatMakesNoSenseIsRefusedAndConcernsNobodyElse)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const struct {
        std::string group, replica;
        uint32_t rank, size;
        int status;
        const char *sentence;
    } cases[] = {
        {"", "x", 0, 2, FT_USAGE, "group is empty"},
        {"g\n", "x", 0, 2, FT_USAGE, "control characters"},
        {"g", "\x1b[2J", 0, 2, FT_USAGE, "control characters"},
        {"g", "x", 0, 0, FT_USAGE, "0 ranks"},
        {"g", "x", 0, 1025, FT_USAGE, "1025 ranks"},
        {"g", "x", 2, 2, FT_USAGE, "no local rank 2"},
        {"g", "b", 0, 3, FT_USAGE, "but replica b of group g has 2"},
        {"g", "x", 0, 3, FT_USAGE, "of group g has 2"},
    };
    for (auto &c : cases) {
        Player *p = w.add(c.replica, c.rank, c.size, c.group);
        w.join(p);
        EXPECT_EQ(p->status, c.status) << c.sentence;
        EXPECT_NE(p->sentence.find(c.sentence), std::string::npos) << p->sentence;
    }
    Player *other = w.add("x", 0, 2);
    w.set_endpoint(other, 2);
    w.join(other);
    EXPECT_EQ(other->status, FT_MISMATCH);
    EXPECT_NE(other->sentence.find("config=2; there: config=1"), std::string::npos)
        << other->sentence;
    EXPECT_EQ(w.counts().groups, 1);
    EXPECT_EQ(w.counts().replicas, 3);
    w.ask_all(all);
    EXPECT_TRUE(all[0]->same);
}

TEST(Roles, AProcessHasOneRoleAndAConnectionOneMemberForASlot)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Player twice = *all[0];
    twice.replica = "d";
    w.say(all[2]->conn, FT_MEMBERS_JOIN, (twice.slot = 5, World::encode_join(&twice)));
    EXPECT_EQ(w.counts().members, 6);
    EXPECT_EQ(w.counts().replicas, 3);
    const int conn = all[0]->conn;
    Player *other = w.add("d", 0, 2);
    w.join(other, conn, 0);
    EXPECT_EQ(w.counts().members, 6);
    // in another group it may have another role, but not in that slot
    Player *same = w.add("a", 0, 2, "h");
    same->engine = all[0]->engine;
    w.set_endpoint(same, 1);
    w.join(same, conn, 0);
    EXPECT_EQ(w.counts().groups, 1);
    w.join(same, conn, 7);
    EXPECT_EQ(w.counts().groups, 2);
}

TEST(Roles, WhoIsNotRegisteredIsTold)
{
    World w;
    Players all = three_in_a_view(w, 2);
    Player stranger = *all[0];
    stranger.slot = 77;
    w.say(all[0]->conn, FT_MEMBERS_ASK, World::encode_ask(&stranger));
    ASSERT_EQ(w.queue.size(), 1u);
    EXPECT_EQ(w.queue.front().type, FT_MEMBERS_REFUSED);
}

// ---- the dead and the silent -------------------------------------------------------------------

TEST(Silence, TheOthersAreToldThatTheirViewIsOver)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.conns[(size_t)all[2]->conn].beats = false;
    w.run(1900);
    EXPECT_EQ(w.counts().members, 6);
    EXPECT_FALSE(all[0]->broken);
    w.run(300);
    EXPECT_EQ(w.counts().members, 4);
    for (Player *p : {all[0], all[1], all[4], all[5]}) {
        EXPECT_TRUE(p->broken);
        EXPECT_NE(p->sentence.find("of replica b has been silent for 2."), std::string::npos)
            << p->sentence;
    }
    w.ask_all({all[0], all[1], all[4], all[5]});
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_FALSE(all[0]->broken);
}

TEST(Silence, TheEndOfAConnectionBreaksNoView)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.cut(all[2]->conn);
    w.run(100);
    EXPECT_EQ(w.counts().members, 4);
    EXPECT_FALSE(all[0]->broken) << "links tell of it";
}

TEST(Silence, TimeInWhichTheCoordinatorWasStoppedDoesNotCount)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.now += 3600000 * coord::ms;
    w.tick(); // before what they have sent is read
    EXPECT_EQ(w.counts().members, 6);
    w.run(100);
    EXPECT_EQ(w.counts().members, 6);
}

TEST(Silence, EachConnectionHasThePatienceOfItsMembers)
{
    World w;
    Player *a = w.add("a"), *b = w.add("b");
    a->suspect_ms = 500, b->suspect_ms = 4000;
    w.join(b);
    w.join(a);
    w.conns[(size_t)a->conn].beats = w.conns[(size_t)b->conn].beats = false;
    w.run(600);
    EXPECT_EQ(w.counts().members, 1);
    w.run(3000);
    EXPECT_EQ(w.counts().members, 1);
    w.run(1000);
    EXPECT_EQ(w.counts().members, 0);
}

TEST(Silence, ADeathThatAMemberProvesCountsAtOnce)
{
    World w;
    Players all = three_in_a_view(w, 1);
    all[0]->dead = {all[2]->engine, 12345, all[0]->engine};
    all[0]->failed = true;
    w.ask(all[0]);
    EXPECT_EQ(w.counts().members, 2);
    EXPECT_EQ(all[2]->status, FT_AGAIN) << "if it lives, it comes back";
    w.ask(all[1]);
    EXPECT_EQ(all[0]->view.nranks, 2u);
}

// ---- restarts of the coordinator ---------------------------------------------------------------

void come_back(World &w, const Players &who)
{
    std::map<std::string, int> conn;
    for (Player *p : who) {
        auto it = conn.find(p->replica);
        const int at = it == conn.end() ? w.connect() : it->second;
        conn[p->replica] = at;
        w.join(p, at, p->local_rank);
    }
}

TEST(Restart, WhatAllHoldIsTheLastViewAndNobodyIsDisturbed)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t epoch = all[0]->view.epoch, term = all[0]->view.term;
    w.restart();
    // in another order than that of their ranks
    come_back(w, {all[5], all[4], all[1], all[0], all[2], all[3]});
    w.run(3000);
    for (Player *p : all)
        EXPECT_FALSE(p->broken);
    w.ask_all(all);
    for (size_t i = 0; i < all.size(); i++) {
        EXPECT_EQ(all[i]->view.epoch, epoch + 1);
        EXPECT_NE(all[i]->view.term, term);
        EXPECT_EQ(all[i]->view.nranks, 3u);
        EXPECT_EQ(all[i]->view.rank, i / 2);
        EXPECT_FALSE(all[i]->whole) << "it has the list";
        EXPECT_FALSE(all[i]->broken);
    }
    w.ask_all(all);
    EXPECT_TRUE(all[0]->same);
}

TEST(Restart, AViewThatHasNotReachedAllAgainIsOverAtOnce)
{
    World w;
    Players all = three_in_a_view(w, 1);
    lose_the_same_view(w, all);
    w.restart();
    come_back(w, all);
    w.run(0);
    expect_another_view(w, all);
}

// A process that begins comes long before them, and the window is over.
TEST(Restart, AViewThatIsToldLateRunsOnOnlyIfAllHaveItEquallyOften)
{
    for (const bool lost : {false, true}) {
        World w;
        Players all = three_in_a_view(w, 1);
        if (lost)
            lose_the_same_view(w, all);
        w.restart();
        Players d = w.add_replica("d", 1);
        w.run(1200);
        come_back(w, {all[0], all[2]});
        EXPECT_FALSE(all[0]->broken);
        come_back(w, {all[1]});
        for (Player *p : all)
            EXPECT_EQ(p->broken, lost);
        w.ask_all(all + d);
        w.run(0);
        for (Player *p : all + d)
            EXPECT_EQ(p->view.nranks, 4u);
    }
}

TEST(Restart, OfViewsThatAreToldLateTheHighestRunsOn)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.restart();
    w.add_replica("d", 1);
    w.run(1200);
    come_back(w, {all[0], all[1]});
    Player *higher = w.add("e");
    higher->view = all[0]->view;
    higher->view.epoch++;
    w.join(higher);
    come_back(w, {all[2]});
    for (Player *p : all)
        EXPECT_TRUE(p->broken);
    EXPECT_FALSE(higher->broken);
}

TEST(Restart, AViewOfWhichSomebodyIsMissingIsOverAfterTheWindow)
{
    World w;
    Players all = three_in_a_view(w, 2);
    const uint64_t epoch = all[0]->view.epoch;
    w.restart();
    come_back(w, {all[0], all[1], all[4], all[5]});
    w.ask_all({all[0], all[1], all[4], all[5]});
    w.run(900);
    EXPECT_FALSE(all[0]->broken);
    EXPECT_EQ(all[0]->view.epoch, epoch) << "b may come yet";
    EXPECT_NE(all[0]->waits.find("2 of 3 replicas of the last view"), std::string::npos)
        << all[0]->waits;
    w.run(200);
    EXPECT_EQ(all[0]->view.epoch, epoch + 1);
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_EQ(all[4]->view.rank, 1u);
    EXPECT_NE(all[0]->sentence.find("has restarted"), std::string::npos) << all[0]->sentence;
}

static int recall(World &w, const char *replica, uint32_t size)
{
    ft_role role = {};
    snprintf(role.group, sizeof role.group, "g");
    snprintf(role.replica, sizeof role.replica, "%s", replica);
    role.local_size = size;
    return ft_coord_recall(w.coord, &role);
}

/* A store told of it; none of its members is left. */
TEST(Restart, ARecalledReplicaIsKeptForItsMembersForTheWindowAndThenGoesToStandbys)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.restart();
    for (const char *replica : {"a", "b", "c"})
        EXPECT_EQ(recall(w, replica, 2), FT_OK);
    EXPECT_EQ(recall(w, "", 2), FT_INVAL);
    EXPECT_EQ(recall(w, "d", 0), FT_INVAL);
    EXPECT_EQ(recall(w, "d", FT_LOCAL_MOST + 1), FT_INVAL);
    Players standbys = {w.add(""), w.add("")};
    for (Player *standby : standbys)
        w.join(standby);
    come_back(w, {all[0], all[1], all[4], all[5]});
    w.ask_all({all[0], all[1], all[4], all[5]});
    w.run(900);
    EXPECT_EQ(standbys[0]->replica, "") << "who had the role may come yet";
    w.run(200);
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT_EQ(standbys[i]->replica, "b");
        EXPECT_EQ(standbys[i]->local_rank, i);
    }
}

TEST(Restart, StandbysAloneGetRecalledRolesAfterTheWindow)
{
    World w;
    EXPECT_EQ(recall(w, "a", 2), FT_OK);
    EXPECT_EQ(recall(w, "a", 2), FT_OK) << "told twice, it is one replica";
    Players standbys = {w.add(""), w.add(""), w.add("")};
    for (Player *standby : standbys)
        w.join(standby);
    w.run(900);
    EXPECT_EQ(standbys[0]->replica, "");
    w.run(200);
    EXPECT_EQ(standbys[0]->replica, "a");
    w.run(1100); // who had the other role gets as long again
    EXPECT_EQ(standbys[1]->replica, "a");
    EXPECT_EQ(standbys[2]->replica, "");
    EXPECT_EQ(w.counts().replicas, 1);
}

TEST(Restart, AnotherJobWithTheNameOfARecalledOne)
{
    World w;
    EXPECT_EQ(recall(w, "a", 4), FT_OK);
    Player *standby = w.add("");
    w.join(standby);
    Players d = w.add_replica("d", 2);
    EXPECT_TRUE(d[0]->joined && d[1]->joined) << d[0]->sentence;
    w.ask_all(d);
    EXPECT_EQ(d[0]->view.nranks, 1u);
    EXPECT_EQ(w.counts().replicas, 1);
    w.run(3000);
    EXPECT_EQ(standby->replica, "");
}

TEST(Restart, RecalledReplicasAreForgottenWhenAllWhoHoldTheViewAreThere)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.restart();
    EXPECT_EQ(recall(w, "a", 2), FT_OK);
    EXPECT_EQ(recall(w, "z", 2), FT_OK) << "it left after this was kept";
    Player *standby = w.add("");
    w.join(standby);
    come_back(w, all);
    w.run(3000);
    EXPECT_EQ(standby->replica, "");
    EXPECT_EQ(w.counts().replicas, 3);
    w.ask_all(all);
    EXPECT_EQ(all[0]->view.nranks, 3u);
}

TEST(Restart, ANewReplicaWaitsForThoseWhoHoldTheView)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.restart();
    w.join(all[1]);
    Players d = w.add_replica("d", 1);
    w.ask(d[0]);
    w.run(100);
    EXPECT_EQ(d[0]->views, 0);
    come_back(w, {all[0], all[2]});
    w.ask_all(all);
    w.run(0);
    EXPECT_EQ(d[0]->views, 1);
    EXPECT_EQ(d[0]->view.nranks, 4u);
    EXPECT_EQ(d[0]->view.rank, 3u);
    EXPECT_EQ(all[0]->view.rank, 0u);
}

TEST(Restart, WhoKnowsOfAViewWaitsForThoseWhoHaveIt)
{
    World w;
    Players all = three_in_a_view(w, 1);
    Players d = w.add_replica("d", 1);
    w.ask_all(d);
    w.restart();
    w.join(d[0]);
    w.run(400);
    EXPECT_EQ(d[0]->views, 0);
    EXPECT_NE(d[0]->waits.find("nobody who has the last view"), std::string::npos) << d[0]->waits;
    come_back(w, all);
    w.ask_all(all);
    EXPECT_EQ(d[0]->view.nranks, 4u);
    for (Player *p : all)
        EXPECT_FALSE(p->broken);
}

TEST(Restart, AnOlderViewIsOverWhenALaterOneIsTold)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.conns[(size_t)all[2]->conn].deaf = true; // c does not hear of the next view
    w.ask_all({all[0], all[1]});
    w.run(1100);
    EXPECT_EQ(all[0]->view.nranks, 2u);
    EXPECT_FALSE(all[2]->broken);
    w.restart();
    w.join(all[2]);
    w.join(all[0]);
    EXPECT_TRUE(all[2]->broken);
    w.join(all[1]);
    w.run(3000);
    EXPECT_FALSE(all[0]->broken);
    w.ask_all(all);
    EXPECT_EQ(all[2]->view.nranks, 3u);
}

TEST(Restart, LiesAboutWhatIsHeldHarmNobodyForLong)
{
    World w;
    Players all = three_in_a_view(w, 1);
    const uint64_t epoch = all[0]->view.epoch;
    w.restart();
    all[0]->liar = true;
    all[0]->view.rank = 2; // two say that they have rank 2
    come_back(w, all);
    w.ask_all(all);
    EXPECT_EQ(all[1]->view.epoch, epoch);
    w.run(1200);
    EXPECT_EQ(all[1]->view.epoch, epoch + 1);
    EXPECT_EQ(all[1]->view.nranks, 3u);
    w.restart();
    all[1]->liar = true;
    all[1]->view.epoch = FT_EPOCH_MOST;
    all[1]->view.nranks = 1, all[1]->view.rank = 0;
    come_back(w, all);
    w.ask_all({all[0], all[2], all[1]});
    w.run(2200);
    EXPECT_EQ(all[2]->view.epoch, FT_EPOCH_MOST + 1);
    EXPECT_EQ(all[2]->view.nranks, 3u);
}

TEST(Restart, WhoSaysThatItWasInTheViewIsBelievedUntilItEnds)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.restart();
    Player *false_b = w.add("b");
    false_b->liar = true;
    false_b->view = all[1]->view;
    come_back(w, {false_b, all[0], all[2]});
    w.join(all[1]);
    EXPECT_EQ(all[1]->status, FT_FENCED);
    Players rest = Players{all[0], all[2]} + w.add_replica("d", 1);
    w.ask_all(rest);
    w.ask(false_b);
    EXPECT_EQ(rest[2]->view.peers[1], false_b->endpoint);
    EXPECT_EQ(all[0]->view.peers[1], all[1]->endpoint) << "nobody has told that it is another one";
    w.cut(false_b->conn);
    w.ask_all(rest);
    for (Player *p : rest) {
        EXPECT_EQ(p->view.nranks, 3u);
        EXPECT_EQ(p->view.peers, all[0]->view.peers);
        EXPECT_EQ(p->view.sources, all[0]->view.sources);
    }
}

TEST(Restart, TheProcessWithTheViewIsTheOneThatHasTheRole)
{
    World w;
    Players all = three_in_a_view(w, 1);
    w.restart();
    Player *early = w.add("b");
    w.join(early);
    EXPECT_TRUE(early->joined);
    come_back(w, all);
    EXPECT_TRUE(all[1]->joined);
    EXPECT_EQ(early->status, FT_FENCED);
    w.ask_all(all);
    EXPECT_EQ(all[1]->view.rank, 1u);
}

TEST(Restart, AStandbyGetsARoleWhoseProcessDidNotComeBack)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.restart();
    Player *standby = w.add("");
    w.join(standby);
    come_back(w, {all[0], all[1], all[2], all[4], all[5]});
    w.run(900);
    EXPECT_EQ(standby->replica, "");
    w.run(200);
    EXPECT_EQ(standby->replica, "b");
    EXPECT_EQ(standby->local_rank, 1u);
}

TEST(Restart, AGroupThatComesBackGoesOnCounting)
{
    World w;
    Players all = three_in_a_view(w, 1);
    const uint64_t epoch = all[0]->view.epoch;
    for (Player *p : all)
        w.leave(p);
    EXPECT_EQ(w.counts().groups, 0);
    Players fresh = w.add_replica("z", 1);
    w.ask_all(fresh);
    EXPECT_EQ(fresh[0]->view.epoch, epoch + 1);
}

// ---- what members are told while they wait -----------------------------------------------------

TEST(Waits, TheSentenceNamesWhoIsMissing)
{
    World w;
    Players all = three_in_a_view(w, 4);
    Players ab(all.begin(), all.begin() + 8);
    const int before = all[0]->views;
    w.ask_all(ab);
    w.run(200);
    EXPECT_EQ(all[0]->waits, "");
    w.run(200);
    EXPECT_EQ(all[0]->waits, "2 of 3 replicas that are alive are ready; replica c is alive and has "
                             "not asked (0.3 s of the window of 1 s)");
    EXPECT_EQ(all[0]->waits, all[7]->waits);
    EXPECT_EQ(all[8]->waits, "") << "it has not asked";
    w.run(800);
    EXPECT_EQ(all[0]->views, before + 1);
}

TEST(Waits, TheSentenceNamesTheRanks)
{
    World w;
    Player *a = w.add("a", 0, 1, "h");
    a->min_members = 2;
    w.join(a);
    w.ask(a);
    w.run(1100);
    EXPECT_EQ(a->waits, "1 of 2 replicas that are needed are ready (0.3 s of the window of 1 s)");

    Players b = w.add_replica("b", 4), c = {w.add("c", 0, 4), w.add("c", 2, 4)};
    set_min(b, 2);
    w.join(b[0], b[0]->conn, 0);
    w.join(c[0]);
    w.join(c[1]);
    w.ask_all(b);
    w.run(2000);
    EXPECT_EQ(b[0]->waits,
              "1 of 2 replicas that are needed are ready; replica c lacks ranks 1 and 3 "
              "(0.3 s of the window of 1 s)");
    for (uint32_t rank : {1, 3}) {
        c.push_back(w.add("c", rank, 4));
        w.join(c.back());
    }
    w.ask(c[0]);
    w.ask(c[2]);
    w.run(2000);
    EXPECT_EQ(b[0]->waits, "1 of 2 replicas that are needed are ready; ranks 2 and 3 of replica c "
                           "have not asked");
    w.ask(c[1]);
    w.run(2000);
    EXPECT_EQ(b[0]->waits,
              "1 of 2 replicas that are needed are ready; rank 3 of replica c has not asked");
    w.ask(c[3]);
    EXPECT_EQ(b[0]->view.nranks, 2u);
}

TEST(Waits, AStandbyIsToldThatItIsOne)
{
    World w;
    Player *standby = w.add("");
    w.join(standby);
    w.ask(standby);
    EXPECT_EQ(standby->waits, "this process is a standby, and no role is vacant");
}

// ---- the connections ---------------------------------------------------------------------------

TEST(Connections, WhatIsNoMessageEndsOnlyTheConnection)
{
    World w;
    Players all = three_in_a_view(w, 1);
    const std::string join = World::encode_join(all[2]), ask = World::encode_ask(all[2]);
    const struct {
        uint16_t type;
        std::string bytes;
    } cases[] = {{0, ""},
                 {99, ""},
                 {FT_MEMBERS_VIEW, ""},
                 {FT_MEMBERS_JOIN, join.substr(0, join.size() - 1)},
                 {FT_MEMBERS_ASK, ask + "x"},
                 {FT_MEMBERS_BEAT, "x"},
                 {FT_MEMBERS_QUIET_BEAT, "x"},
                 {FT_MEMBERS_LEAVE, "abc"},
                 {FT_MEMBERS_GONE, ""}};
    for (auto &c : cases) {
        const int conn = w.connect();
        EXPECT_FALSE(w.say(conn, c.type, c.bytes)) << c.type;
        EXPECT_NE(std::string(ft_fail_text()).find("none of managed membership"),
                  std::string::npos);
    }
    EXPECT_EQ(w.counts().connections, 3);
    w.ask_all(all);
    EXPECT_TRUE(all[0]->same);
}

TEST(Connections, AQuietBeatIsHeardAndNotAnswered)
{
    World w;
    Players all = three_in_a_view(w, 1);
    const int conn = all[0]->conn;
    for (uint16_t type : {FT_MEMBERS_BEAT, FT_MEMBERS_QUIET_BEAT}) {
        w.queue.clear();
        EXPECT_TRUE(w.say(conn, type, ""));
        EXPECT_EQ(w.queue.size(), type == FT_MEMBERS_BEAT ? 1u : 0u);
    }
    w.run(10000); // with quiet ones
    EXPECT_EQ(w.counts().members, 3);
}

TEST(Connections, OneThatTakesNoMessagesEndsAloneAndTheOthersGoOn)
{
    World w;
    Players all = three_in_a_view(w, 2);
    w.broken_conns.insert(all[2]->conn);
    w.ask_all(all);
    EXPECT_TRUE(all[0]->same);
    w.cut(all[2]->conn); // the owner knows
    w.broken_conns.clear();
    w.ask_all({all[0], all[1], all[4], all[5]});
    EXPECT_EQ(all[0]->view.nranks, 2u);
}

TEST(Connections, ManyMembersMayShareOneInSlotsOfTheirChoice)
{
    World w;
    const int conn = w.connect();
    Players all;
    for (uint32_t i = 0; i < 4; i++) {
        all.push_back(w.add("r" + std::to_string(i), 0, 1));
        w.join(all.back(), conn, i * 1000 + 95);
    }
    w.ask_all(all);
    w.run(1100);
    w.ask_all(all);
    w.run(1100);
    EXPECT_EQ(all[3]->view.nranks, 4u);
    w.cut(conn);
    EXPECT_EQ(w.counts().members, 0);
    EXPECT_EQ(w.counts().groups, 0);
}

} // namespace
