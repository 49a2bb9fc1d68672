/*
 * Property: of communicators that have failed, of links that lose messages and of ranks that join,
 * the analysis names what the ranks have seen together: the sender of changed data, the minority of
 * callers, the link or the host, who has left, who is missing. Method: jobs that are written down
 * in a few lines, and the same jobs with less evidence.
 */
#include "diagnose_builder.h"

namespace
{

using namespace diagnose;

const uint64_t WORLD = 11, OTHER = 21;

Said one(enum ft_verdict_kind kind, int rank, int peer = -1)
{
    return {kind, {{WORLD, rank, peer}}};
}

/* n ranks, of which each is on the host that `hosts` says. All have failed. */
Job failed(const std::vector<uint64_t> &hosts, enum ft_status status)
{
    Job job((int)hosts.size());
    std::vector<int> processes;
    for (size_t i = 0; i < hosts.size(); i++) {
        job.engines[i].host = hosts[i];
        processes.push_back((int)i);
    }
    job.comm(WORLD, "world", processes);
    for (int r = 0; r < (int)hosts.size(); r++) {
        job.calls(WORLD, r);
        job.of(WORLD, r).started = 6;
        job.of(WORLD, r).failed = true;
        job.of(WORLD, r).status = status;
    }
    return job;
}

/* The process of `teller` has noticed this of rank `of`. */
void news(Job &job, int teller, int of, enum ft_news what = FT_NEWS_LOST)
{
    job.seats.push_back({WORLD, of, Job::id(of), 0, 0, what, false, teller});
}

/* ---- what the library has found -------------------------------------------------------------- */

TEST(Failure, ChangedDataNameTheirSender)
{
    Job job = failed({1, 1, 1, 1}, FT_CORRUPT);
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).culprit = r == 3 ? 0 : 2; /* one is wrong */
    job.expect({one(FT_VERDICT_CORRUPT, 2)});
    EXPECT_TRUE(job.says("rank 2 (pid 4002 on host a) has sent data that arrived changed, which "
                         "failed communicator world"))
        << job.text();
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).culprit = 9;
    job.expect({});
}

TEST(Failure, NobodyIsNamedIfTheRanksGoOn)
{
    Job job = failed({1, 1, 1, 1}, FT_CORRUPT);
    for (int r = 0; r < 4; r++) {
        job.of(WORLD, r).culprit = 2;
        job.of(WORLD, r).last.called_ns = ago(1);
    }
    job.expect({});
}

TEST(Failure, OtherCallsNameTheMinority)
{
    Job job = failed({1, 1, 1, 1}, FT_MISMATCH);
    job.of(WORLD, 1).last.sig = sig_of(FT_ALLREDUCE, 5);
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).culprit = 0;
    job.expect({one(FT_VERDICT_MISMATCH, 1)});
    EXPECT_TRUE(job.says("it called AllReduce(count 5")) << job.text();
}

/* One was behind and failed before; the root was ahead, and only its records tell its call. */
TEST(Failure, OtherCallsAreComparedOperationByOperation)
{
    Job job = failed({1, 1, 1, 1}, FT_MISMATCH);
    job.of(WORLD, 2).last.sig = sig_of(FT_BROADCAST, 5);
    for (int r : {1, 3})
        job.of(WORLD, r).last.sig = sig_of(FT_BROADCAST, 4);
    job.of(WORLD, 3).called = job.of(WORLD, 3).started = 5;
    job.of(WORLD, 3).done = 4;
    job.of(WORLD, 0).called = job.of(WORLD, 0).started = 8;
    job.of(WORLD, 0).done = 7;
    job.of(WORLD, 0).last.sig = sig_of(FT_BROADCAST, 4);
    for (uint64_t seq = 5; seq < 9; seq++)
        job.ops.push_back(
            {0, -1, seq, sig_of(FT_BROADCAST, 4), false, seq < 8, ago(12), ago(12), ago(12)});
    job.expect({one(FT_VERDICT_MISMATCH, 2)});
    job.of(WORLD, 2).last.sig = sig_of(FT_BROADCAST, 4);
    job.expect({});
    /* Rank 0 has completed it as its root, before it heard that rank 3 calls another one. */
    job.of(WORLD, 3).called = job.of(WORLD, 3).started = 6;
    job.of(WORLD, 3).done = 5;
    job.of(WORLD, 3).last.sig = sig_of(FT_BROADCAST, 5);
    job.expect({one(FT_VERDICT_MISMATCH, 3)});
}

