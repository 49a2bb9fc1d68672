/*
 * Property: the analysis names the rank or link for which a job waits, and nobody in a healthy job.
 * Method: jobs that are written down in a few lines, one for each fault of a list: who is dead or
 * stopped, does not call, calls something else, is not started by its stream, loses messages;
 * alone, nested in other communicators, two at once, and with files missing.
 */
#include <numeric>

#include "diagnose_builder.h"

namespace
{

using namespace diagnose;

const uint64_t WORLD = 11, TP = 21, DP = 31, PP = 41;

/* Four ranks. All but `without` have called AllReduce and wait around a ring. */
Job ring(int without = -1)
{
    Job job(4);
    job.comm(WORLD, "world", {0, 1, 2, 3});
    for (int r = 0; r < 4; r++)
        if (r != without)
            job.waits(WORLD, r, (r + 3) % 4);
    return job;
}

Said one(enum ft_verdict_kind kind, uint64_t ctx, int rank, int peer = -1)
{
    return {kind, {{ctx, rank, peer}}};
}

/* ---- healthy ----------------------------------------------------------------------------------
 */

TEST(Healthy, NobodyDoesAnything)
{
    Job job(4);
    job.expect({});
    job.comm(WORLD, "world", {0, 1, 2, 3});
    job.expect({});
}

TEST(Healthy, AllMove)
{
    Job job = ring();
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).progress_ns = ago(0.01);
    job.expect({});
}

TEST(Healthy, OneMoves)
{
    Job job = ring();
    job.of(WORLD, 2).progress_ns = ago(1);
    job.expect({});
    job.of(WORLD, 2).progress_ns = NOW + 3 * SECOND; /* another host's clock */
    job.expect({});
}

TEST(Healthy, ARankIsLateByLessThanThePatience)
{
    Job job = ring(2);
    for (int r : {0, 1, 3})
        job.of(WORLD, r).running_since_ns = job.of(WORLD, r).progress_ns = ago(4.9);
    job.expect({});
}

TEST(Healthy, ARankThatWasLateHasJustCome)
{
    Job job = ring(2);
    job.waits(WORLD, 2, 1, 0.1);
    job.expect({});
    job = ring(2);
    job.calls(WORLD, 2, 0.1);
    job.expect({});
}

/* A stage of a pipeline works on; those who wait for it at the end wait long. */
TEST(Healthy, WhoIsLateGoesOnInAnotherCommunicator)
{
    Job job = ring(2);
    job.comm(TP, "tp", {2});
    job.of(TP, 0).last.called_ns = ago(1);
    job.expect({});
    job.of(TP, 0).last.called_ns = ago(6);
    job.of(TP, 0).progress_ns = ago(1);
    job.expect({});
    job.of(TP, 0).progress_ns = ago(6);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 2)});
}

TEST(Healthy, SomeHaveLeftAfterTheLastOperation)
{
    Job job(4);
    job.comm(WORLD, "world", {0, 1, 2, 3});
    job.of(WORLD, 1).open = false;
    job.process(WORLD, 1).state = FT_PROCESS_GONE;
    job.expect({});
}

/* Its wait ended with it. */
TEST(Healthy, WhoHasLeftWaitsNoLonger)
{
    Job job = ring();
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).open = false;
    job.expect({});
}

TEST(Healthy, TwoWereCalledJustNowAndNoneHasStarted)
{
    Job job(2);
    job.comm(WORLD, "world", {0, 1});
    for (int i = 0; i < 2; i++)
        job.calls(WORLD, 0, 2);
    job.expect({});
    job.of(WORLD, 0).last.called_ns = ago(6);
    job.expect(
        {{FT_VERDICT_NONCOMM_HANG, {{WORLD, 1, -1}}}, {FT_VERDICT_STREAM_HANG, {{WORLD, 0, -1}}}});
}

/* ---- processes ------------------------------------------------------------------------------- */

TEST(Process, IsGone)
{
    for (int inside = 0; inside < 2; inside++) {
        Job job = ring(inside ? -1 : 2);
        job.process(WORLD, 2).state = FT_PROCESS_GONE;
        job.expect({one(FT_VERDICT_RANK_DEAD, WORLD, 2)});
        EXPECT_TRUE(
            job.says("rank 2 (pid 4002 on host a) is gone; others wait for it in "
                     "AllReduce(count 4, float32, sum), operation 6 of communicator world"));
        EXPECT_EQ(job.verdicts[0].since_ns, 12 * SECOND);
        EXPECT_EQ(job.verdicts[0].seq, 6u);
        EXPECT_EQ(job.verdicts[0].culprits[0].pid, 4002);
    }
}

TEST(Process, IsStoppedBetweenCallsOrInside)
{
    for (int inside = 0; inside < 2; inside++) {
        Job job = ring(inside ? -1 : 2);
        job.process(WORLD, 2).state = FT_PROCESS_STOPPED;
        job.expect({one(FT_VERDICT_RANK_STOPPED, WORLD, 2)});
    }
}

/* Rank 2 has finished, so nobody waits for it, although it is stopped. */
TEST(Process, IsStoppedAfterItHasFinished)
{
    Job job = ring(1);
    job.process(WORLD, 2).state = FT_PROCESS_STOPPED;
    job.of(WORLD, 2).done = job.of(WORLD, 2).called;
    job.of(WORLD, 2).running_seq = job.of(WORLD, 2).running_sig = 0;
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 1)});
}

TEST(Process, HasFinishedAndIsGone)
{
    Job job = ring(1);
    job.of(WORLD, 2).done = job.of(WORLD, 2).called;
    job.of(WORLD, 2).running_seq = job.of(WORLD, 2).running_sig = 0;
    job.of(WORLD, 2).open = false;
    job.process(WORLD, 2).state = FT_PROCESS_GONE;
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 1)});
}

TEST(Process, LeavesEarlyInOrder)
{
    Job job = ring(2);
    job.of(WORLD, 2).open = false;
    job.expect({one(FT_VERDICT_RANK_DEAD, WORLD, 2)});
    EXPECT_TRUE(job.says("it has left, by closing its end"));
    job.process(WORLD, 2).state = FT_PROCESS_GONE;
    job.expect({one(FT_VERDICT_RANK_DEAD, WORLD, 2)});
}

/* Its file is there, the row of the communicator is not. */
TEST(Process, IsGoneAndHasOnlyASeat)
{
    Job job = ring(2);
    job.lose(WORLD, 2);
    job.seats[0].engine = Job::id(2);
    job.engines[2].state = FT_PROCESS_GONE;
    job.expect({one(FT_VERDICT_RANK_DEAD, WORLD, 2)});
    EXPECT_EQ(job.verdicts[0].culprits[0].engine, 2);
    job.engines[2].state = FT_PROCESS_STOPPED;
    job.expect({one(FT_VERDICT_RANK_STOPPED, WORLD, 2)});
}

/* The others' errors have come already in one communicator; who stays away from the next one
 * because of that is not the cause. */
TEST(Process, IsGoneAndOthersHaveGivenUp)
{
    Job job(4);
    job.comm(TP, "tp", {0, 1});
    job.comm(DP, "dp0", {0, 2});
    job.comm(DP + 1, "dp1", {1, 3});
    job.engines[0].state = FT_PROCESS_GONE;
    job.of(TP, 1).failed = true;
    job.of(TP, 1).status = FT_PEER;
    job.waits(DP, 1, 0);
    job.waits(DP + 1, 1, 0);
    job.expect({one(FT_VERDICT_RANK_DEAD, DP, 0)});
    job.engines[0].state = FT_PROCESS_RUNS; /* nobody else explains it now */
    job.of(DP, 1).called = job.of(DP, 1).started = 5;
    job.of(DP, 1).running_seq = 0;
    job.expect({one(FT_VERDICT_NONCOMM_HANG, DP + 1, 0)});
}

/* Nobody waits for it any more: all communicators with it have failed. */
TEST(Process, IsGoneAndOthersHaveNotGoneOn)
{
    Job job = ring();
    job.process(WORLD, 3).state = FT_PROCESS_GONE;
    for (int r = 0; r < 4; r++)
        job.of(WORLD, r).running_seq = job.of(WORLD, r).running_sig = 0;
    for (int r = 0; r < 3; r++) {
        job.of(WORLD, r).failed = true;
        job.of(WORLD, r).status = FT_PEER;
    }
    job.expect({{FT_VERDICT_RANK_DEAD, {{WORLD, 3, -1}}}});
    EXPECT_NE(std::string(job.verdicts[0].sentence).find("has died, which failed"),
              std::string::npos)
        << job.verdicts[0].sentence;
    job.process(WORLD, 3).state = FT_PROCESS_STOPPED;
    job.expect({{FT_VERDICT_RANK_STOPPED, {{WORLD, 3, -1}}}});
    job.process(WORLD, 3).state = FT_PROCESS_GONE;
    /* They have made another one, and go on. */
    job.comm(WORLD + 7, "again", {0, 1, 2});
    for (int r = 0; r < 3; r++)
        job.of(WORLD + 7, r).progress_ns = ago(0.1);
    job.expect({});
}