/* Rank 3 was its root and has completed it, and so have the others; only the next one failed. */
TEST(Failure, OtherCallsInAnOperationThatAllHaveCompleted)
{
    Job job = failed({1, 1, 1, 1}, FT_MISMATCH);
    for (int r = 0; r < 4; r++) {
        job.of(WORLD, r).called = job.of(WORLD, r).started = 7;
        job.of(WORLD, r).done = 6;
        for (uint64_t seq = 6; seq < 8; seq++)
            job.ops.push_back({r, -1, seq, sig_of(FT_BROADCAST, r == 3 && seq == 6 ? 5 : 4), false,
                               seq < 7, ago(12), ago(12), ago(12)});
    }
    job.expect({one(FT_VERDICT_MISMATCH, 3)});
}

TEST(Failure, ASendAndAReceiveThatDoNotFit)
{
    Job job = failed({1, 1, 1, 1}, FT_MISMATCH);
    for (int r = 0; r < 4; r++) {
        job.of(WORLD, r).culprit = 2;
        job.of(WORLD, r).last.sig = sig_of(r == 1 ? FT_RECV : FT_ALLREDUCE, 4);
    }
    job.expect({{FT_VERDICT_MISMATCH, {{WORLD, 1, -1}, {WORLD, 2, -1}}}});
    EXPECT_TRUE(job.says("ranks 1 and 2 have made different calls, which failed")) << job.text();
}

TEST(Failure, ADeadlineNamesWhoHasNotCalled)
{
    Job job = failed({1, 1, 1, 1}, FT_TIMEOUT);
    job.of(WORLD, 2).called = job.of(WORLD, 2).started = 5;
    job.expect({one(FT_VERDICT_NONCOMM_HANG, 2)});
    job = failed({1, 1, 1, 1}, FT_TIMEOUT);
    job.expect({});
}

/* In whatever order the communicators are. */
TEST(Failure, ARankIsLateBecauseAnotherCommunicatorHasFailed)
{
    for (bool first : {false, true}) {
        Job job(4);
        for (uint64_t ctx : {first ? WORLD : OTHER, first ? OTHER : WORLD})
            job.comm(ctx, ctx == WORLD ? "world" : "other", {0, 1, 2, 3});
        for (int r = 0; r < 4; r++) {
            job.of(WORLD, r).failed = job.of(OTHER, r).failed = true;
            job.of(WORLD, r).status = FT_CORRUPT;
            job.of(WORLD, r).culprit = 2;
            job.of(OTHER, r).status = FT_TIMEOUT;
            job.of(OTHER, r).called = r < 2 ? 7 : 6;
            job.of(OTHER, r).done = 6;
        }
        job.expect({one(FT_VERDICT_CORRUPT, 2)});
    }
}

TEST(Failure, AProcessThatIsGoneExplainsTheLostLinks)
{
    Job job = failed({1, 2, 3}, FT_PEER);
    job.process(WORLD, 1).state = FT_PROCESS_GONE;
    news(job, 0, 1);
    news(job, 2, 1);
    job.expect({one(FT_VERDICT_RANK_DEAD, 1)});
}

/* It has closed everything, and its file with it. */
TEST(Failure, ARankHasLeft)
{
    Job job = failed({1, 1, 1, 1}, FT_PEER);
    for (int r = 0; r < 3; r++)
        job.of(WORLD, r).culprit = 3;
    job.lose(WORLD, 3);
    job.seats[0].news = FT_NEWS_LEFT;
    job.seats[0].teller = 0;
    job.expect({one(FT_VERDICT_RANK_DEAD, 3)});
    EXPECT_TRUE(job.says("has left, which failed")) << job.text();
    job.seats[0].news = FT_NEWS_DEAD;
    job.expect({one(FT_VERDICT_RANK_DEAD, 3)});
    EXPECT_TRUE(job.says("has died, which failed")) << job.text();
}

/* It has closed this communicator only. */
TEST(Failure, ARankHasLeftAndGoesOn)
{
    Job job = failed({1, 1, 1, 1}, FT_PEER);
    for (int r = 0; r < 3; r++)
        job.of(WORLD, r).culprit = 3;
    job.of(WORLD, 3).failed = false;
    job.of(WORLD, 3).open = false;
    job.of(WORLD, 3).done = 6;
    job.expect({one(FT_VERDICT_RANK_DEAD, 3)});
    EXPECT_TRUE(job.says("has left, which failed")) << job.text();
}

TEST(Failure, ARankHasLeftWhileOthersStillWait)
{
    Job job(3);
    job.comm(WORLD, "world", {0, 1, 2});
    for (int r = 0; r < 2; r++)
        job.waits(WORLD, r, 2);
    job.lose(WORLD, 2);
    job.expect({one(FT_VERDICT_UNKNOWN, 2)});
    job.seats.push_back(job.seats[0]); /* only the second one knows */
    job.seats[1].news = FT_NEWS_LEFT;
    job.expect({one(FT_VERDICT_RANK_DEAD, 2)});
    EXPECT_TRUE(job.says("it has left, by closing its end")) << job.text();
}

TEST(Verdict, HasAnAdviceIfSomethingCanBeDone)
{
    EXPECT_STREQ(ft_verdict_advice(FT_VERDICT_PARTITION), "look at the network of the host");
    EXPECT_STREQ(ft_verdict_advice(FT_VERDICT_UNKNOWN), "");
    EXPECT_STREQ(ft_verdict_advice((enum ft_verdict_kind)99), "");
}

/* ---- links and hosts ------------------------------------------------------------------------- */

TEST(Lost, TwoThatBlameEachOther)
{
    Job job = failed({1, 1, 1, 1}, FT_PEER);
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).culprit = r == 2 ? 1 : 2;
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 1, 2)});
    EXPECT_TRUE(job.says("the link between rank 1 (pid 4001 on host a) and rank 2 (pid 4002 on "
                         "host a) was lost, which failed communicator world"))
        << job.text();
    job.of(WORLD, 2).culprit = -1; /* only hearsay */
    job.expect({});
}

/* Ranks 2 and 3 have been told of it, and blame rank 1, too: that is no partition. */
TEST(Lost, TheLinkThatItsEndsHaveNoticed)
{
    Job job = failed({1, 2, 3, 4}, FT_PEER);
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).culprit = r == 1 ? 0 : 1;
    news(job, 0, 1);
    news(job, 1, 0);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 0, 1)});
}

TEST(Lost, AHostThatIsCutOff)
{
    Job job = failed({1, 1, 2, 2, 3}, FT_PEER);
    news(job, 2, 0);
    news(job, 3, 4);
    news(job, 1, 3);
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    EXPECT_TRUE(job.says("ranks 2 and 3 are cut off from the other hosts, which failed"))
        << job.text();
    news(job, 0, 4); /* another link that does not lead there */
    job.diagnose();
    ASSERT_EQ(job.found, 1);
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_COMM_HANG_LINK) << job.text();
}

/* Who has failed takes nothing any more, so that other links look silent, too. */
TEST(Lost, AHostThatIsCutOffAndMessagesThatNobodyTakes)
{
    Job job = failed({1, 1, 2, 2, 3}, FT_PEER);
    news(job, 2, 0);
    job.link(WORLD, 0, 4, 9, 5);
    job.link(WORLD, 4, 3, 19, 5); /* heartbeats */
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    job.link(WORLD, 4, 0, 19, 5);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 0, 2)});
    news(job, 3, 4); /* now it is known without them */
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
}