TEST(Process, IsGoneWithItsFileAndOthersHaveNotGoneOn)
{
    Job job = ring();
    for (int r = 0; r < 3; r++) {
        job.of(WORLD, r).running_seq = job.of(WORLD, r).running_sig = 0;
        job.of(WORLD, r).failed = true;
        job.of(WORLD, r).status = FT_PEER;
        job.of(WORLD, r).culprit = 3;
    }
    job.lose(WORLD, 3, true);
    job.expect({{FT_VERDICT_RANK_DEAD, {{WORLD, 3, -1}}}});
    for (int r = 0; r < 3; r++)
        job.of(WORLD, r).status = FT_TIMEOUT; /* no proof */
    job.expect({});
}

/* ---- calls ----------------------------------------------------------------------------------- */

TEST(Call, IsNotMade)
{
    Job job = ring(2);
    strcpy(job.engines[2].doing, "sleeps in hrtimer_nanosleep");
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 2)});
    EXPECT_STREQ(job.verdicts[0].sentence,
                 "rank 2 (pid 4002 on host a) has not called AllReduce(count 4, float32, sum), "
                 "operation 6 of communicator world; its last call was operation 5, 20.0 s ago, by "
                 "thread 77; it sleeps in hrtimer_nanosleep");
    EXPECT_EQ(job.verdicts[0].sig, sig_of(FT_ALLREDUCE));
    EXPECT_TRUE(job.says("from 0x1234"));
}

TEST(Call, IsNotMadeBySeveral)
{
    Job job = ring(2);
    job.of(WORLD, 0).called = job.of(WORLD, 0).started = 5;
    job.of(WORLD, 0).running_seq = job.of(WORLD, 0).running_sig = 0;
    job.expect({{FT_VERDICT_NONCOMM_HANG, {{WORLD, 0, -1}, {WORLD, 2, -1}}}});
    EXPECT_TRUE(job.says("ranks 0 and 2 have not called"));
}

/* More than a verdict has room for are counted. */
TEST(Call, IsNotMadeByMany)
{
    std::vector<int> all;
    for (int r = 0; r < 40; r++)
        all.push_back(r);
    Job job(40);
    job.comm(WORLD, "world", all);
    for (int r = 0; r < 40; r += 2)
        job.waits(WORLD, r, (r + 1) % 40);
    job.diagnose();
    ASSERT_EQ(job.found, 1);
    EXPECT_EQ(job.verdicts[0].nculprits, 20);
    EXPECT_EQ(job.verdicts[0].culprits[FT_CULPRITS - 1].rank, 31);
    EXPECT_TRUE(job.says(", 29, 31 and 4 more have not called")) << job.text();
}

TEST(Call, WasLeftOut)
{
    Job job = ring(2);
    job.waits(WORLD, 2, 1, 12, sig_of(FT_BROADCAST));
    job.expect({one(FT_VERDICT_MISMATCH, WORLD, 2)});
    EXPECT_TRUE(job.says("it called Broadcast("));
    job = ring(2);
    job.calls(WORLD, 2, 12, sig_of(FT_BROADCAST)); /* not even started */
    job.expect({one(FT_VERDICT_MISMATCH, WORLD, 2)});
}

TEST(Call, DiffersInTheMinority)
{
    Job job = ring(1);
    job.waits(WORLD, 1, 0, 12, sig_of(FT_ALLREDUCE, 5));
    job.expect({one(FT_VERDICT_MISMATCH, WORLD, 1)});
    EXPECT_EQ(job.verdicts[0].sig, sig_of(FT_ALLREDUCE, 4));
}

TEST(Call, DiffersAndNobodyIsTheMajority)
{
    Job job(2);
    job.comm(WORLD, "world", {0, 1});
    job.waits(WORLD, 0, 1);
    job.waits(WORLD, 1, 0, 12, sig_of(FT_ALLREDUCE, 5));
    job.expect({{FT_VERDICT_MISMATCH, {{WORLD, 0, -1}, {WORLD, 1, -1}}}});
}

TEST(Call, HasFailedAsDifferent)
{
    Job job = ring(1);
    job.of(WORLD, 1).failed = true;
    job.of(WORLD, 1).status = FT_MISMATCH;
    job.expect({one(FT_VERDICT_MISMATCH, WORLD, 1)});
}

TEST(Stream, IsHeld)
{
    Job job = ring(3);
    job.calls(WORLD, 3);
    job.expect({one(FT_VERDICT_STREAM_HANG, WORLD, 3)});
    EXPECT_TRUE(job.says("has called, but its stream has not started, AllReduce("));
    job.comm(TP, "tp", {3}); /* something else runs on the device */
    job.waits(TP, 0, -1, 1);
    job.expect({});
}

TEST(Stream, IsHeldBeforeASend)
{
    Job job(2);
    job.comm(PP, "pp", {0, 1});
    job.p2p(PP, 0, 1, false);
    job.p2p(PP, 1, 0, true);
    job.of(PP, 1).p2p_started = 0;
    job.of(PP, 1).running_sig = 0;
    job.expect({one(FT_VERDICT_STREAM_HANG, PP, 1)});
}