/* Two of the hosts have another communicator, in which either could be the one. */
TEST(Lost, AHostThatIsCutOffInSeveralCommunicators)
{
    Job job = failed({1, 1, 2, 2, 3, 3}, FT_PEER);
    job.comm(OTHER, "other", {2, 3, 4, 5});
    for (int r = 0; r < 4; r++) {
        job.of(OTHER, r).failed = true;
        job.of(OTHER, r).status = FT_PEER;
    }
    news(job, 0, 4);
    job.seats.push_back({OTHER, 3, Job::id(5), 0, 0, FT_NEWS_LOST, false, 2});
    job.seats.push_back({OTHER, 2, Job::id(4), 0, 0, FT_NEWS_LOST, false, 3});
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 4, -1}, {WORLD, 5, -1}}}});
}

/* Two hosts cannot reach each other, and both reach the third. */
TEST(Lost, APathBetweenTwoOfThreeHosts)
{
    Job job = failed({1, 1, 2, 2, 3}, FT_PEER);
    news(job, 2, 0);
    news(job, 3, 1);
    job.expect({{FT_VERDICT_COMM_HANG_LINK, {{WORLD, 0, 2}, {WORLD, 1, 3}}}});
}

/* Hosts 1 and 2 and hosts 3 and 4 still reach each other: what is between them is lost. */
TEST(Lost, APathBetweenTwoHostsAndTwoOthers)
{
    Job job = failed({1, 2, 3, 4}, FT_PEER);
    news(job, 0, 2);
    news(job, 1, 2);
    news(job, 1, 3);
    job.expect({{FT_VERDICT_PATH, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    EXPECT_TRUE(job.says("ranks 2 and 3 are cut off from the other hosts by a lost path"))
        << job.text();
    news(job, 0, 1); /* so it is not that path alone */
    job.diagnose();
    ASSERT_EQ(job.found, 1);
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_COMM_HANG_LINK) << job.text();
    job = failed({1, 1, 2, 3, 4}, FT_PEER); /* the side with fewer ranks */
    news(job, 0, 3);
    news(job, 2, 4);
    job.diagnose();
    ASSERT_EQ(job.found, 1);
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_COMM_HANG_LINK) << "two links: " << job.text();
    news(job, 1, 4);
    job.expect({{FT_VERDICT_PATH, {{WORLD, 3, -1}, {WORLD, 4, -1}}}});
}

/* Each rank has lost only one other. With whom a host talks tells its side of the path. */
TEST(Lost, APathOfWhichEachHostNoticesOneLink)
{
    Job job = failed({1, 2, 3, 4}, FT_PEER);
    news(job, 0, 2);
    news(job, 1, 3);
    job.link(WORLD, 0, 1, 9, 9);
    job.expect({{FT_VERDICT_PATH, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    job.link(WORLD, 1, 2, 9, 9); /* as much as with the other side */
    job.expect({{FT_VERDICT_COMM_HANG_LINK, {{WORLD, 0, 2}, {WORLD, 1, 3}}}});
}

/* Of two halves it is the one that cannot go on. */
TEST(Lost, TwoHostsOfWhichTheSmallerOneIsCutOff)
{
    Job job = failed({1, 1, 1, 2, 2}, FT_PEER);
    news(job, 0, 3);
    news(job, 1, 4);
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 3, -1}, {WORLD, 4, -1}}}});
    job = failed({1, 1, 2, 2}, FT_PEER);
    news(job, 0, 3);
    news(job, 1, 2);
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    job = failed({1, 1, 2, 2, 2}, FT_PEER);
    news(job, 0, 3);
    news(job, 1, 4);
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 0, -1}, {WORLD, 1, -1}}}});
}

/* One side has failed already, the other does not know it. */
TEST(Lost, AFailureIsToldOnce)
{
    Job job = failed({1, 2, 3, 3}, FT_PEER);
    news(job, 0, 1);
    news(job, 1, 0);
    for (int r = 2; r < 4; r++) {
        job.of(WORLD, r).failed = false;
        job.of(WORLD, r).status = FT_OK;
        job.of(WORLD, r).running_sig = sig_of(FT_ALLREDUCE);
        job.of(WORLD, r).running_seq = 6;
        job.of(WORLD, r).running_since_ns = ago(12);
        job.of(WORLD, r).wait.peer = 0;
    }
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 0, 1)});
}