/* ---- deadlock -------------------------------------------------------------------------------- */

TEST(Deadlock, TwoCommunicatorsInOppositeOrder)
{
    for (int queued = 0; queued < 2; queued++) {
        Job job(2);
        job.comm(TP, "x", {0, 1});
        job.comm(DP, "y", {0, 1});
        job.waits(TP, 0, 1);
        job.waits(DP, 1, 0);
        if (queued) {
            job.calls(DP, 0, 11);
            job.calls(TP, 1, 11);
        }
        job.expect({{FT_VERDICT_DEADLOCK, {{TP, 1, -1}, {DP, 0, -1}}}});
        EXPECT_TRUE(job.says("waits for rank 1 (pid 4001 on host a), which is in")) << job.text();
    }
}

/* The stream is held; the operation that runs was called later. */
TEST(Deadlock, IsNoneIfTheOtherWasCalledLater)
{
    Job job(2);
    job.comm(TP, "x", {0, 1});
    job.comm(DP, "y", {0, 1});
    job.waits(TP, 0, 1, 14);
    job.calls(TP, 1, 14);
    job.waits(DP, 1, 0, 12);
    job.expect({one(FT_VERDICT_STREAM_HANG, TP, 1)});
}

TEST(Deadlock, OfThreeCommunicators)
{
    Job job(3);
    for (int c = 0; c < 3; c++) {
        job.comm(TP + (uint64_t)c, "ring", {c, (c + 1) % 3});
        job.waits(TP + (uint64_t)c, 0, 1);
    }
    job.expect({{FT_VERDICT_DEADLOCK, {{TP, 1, -1}, {TP + 1, 1, -1}, {TP + 2, 1, -1}}}});
}

/* There is no room for all of them: the one in the other operation is named before the rest. */
TEST(Deadlock, OneOfManyRanksCallsInOppositeOrder)
{
    std::vector<int> all(24);
    std::iota(all.begin(), all.end(), 0);
    for (auto [most, one] : {std::pair{TP, DP}, std::pair{DP, TP}}) {
        Job job(24);
        job.comm(TP, "x", all);
        job.comm(DP, "y", all);
        for (int r : all)
            job.waits(r == 20 ? one : most, r, r == 20 ? 0 : 20);
        std::set<Named> named{{most, 20, -1}};
        for (int r = 0; r < FT_CULPRITS - 1; r++)
            named.insert({one, r, -1});
        job.expect({{FT_VERDICT_DEADLOCK, named}});
    }
}

TEST(Deadlock, AProcessInItIsStopped)
{
    Job job(2);
    job.comm(TP, "x", {0, 1});
    job.comm(DP, "y", {0, 1});
    job.waits(TP, 0, 1);
    job.waits(DP, 1, 0);
    job.engines[1].state = FT_PROCESS_STOPPED;
    job.expect({one(FT_VERDICT_RANK_STOPPED, TP, 1)});
}

TEST(Deadlock, BothReceive)
{
    Job job(2);
    job.comm(PP, "pp", {0, 1});
    job.p2p(PP, 0, 1, false);
    job.p2p(PP, 1, 0, false);
    job.expect({{FT_VERDICT_DEADLOCK, {{PP, 0, -1}, {PP, 1, -1}}}});
    job.link(PP, 1, 0, 3, 2);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, PP, 1, 0)});
    job.links.clear();
    job.engines[1].state = FT_PROCESS_STOPPED;
    job.expect({one(FT_VERDICT_RANK_STOPPED, PP, 1)});
}

/* ---- waits inside a collective --------------------------------------------------------------- */

TEST(Wait, MessagesOfOneLinkAreLost)
{
    Job job = ring();
    for (int r = 0; r < 4; r++)
        job.link(WORLD, r, (r + 1) % 4, 9, r == 1 ? 8 : 9);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, WORLD, 1, 2)});
    EXPECT_TRUE(job.says("messages from rank 1 (pid 4001 on host a) to rank 2 (pid 4002 on host "
                         "a) do not arrive in AllReduce(count 4, float32, sum), operation 6 of "
                         "communicator world; 9 were sent, 8 received"))
        << job.text();
    job.links[2].open = job.links[3].open = false; /* a connection that is over does not count */
    job.link(WORLD, 1, 2, 1, 1);
    job.expect({{FT_VERDICT_UNKNOWN, {}}});
}

TEST(Wait, BothEndsAreReadyAndNothingPasses)
{
    for (int counters = 0; counters < 3; counters++) {
        Job job(2);
        job.comm(WORLD, "world", {0, 1});
        job.waits(WORLD, 0, 1);
        job.waits(WORLD, 1, 0).wait.sends = true;
        if (counters)
            job.link(WORLD, 1, 0, 5, counters == 1 ? 4 : 5);
        job.expect({counters == 2 ? one(FT_VERDICT_COMM_HANG_SENDER, WORLD, 1)
                                  : one(FT_VERDICT_COMM_HANG_LINK, WORLD, 1, 0)});
    }
}

/* The last of a ring is a step behind, its neighbour claims to have sent, and nothing has left. */
TEST(Wait, TheSenderHasNotSent)
{
    Job job = ring();
    for (int r = 0; r < 4; r++) {
        job.link(WORLD, r, (r + 1) % 4, 9, 9);
        job.of(WORLD, r).wait.step = r == 2 ? 3 : 4;
    }
    job.expect({one(FT_VERDICT_COMM_HANG_SENDER, WORLD, 1)});
    job.of(WORLD, 3).wait.step = 3;
    job.expect({{FT_VERDICT_UNKNOWN, {}}});
    EXPECT_TRUE(job.says("the cause cannot be told in AllReduce"));
}

TEST(Wait, TheReceiverTakesNothing)
{
    Job job(3);
    job.comm(WORLD, "world", {0, 1, 2});
    job.waits(WORLD, 0, 1).wait.sends = true;
    job.waits(WORLD, 1, 2);
    job.waits(WORLD, 2, 0);
    job.link(WORLD, 0, 1, 7, 5);
    job.link(WORLD, 2, 1, 7, 7);
    job.link(WORLD, 0, 2, 7, 7);
    job.expect({one(FT_VERDICT_COMM_HANG_RECEIVER, WORLD, 1)});
}

TEST(Wait, ARankWaitsForNobodyAndDoesNotGoOn)
{
    Job job = ring();
    job.of(WORLD, 1).wait.peer = -1;
    job.expect({one(FT_VERDICT_LIBRARY_STUCK, WORLD, 1)});
    EXPECT_TRUE(job.says("rank 0 (pid 4000 on host a) waits to receive from rank 3")) << job.text();
    job.of(WORLD, 1).wait.peer = 9; /* rubbish */
    job.expect({one(FT_VERDICT_LIBRARY_STUCK, WORLD, 1)});
}

/* The chain has room for neither the whole walk nor all that are named. */
TEST(Wait, ALongWalkToMany)
{
    std::vector<int> all;
    for (int r = 0; r < 40; r++)
        all.push_back(r);
    Job job(40);
    job.comm(WORLD, "world", all);
    for (int r = 0; r < 40; r++)
        job.waits(WORLD, r, r < 31 ? r + 1 : -1);
    job.diagnose();
    ASSERT_EQ(job.found, 1) << job.text();
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_LIBRARY_STUCK);
    EXPECT_EQ(job.verdicts[0].nculprits, 9) << job.text();
    EXPECT_EQ(job.verdicts[0].nchain, FT_CHAIN);
}

TEST(Wait, ThePeerHasFinished)
{
    for (int counters = 0; counters < 3; counters++) {
        Job job = ring();
        ft_snap_member &m = job.of(WORLD, 1);
        m.done = m.called;
        m.running_seq = m.running_sig = 0;
        if (counters)
            job.link(WORLD, 1, 2, 9, counters == 1 ? 8 : 9);
        job.expect({counters == 2 ? one(FT_VERDICT_LIBRARY_STUCK, WORLD, 2)
                                  : one(FT_VERDICT_COMM_HANG_LINK, WORLD, 1, 2)});
    }
}

TEST(Wait, ThePeerHasFinishedAndTookNothing)
{
    for (int pending = 0; pending < 2; pending++) {
        Job job(2);
        job.comm(WORLD, "world", {0, 1});
        job.waits(WORLD, 0, 1).wait.sends = true;
        job.of(WORLD, 1).called = job.of(WORLD, 1).started = job.of(WORLD, 1).done = 6;
        job.link(WORLD, 0, 1, 9, pending ? 8 : 9);
        job.expect({pending ? one(FT_VERDICT_COMM_HANG_RECEIVER, WORLD, 1)
                            : one(FT_VERDICT_COMM_HANG_LINK, WORLD, 0, 1)});
    }
}

TEST(Wait, ThePeersCommunicatorHasFailed)
{
    Job job = ring(1);
    job.of(WORLD, 1).failed = true;
    job.of(WORLD, 1).status = FT_LINK;
    job.expect({one(FT_VERDICT_UNKNOWN, WORLD, 1)});
    EXPECT_TRUE(job.says("its communicator has failed: link lost")) << job.text();
}

/* ---- sends and receives ---------------------------------------------------------------------- */