/* In the other communicator some have failed, too, and the others do not know it yet. */
TEST(Lost, AFailureExplainsOthersWhoWaitForTheFailed)
{
    Job job = failed({1, 2, 3, 3}, FT_PEER);
    news(job, 0, 1);
    news(job, 1, 0);
    job.comm(OTHER, "other", {2, 3});
    job.waits(OTHER, 0, 1);
    job.waits(OTHER, 1, 0);
    job.of(OTHER, 1).failed = true;
    job.of(OTHER, 1).status = FT_PEER;
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 0, 1)});
}

/* Around a ring over three hosts: everybody waits to receive. */
Job ring()
{
    Job job(6);
    job.comm(WORLD, "world", {0, 1, 2, 3, 4, 5});
    for (int r = 0; r < 6; r++) {
        job.engines[(size_t)r].host = 1 + (uint64_t)r / 2;
        job.waits(WORLD, r, (r + 5) % 6);
    }
    return job;
}

TEST(Lost, WhoIsSilentBesidesTheLinkThatIsWaitedFor)
{
    Job job = ring();
    for (int r = 0; r < 6; r++)
        job.link(WORLD, r, (r + 1) % 6, r == 1 ? 9 : 5, 5);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 1, 2)});
    job.link(WORLD, 2, 4, 9, 8); /* under way */
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 1, 2)});
    job.link(WORLD, 4, 2, 9, 5); /* heartbeats */
    job.expect({{FT_VERDICT_PARTITION, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
}

/* Who cannot send to another host takes nothing from its own. */
TEST(Lost, BackPressureWithinAHostIsNoLoss)
{
    Job job = ring();
    for (int r = 0; r < 6; r++)
        job.link(WORLD, r, (r + 1) % 6, r == 1 || r == 0 ? 9 : 5, 5);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 1, 2)});
    job = ring();
    for (int r = 0; r < 6; r++)
        job.link(WORLD, r, (r + 1) % 6, r == 0 ? 9 : 5, 5);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, 0, 1)});
}

/* Who cannot send to one host takes nothing from another one, either: TCP tells that all has come
 * there. What it told before the job stood still does not count. */
TEST(Lost, BackPressureBetweenHostsIsNoLoss)
{
    for (double age_s : {0.5, 100.0}) {
        Job job = ring();
        for (int r = 0; r < 6; r++)
            job.link(WORLD, r, (r + 1) % 6, r == 1 || r == 3 ? 9 : 5, 5);
        job.path(WORLD, 1, 2, 0, age_s);
        job.path(WORLD, 3, 4, 7, age_s);
        if (age_s < 1)
            job.expect({one(FT_VERDICT_COMM_HANG_LINK, 3, 4)});
        else
            job.expect({{FT_VERDICT_PARTITION, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    }
}

/* What rank 1 sends arrives until TCP misses the acknowledgements. */
TEST(Lost, OneDirectionAndWhatIsHeldBackOfTheOther)
{
    for (bool sends : {false, true}) {
        Job job(2);
        job.comm(WORLD, "world", {0, 1});
        job.waits(WORLD, 0, 1);
        job.waits(WORLD, 1, 0).wait.sends = sends;
        job.link(WORLD, 0, 1, 9, 5);
        job.link(WORLD, 1, 0, 9, 7);
        job.expect({one(FT_VERDICT_COMM_HANG_LINK, 0, 1)});
    }
    Job job(2);
    job.comm(WORLD, "world", {0, 1});
    job.waits(WORLD, 0, 1);
    job.waits(WORLD, 1, 0);
    job.link(WORLD, 0, 1, 9, 5);
    job.link(WORLD, 1, 0, 9, 5);
    job.expect({{FT_VERDICT_COMM_HANG_LINK, {{WORLD, 0, 1}, {WORLD, 1, 0}}}});
}

/* ---- processes and calls --------------------------------------------------------------------- */

TEST(Frozen, AThreadThatTheLibraryNeeds)
{
    for (int inside = 0; inside < 2; inside++) {
        Job job(3);
        job.comm(WORLD, "world", {0, 1, 2});
        for (int r = 0; r < 2 + inside; r++)
            job.waits(WORLD, r, (r + 2) % 3);
        job.process(WORLD, 2).state = FT_PROCESS_FROZEN;
        strcpy(job.process(WORLD, 2).doing, "has stopped thread 77, others run");
        job.expect({one(FT_VERDICT_LIBRARY_STUCK, 2)});
        EXPECT_TRUE(job.says("it has stopped thread 77")) << job.text();
    }
    Job job(2);
    job.comm(WORLD, "world", {0, 1});
    job.p2p(WORLD, 0, 1, false);
    job.process(WORLD, 1).state = FT_PROCESS_FROZEN;
    job.expect({one(FT_VERDICT_LIBRARY_STUCK, 1)});
}

/* Rank 1 is in a call of the other communicator, in which nobody is. Of the others, one has moved
 * just now, so that their operation does not block yet: they are no culprits in the other one. */
TEST(Engaged, InAnOperationThatDoesNotBlockYet)
{
    Job job(4);
    job.comm(WORLD, "world", {0, 1, 2, 3});
    job.comm(OTHER, "other", {0, 1, 2, 3});
    job.waits(OTHER, 1, 0);
    for (int r : {0, 2, 3})
        job.waits(WORLD, r, (r + 3) % 4);
    job.of(WORLD, 3).progress_ns = ago(1);
    job.expect({});
    job.of(WORLD, 3).progress_ns = ago(12);
    job.diagnose();
    ASSERT_EQ(job.found, 1) << job.text();
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_DEADLOCK) << job.text();
}

/* ---- ranks that join ------------------------------------------------------------------------- */

/* Ranks of four that wait for the others since so many seconds; the first knows how many came. */
Job joining(const std::set<int> &ranks, int arrived, double seconds = 12)
{
    Job job(4);
    job.comm(WORLD, "", {0, 1, 2, 3});
    for (int r = 0; r < 4; r++) {
        ft_snap_member &m = job.of(WORLD, r);
        m.called = m.started = m.done = 0;
        m.last = {};
        m.open = false;
        m.joins = true;
        m.opened_ns = ago(seconds);
        if (ranks.count(r) == 0)
            m.engine = -1;
    }
    job.of(WORLD, *ranks.begin()).arrived = arrived;
    return job;
}

TEST(Joining, WhoIsMissing)
{
    joining({0, 1, 2}, 3).expect({one(FT_VERDICT_STARTING, 3)});
    joining({1, 3}, 2).expect({{FT_VERDICT_STARTING, {{WORLD, 0, -1}, {WORLD, 2, -1}}}});
    joining({0, 1, 2}, 3, 1).expect({});
    joining({0, 1, 2, 3}, 4).expect({});
}

/* Others may have come from another host, so that nobody can be named. */
TEST(Joining, NotAllWhoHaveComeAreHere)
{
    for (int arrived : {0, 3}) {
        Job job = joining({0, 1}, arrived);
        job.diagnose();
        ASSERT_EQ(job.found, 1) << job.text();
        EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_UNKNOWN) << job.text();
        EXPECT_EQ(job.verdicts[0].nculprits, 0) << job.text();
    }
}

/* The others have opened it and wait in its first operation. */
TEST(Joining, OneDoesNotGetThrough)
{
    Job job(3);
    job.comm(WORLD, "world", {0, 1, 2});
    for (int r = 0; r < 3; r++) {
        ft_snap_member &m = job.of(WORLD, r);
        m.called = m.started = m.done = 0;
    }
    job.waits(WORLD, 0, 2);
    job.waits(WORLD, 1, 0);
    job.of(WORLD, 2).last = {};
    job.of(WORLD, 2).open = false;
    job.of(WORLD, 2).joins = true;
    job.expect({one(FT_VERDICT_NONCOMM_HANG, 2)});
}

} // namespace