TEST(PointToPoint, SendWithoutReceive)
{
    Job job(3);
    job.comm(WORLD, "world", {0, 1, 2});
    job.p2p(WORLD, 0, 1, true);
    job.expect({one(FT_VERDICT_COMM_HANG_RECEIVER, WORLD, 1)});
    EXPECT_TRUE(job.says("has not called the receive from rank 0 of communicator world"));
    job.waits(WORLD, 1, 0); /* it has gone on to the next collective */
    job.waits(WORLD, 2, 0);
    job.expect({one(FT_VERDICT_COMM_HANG_RECEIVER, WORLD, 1)});
}

TEST(PointToPoint, ReceiveWithoutSend)
{
    Job job(2);
    job.comm(PP, "pp", {0, 1});
    job.p2p(PP, 0, 1, false);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, PP, 1)});
    EXPECT_TRUE(job.says("has not called the send to rank 0 of communicator pp"));
    job.link(PP, 1, 0, 4, 3);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, PP, 1, 0)});
}

TEST(PointToPoint, AProcessIsGoneOrStopped)
{
    Job job(2);
    job.comm(PP, "pp", {0, 1});
    job.p2p(PP, 0, 1, false);
    job.engines[1].state = FT_PROCESS_STOPPED;
    job.expect({one(FT_VERDICT_RANK_STOPPED, PP, 1)});
    job.engines[1].state = FT_PROCESS_GONE;
    job.expect({one(FT_VERDICT_RANK_DEAD, PP, 1)});
    job.engines[1].state = FT_PROCESS_RUNS;
    job.of(PP, 1).open = false;
    job.expect({one(FT_VERDICT_RANK_DEAD, PP, 1)});
}

TEST(PointToPoint, BothEndsAreReady)
{
    Job job(2);
    job.comm(PP, "pp", {0, 1});
    job.p2p(PP, 0, 1, false);
    job.p2p(PP, 1, 0, true);
    job.link(PP, 1, 0, 4, 3);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, PP, 1, 0)});
    job.links[1].messages = 4;
    job.expect({one(FT_VERDICT_COMM_HANG_SENDER, PP, 1)});
}

/* A group of a send and a collective: the send is first, and rank 2 is in the collective. */
TEST(PointToPoint, ASendComesBeforeACollective)
{
    Job job(3);
    job.comm(WORLD, "world", {0, 1, 2});
    for (int r = 0; r < 3; r++)
        job.waits(WORLD, r, (r + 2) % 3);
    job.p2p(WORLD, 0, 2, true);
    job.expect({one(FT_VERDICT_COMM_HANG_RECEIVER, WORLD, 2)});
}

/* Rank 1 should send, and is in the next collective. Its message of that waits at rank 0. */
TEST(PointToPoint, AReceiveComesBeforeACollective)
{
    Job job(4);
    job.comm(WORLD, "world", {0, 1, 2, 3});
    job.waits(WORLD, 1, 0);
    job.p2p(WORLD, 0, 1, false);
    job.link(WORLD, 1, 0, 22, 21);
    job.expect({{FT_VERDICT_NONCOMM_HANG, {{WORLD, 2, -1}, {WORLD, 3, -1}}},
                {FT_VERDICT_DEADLOCK, {{WORLD, 0, -1}, {WORLD, 1, -1}}}});
}

/* Rank 1 has made a collective that needs no answer, and computes. */
TEST(PointToPoint, AReceiveInsteadOfACollective)
{
    Job job(2);
    job.comm(PP, "pp", {0, 1});
    job.calls(PP, 1, 20);
    job.of(PP, 1).done = job.of(PP, 1).called;
    job.p2p(PP, 0, 1, false);
    job.link(PP, 1, 0, 4, 3);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, PP, 1)});
}

/* Forwards through the stages: each receives from the one before, and the first computes. */
TEST(PointToPoint, AChainOfReceives)
{
    Job job(5);
    job.comm(PP, "pp", {0, 1, 2, 3, 4});
    for (int r = 1; r < 5; r++)
        job.p2p(PP, r, r - 1, false);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, PP, 0)});
}

/* ---- agreements ------------------------------------------------------------------------------ */

/* Four ranks; these have called CommShrink. */
Job agreeing(const std::vector<int> &ranks)
{
    Job job(4);
    job.comm(WORLD, "world", {0, 1, 2, 3});
    for (int r : ranks) {
        job.of(WORLD, r).agree_ns = ago(12);
        job.of(WORLD, r).agree_call = FT_CALLS_SHRINK;
    }
    return job;
}

TEST(Agreement, ARankDoesNotCome)
{
    Job job = agreeing({0, 1, 3});
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 2)});
    EXPECT_TRUE(job.says("has not called CommShrink of communicator world")) << job.text();
    EXPECT_EQ(job.verdicts[0].since_ns, 12 * SECOND);
    job.of(WORLD, 2).failed = true; /* it knows of the failure, and does nothing */
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 2)});
}

TEST(Agreement, NobodyIsNamed)
{
    Job all = agreeing({0, 1, 2, 3});
    all.expect({});
    Job recent = agreeing({0, 1, 3});
    recent.of(WORLD, 3).agree_ns = ago(1);
    recent.expect({});
    Job gone = agreeing({0, 1, 3}); /* this one is left out after a while */
    gone.process(WORLD, 2).state = FT_PROCESS_GONE;
    gone.expect({});
    Job active = agreeing({0, 1, 3});
    active.of(WORLD, 2).progress_ns = ago(1);
    active.expect({});
}

TEST(Agreement, WhoIsToBeLeftOutNeedNotCome)
{
    Job job = agreeing({0, 1});
    job.expect({{FT_VERDICT_NONCOMM_HANG, {{WORLD, 2, -1}, {WORLD, 3, -1}}}});
    job.seats.push_back({WORLD, 3, Job::id(3), 7, 4003, FT_NEWS_NONE, true, 0});
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 2)});
}

/* ---- several communicators ------------------------------------------------------------------- */

/* 2 x 2 x 2: tensor, data and pipeline groups. Process t + 2 d + 4 p. */
struct Nested : Job {
    Nested() : Job(8)
    {
        for (int i = 0; i < 4; i++) {
            int d = i & 1, p = i >> 1;
            comm(tp(2 * d + 4 * p), "tp", {2 * d + 4 * p, 2 * d + 4 * p + 1});
            comm(dp(d + 4 * p), "dp", {d + 4 * p, d + 4 * p + 2});
            comm(pp(i), "pp", {i, i + 4});
        }
    }
    static uint64_t tp(int process)
    {
        return 100 + (uint64_t)(process & ~1);
    }
    static uint64_t dp(int process)
    {
        return 200 + (uint64_t)(process & ~2);
    }
    static uint64_t pp(int process)
    {
        return 300 + (uint64_t)(process & ~4);
    }
};

/* Stage 1 of replica 0 waits for its stage 0, where process 1 computes and 0 waits in its tensor
 * group. Replica 1 has finished and waits for its data groups. */
TEST(Nested, AComputingRankBlocksStagesAndReplicas)
{
    Nested job;
    job.waits(job.tp(0), 0, 1, 30);
    job.p2p(job.pp(4), 1, 0, false, 28);
    job.p2p(job.pp(5), 1, 0, false, 28);
    for (int process : {2, 3, 6, 7})
        job.waits(job.dp(process), 1, 0, 20);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, job.tp(0), 1)});
    EXPECT_EQ(job.verdicts[0].ctx, job.tp(0));
    EXPECT_EQ(job.verdicts[0].since_ns, 30 * SECOND);
    EXPECT_TRUE(job.says("which is in AllReduce")) << job.text();
}

/* All of stage 1 receive. Process 0's send is on its way to process 4. */
TEST(Nested, ALinkBetweenStages)
{
    Nested job;
    job.p2p(job.pp(4), 1, 0, false, 28);
    job.p2p(job.pp(0), 0, 1, true, 28);
    job.link(job.pp(0), 0, 1, 12, 11);
    job.waits(job.tp(4), 1, 0, 25);
    job.waits(job.dp(5), 1, 0, 22);
    job.waits(job.dp(6), 1, 0, 22);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, job.pp(0), 0, 1)});
}

/* One rank computes and is missed in three communicators: it is named once. */
TEST(Nested, ACauseIsNamedOnce)
{
    Nested job;
    job.waits(job.tp(0), 1, 0, 30);
    job.waits(job.dp(0), 1, 0, 29);
    job.p2p(job.pp(0), 1, 0, false, 28);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, job.tp(0), 0)});
}

TEST(Nested, IndependentCauses)
{
    Nested job;
    job.waits(job.tp(0), 0, 1, 30); /* process 1 computes */
    job.waits(job.tp(2), 0, 1, 29); /* process 3 is stopped */
    job.engines[3].state = FT_PROCESS_STOPPED;
    job.p2p(job.pp(4), 1, 0, false, 28);
    job.waits(job.tp(6), 0, 1, 27); /* the stream of process 7 is held */
    job.calls(job.tp(6), 1, 27);
    job.expect({one(FT_VERDICT_RANK_STOPPED, job.tp(2), 1),
                one(FT_VERDICT_NONCOMM_HANG, job.tp(0), 1),
                one(FT_VERDICT_STREAM_HANG, job.tp(6), 1)});
    job.diagnose(1); /* no room for the others */
    EXPECT_EQ(job.found, 3);
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_RANK_STOPPED);
}

/* What was found in one communicator has nothing to do with the next. */
TEST(Nested, OneIsProvenAndOneCannotBeTold)
{
    Job job(4);
    job.comm(TP, "tp", {0, 1});
    job.comm(DP, "dp", {2, 3});
    job.waits(TP, 0, 1, 14);
    job.waits(TP, 1, -1, 14);
    job.waits(DP, 0, 1);
    job.lose(DP, 1);
    job.expect({one(FT_VERDICT_LIBRARY_STUCK, TP, 1), one(FT_VERDICT_UNKNOWN, DP, 1)});
}

/* Two ranks are missing: one is in another communicator, which waits for this one, and the other
 * computes. */
TEST(Nested, ADeadlockAndARankThatComputes)
{
    Job job = ring(2);
    job.of(WORLD, 3).called = job.of(WORLD, 3).started = 5;
    job.of(WORLD, 3).running_seq = job.of(WORLD, 3).running_sig = 0;
    job.comm(TP, "tp", {3, 0});
    job.waits(TP, 0, 1, 14);
    job.expect({{FT_VERDICT_NONCOMM_HANG, {{WORLD, 2, -1}}},
                {FT_VERDICT_DEADLOCK, {{TP, 1, -1}, {WORLD, 3, -1}}}});
}

/* ---- files that are missing ------------------------------------------------------------------ */

TEST(Missing, ARankThatDecidesHasNoFile)
{
    Job job = ring(2);
    job.lose(WORLD, 2);
    job.unreadable = 1;
    job.expect({one(FT_VERDICT_UNKNOWN, WORLD, 2)});
    EXPECT_EQ(job.verdicts[0].culprits[0].pid, 99);
    EXPECT_EQ(job.verdicts[0].culprits[0].engine, -1);
    EXPECT_EQ(job.verdicts[0].culprits[0].host, 0u) << "no other rank of its host has a file";
    EXPECT_TRUE(job.says("there is no telemetry of it; 1 files or hosts could not be read"));
    job = ring(2);
    job.lose(WORLD, 2, false);
    job.expect({one(FT_VERDICT_UNKNOWN, WORLD, 2)});
    job = ring(2);
    job.lose(WORLD, 2);
    job.seats.push_back({WORLD, 0, Job::id(0), 9, 4000, FT_NEWS_NONE, true, -1});
    job.expect({one(FT_VERDICT_UNKNOWN, WORLD, 2)});
    EXPECT_EQ(job.verdicts[0].culprits[0].host, 7u) << "that of rank 0, on the same host";
}

TEST(Missing, TheOthersProveTheCause)
{
    Job job = ring(1);
    job.lose(WORLD, 2);
    job.expect({one(FT_VERDICT_NONCOMM_HANG, WORLD, 1)});
    job = ring();
    job.lose(WORLD, 3);
    job.of(WORLD, 0).wait.peer = 1; /* 1 -> 0 is lost, 2 waits for 1 */
    job.link(WORLD, 1, 0, 5, 4);
    job.expect({one(FT_VERDICT_COMM_HANG_LINK, WORLD, 1, 0)});
}

/* A walk has shown who decides: that another rank has no file does not matter. */
TEST(Missing, NobodyWaitsForIt)
{
    Job job = ring(1);
    job.of(WORLD, 1).failed = true;
    job.of(WORLD, 0).wait.peer = 1;
    job.lose(WORLD, 3);
    job.expect({one(FT_VERDICT_UNKNOWN, WORLD, 1)});
}

TEST(Missing, APeerOfAReceive)
{
    Job job(3);
    job.comm(PP, "pp", {0, 1, 2});
    job.p2p(PP, 0, 1, false);
    job.lose(PP, 1);
    job.lose(PP, 2);
    job.expect({one(FT_VERDICT_UNKNOWN, PP, 1)});
}

TEST(Missing, ARankNeverStarts)
{
    Job job(4);
    job.comm(WORLD, "world", {0, 1, 2, 3});
    for (auto &m : job.members)
        m.called = m.started = m.done = 0, m.last = {};
    job.expect({});
    job.lose(WORLD, 3);
    job.expect({one(FT_VERDICT_STARTING, WORLD, 3)});
    EXPECT_TRUE(job.says("rank 3 (pid 99) has not started yet; others wait for it in communicator "
                         "world"))
        << job.text();
    job.seats[0].engine = Job::id(3); /* its file is there */
    job.expect({});
}

TEST(Verdict, HasAName)
{
    EXPECT_STREQ(ft_verdict_name(FT_VERDICT_NONCOMM_HANG), "noncomm_hang");
    EXPECT_STREQ(ft_verdict_name(FT_VERDICT_UNKNOWN), "unknown");
    EXPECT_STREQ(ft_verdict_name((enum ft_verdict_kind)99), "?");
}

} // namespace
