/*
 * The kinds of faults, one function each: it fills the plan of an event with what is broken and
 * what has to be said. To add one, write such a function and add it to the table at the end.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "tests/proc/diagnose_faults.h"

namespace faults
{

Plan &Plan::expect(const std::string &verdict, const std::set<int> &ranks,
                   const std::string &sentence)
{
    Want one{verdict, {}, sentence};
    for (int rank : ranks)
        one.who.insert({rank, -1});
    want.push_back(one);
    return *this;
}

namespace
{

void signal_victim(Job &job, int number)
{
    job.at(job.plan.victim).signal(number);
}

void on_hosts(Plan &p, Random &random, bool one_each)
{
    p.place = Place::Namespaces;
    p.hosts = 2 + static_cast<int>(random() % (campaign::Net::HOSTS - 1));
    if (one_each)
        p.n = p.hosts;
    p.n = std::max(p.n, p.hosts);
    p.victim %= p.n;
    p.peer = (p.victim + 1) % p.n;
}

/* ---- processes ------------------------------------------------------------------------------- */

void killed(Plan &p, Random &)
{
    p.strike = [](Job &job) { signal_victim(job, SIGKILL); };
    p.expect_victim("rank_dead");
}

void host_killed(Plan &p, Random &random)
{
    on_hosts(p, random, false);
    p.strike = [](Job &job) {
        for (int rank : job.plan.beside_victim())
            job.at(rank).signal(SIGKILL);
    };
    p.expect("rank_dead", p.beside_victim());
}

void stopped_between(Plan &p, Random &)
{
    p.act = "sleep";
    p.strike = [](Job &job) { signal_victim(job, SIGSTOP); };
    p.expect_victim("rank_stopped");
}

void stopped_inside(Plan &p, Random &)
{
    p.strike = [](Job &job) { signal_victim(job, SIGSTOP); };
    p.expect_victim("rank_stopped");
}

void frozen_thread(Plan &p, Random &)
{
    p.strike = [](Job &job) {
        pid_t thread = job.at(job.plan.victim).pid();
        int status;
        if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0 ||
            ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0 ||
            waitpid(thread, &status, __WALL) != thread)
            job.plan.skip = "ptrace is not allowed";
        else
            job.tracee = thread;
    };
    p.heal = [](const Job &job) {
        if (job.tracee)
            ptrace(PTRACE_DETACH, job.tracee, nullptr, nullptr);
    };
    p.expect_victim("library_stuck");
}

/* ---- the program of a rank ------------------------------------------------------------------- */

void sleeps(Plan &p, Random &)
{
    p.act = "sleep";
    p.expect_victim("noncomm_hang", "hrtimer_nanosleep|nanosleep");
}

void loops(Plan &p, Random &)
{
    p.act = "spin";
    p.expect_victim("noncomm_hang", "it runs");
}

void reads_fifo(Plan &p, Random &)
{
    std::string path = "/tmp/ftccl-fifo-" + std::to_string(getpid()) + "-" + std::to_string(p.seed);
    if (mkfifo(path.c_str(), 0600) != 0)
        p.skip = "no FIFO can be made";
    p.act = "fifo";
    p.words["fifo"] = path;
    p.heal = [](const Job &job) { unlink(job.plan.words["fifo"].c_str()); };
    p.expect_victim("noncomm_hang", "sleeps in .*(pipe|wait)");
}

void waits_for_child(Plan &p, Random &)
{
    p.act = "child";
    p.expect_victim("noncomm_hang", "process [0-9]+ .*, its child, is stopped");
}

void leaves(Plan &p, Random &)
{
    p.act = "leave";
    p.words.erase("overlap");
    p.expect_victim("rank_dead", "has left");
}

void skips_call(Plan &p, Random &random)
{
    p.act = "skip";
    p.call = random() % 2 ? "mixed" : "AllReduce";
    p.words["last"] = std::to_string(p.step + 5);
    if (p.n > 2 || p.call == "AllReduce")
        p.expect_victim("mismatch|noncomm_hang");
    else
        p.expect("mismatch", {0, 1}); /* there is no majority */
}

void calls_differently(Plan &p, Random &random)
{
    static const char *const how[] = {"odd_count", "odd_type", "odd_root"};
    p.act = how[random() % 3];
    p.call = p.act == "odd_type"   ? "AllReduce"
             : p.act == "odd_root" ? "Broadcast"
             : random() % 2        ? "AllReduce"
                                   : "AllGather";
    if (p.n > 2)
        p.expect_victim("mismatch");
    else
        p.expect("mismatch", {0, 1});
}

void opposite_order(Plan &p, Random &)
{
    p.act = "cross";
    p.call = "AllReduce";
    p.words.erase("overlap"); /* it uses the other communicator */
    Want want{"deadlock", {}};
    want.comms = 2;
    p.want.push_back(want);
}

void unanswered_send(Plan &p, Random &)
{
    p.act = "rest";
    p.words.erase("overlap");
    for (int r = 0; r < p.n; r++)
        p.actors.insert(r);
    p.words["sender"] = std::to_string(p.peer);
    p.words["peer"] = std::to_string(p.victim);
    p.expect_victim("comm_hang_receiver");
}

/* Where the driver without a GPU was built. */
void on_gpu(Plan &p)
{
    std::string driver = standin_driver();
    if (driver.empty())
        p.skip = "there is no driver without a GPU: build tests/cuda/libcuda.la";
    p.words["gpu"] = driver;
    p.words.erase("overlap");
    p.n = std::min(p.n, 4);
    p.victim %= p.n;
    p.hosts = 1;
    p.place = p.place == Place::Shm ? Place::Shm : Place::Tcp;
}

void held_stream(Plan &p, Random &)
{
    on_gpu(p);
    p.act = "hold";
    p.expect_victim("stream_hang");
}

void endless_device(Plan &p, Random &)
{
    on_gpu(p);
    p.act = "endless";
    p.expect_victim("stream_hang");
}

void slow_rank(Plan &p, Random &)
{
    p.compute_us = 40000 + 3000 * p.n;
    p.call = "AllReduce";
    p.count = std::min<size_t>(p.count, 5000);
    p.act = "slow";
    p.after_s = 5;
    p.expect_victim("noncomm_slow");
}

/* Each rank works for some ms of processor time in each step. The victim gets less of its
 * processor: its control group may use a twentieth of one, or other programs use the one to which
 * it is bound. */
void on_processors(Plan &p)
{
    p.n = std::min(p.n, 3); /* few, so that the others have what they need */
    p.victim %= p.n;
    p.place = Place::Shm;
    p.hosts = 1;
    p.compute_us = 20000;
    p.call = "AllReduce";
    p.count = std::min<size_t>(p.count, 5000);
    p.words.erase("overlap");
    p.words["work"] = "10000";
    p.after_s = 5;
    p.expect_victim("noncomm_slow|host_slow");
}

void little_processor(Plan &p, Random &random)
{
    on_processors(p);
    p.skip = why_crowded();
    if (!p.skip.empty())
        return;
    if (random() % 2 == 0) {
        p.words["group"] = quota_group(p.seed, &p.skip);
        p.strike = [](Job &job) {
            if (!give_quota(job.plan.words["group"], job.at(job.plan.victim).pid()))
                job.plan.skip = "a control group takes no process";
        };
        p.heal = [](const Job &job) {
            drop_quota(job.plan.words["group"], job.at(job.plan.victim).pid());
        };
        return;
    }
    p.strike = [](Job &job) {
        job.hogs = crowd_processor(job.pids(), job.at(job.plan.victim).pid(), 8);
        if (job.hogs.empty())
            job.plan.skip = "there is one processor only";
    };
    p.heal = [](const Job &job) { end_hogs(job.hogs); };
}

/* It needs a limit at which a process is slowed down and not killed: memory.high. Version 1 of
 * control groups kills. */
void little_memory(Plan &p, Random &)
{
    p.skip =
        "not injected: memory.high needs control groups of version 2 with the memory controller";
}

/* ---- links ----------------------------------------------------------------------------------- */

void one_direction_lost(Plan &p, Random &random)
{
    on_hosts(p, random, true);
    p.algo = "ring"; /* every rank sends to the next one */
    p.call = "AllReduce";
    if (random() % 2)
        p.env["FTCCL_SUSPECT_MS"] = "30000";
    p.strike = [](Job &job) { job.net->part(job.plan.victim, job.plan.peer); };
    p.heal = [](const Job &job) { job.net->join(job.plan.victim, job.plan.peer); };
    p.want.push_back({"comm_hang_link", {{p.victim, p.peer}}});
}

void host_cut_off(Plan &p, Random &random)
{
    on_hosts(p, random, false);
    if (random() % 2)
        p.env["FTCCL_SUSPECT_MS"] = "30000";
    if (p.hosts == 2) { /* two halves: only with a majority there is one that is cut off */
        p.hosts = 3;
        p.n = std::max(p.n, 3);
    }
    p.strike = [](Job &job) { job.net->cut(job.plan.host(job.plan.victim)); };
    p.heal = [](const Job &job) { job.net->heal(job.plan.host(job.plan.victim)); };
    p.expect("partition", p.beside_victim());
}

/* Hosts 0 and 1 and hosts 2 and 3 do not reach each other any more. The side with fewer ranks is
 * named, or the one without rank 0. */
void spine_lost(Plan &p, Random &random)
{
    on_hosts(p, random, false);
    p.hosts = campaign::Net::HOSTS;
    p.n = std::max(p.n, p.hosts);
    p.victim %= p.n;
    if (random() % 2)
        p.env["FTCCL_SUSPECT_MS"] = "30000";
    p.strike = [](Job &job) {
        for (int here : {0, 1})
            for (int there : {2, 3}) {
                job.net->part(here, there);
                job.net->part(there, here);
            }
    };
    p.heal = [](const Job &job) {
        for (int here : {0, 1})
            for (int there : {2, 3}) {
                job.net->join(here, there);
                job.net->join(there, here);
            }
    };
    std::set<int> sides[2];
    for (int r = 0; r < p.n; r++)
        sides[p.host(r) / 2].insert(r);
    p.expect("path", sides[sides[0].size() < sides[1].size() ? 0 : 1]);
}

/* All send to all, so that a slow link can be told from a slow rank. */
void on_slow_net(Plan &p, Random &random)
{
    p.place = Place::Namespaces;
    p.n = p.hosts = campaign::Net::HOSTS;
    p.victim %= p.n;
    p.peer = (p.victim + 1 + static_cast<int>(random() % 3)) % p.n;
    p.call = "AlltoAll";
    p.algo = "";
    p.count = 50000;
    p.compute_us = 5000;
    p.after_s = 5;
    p.words.erase("overlap");
    p.heal = [](const Job &job) { job.net->heal(job.plan.victim); };
}

void slow_link(Plan &p, Random &random)
{
    on_slow_net(p, random);
    p.strike = [](Job &job) { job.net->limit_link(job.plan.victim, job.plan.peer, 40); };
    p.want.push_back({"comm_slow_link", {{p.victim, p.peer}}});
}

void slow_source(Plan &p, Random &random)
{
    on_slow_net(p, random);
    p.strike = [](Job &job) { job.net->limit(job.plan.victim, false, 100); };
    p.expect_victim("comm_slow_source");
}

void slow_destination(Plan &p, Random &random)
{
    on_slow_net(p, random);
    p.strike = [](Job &job) { job.net->limit(job.plan.victim, true, 100); };
    p.expect_victim("comm_slow_destination");
}

/* The path between two hosts is harmed, and with it all links between their ranks. */
void on_harmed_path(Plan &p, Random &random)
{
    on_slow_net(p, random);
    p.n = p.hosts * (1 + static_cast<int>(random() % 2));
    p.victim = static_cast<int>(random() % static_cast<unsigned>(p.n));
    p.peer = (p.victim + (1 + static_cast<int>(random() % 3)) * p.n / p.hosts) % p.n;
    p.count = 20000 + 10000 * (random() % 4);
    p.harm.seed = p.seed;
    p.strike = [](Job &job) {
        int from = job.plan.host(job.plan.victim), to = job.plan.host(job.plan.peer);
        if (!job.detour(from, to) || (job.plan.both_ways && !job.detour(to, from)))
            job.plan.skip = "no TUN devices can be made";
    };
}

std::set<std::pair<int, int>> links_between(const Plan &p, int from, int to)
{
    std::set<std::pair<int, int>> links;
    for (int r = 0; r < p.n; r++)
        for (int s = 0; s < p.n; s++)
            if (p.host(r) == from && p.host(s) == to)
                links.insert({r, s});
    return links;
}

void delayed_link(Plan &p, Random &random)
{
    on_harmed_path(p, random);
    p.harm.delay_us = 3000 + static_cast<int>(random() % 10000);
    p.both_ways = true; /* round trips tell no direction */
    Want want{"comm_slow_link", links_between(p, p.host(p.victim), p.host(p.peer))};
    want.who.merge(links_between(p, p.host(p.peer), p.host(p.victim)));
    p.want.push_back(want);
}

void lossy_path(Plan &p, Random &random)
{
    on_harmed_path(p, random);
    p.harm.loss_ppm = 10000;
    if (p.n == p.hosts && random() % 2) { /* a ring */
        p.call = "AllReduce";
        p.algo = "allreduce:ring";
        p.peer = (p.victim + 1) % p.n;
        p.count *= 2;
    }
    p.want.push_back(
        {"comm_slow_link", links_between(p, p.host(p.victim), p.host(p.peer)), "sent again"});
}

/* The link from 0 to 1 or back, whichever has carried so many messages first. */
void link_breaks(Plan &p, Random &random)
{
    p.n = 2;
    p.place = random() % 2 ? Place::Shm : Place::Tcp;
    p.env["FTCCL_FAULT"] = "cut_after=" + std::to_string(20 + random() % 100);
    p.want.push_back({"comm_hang_link", {}});
}

void refused(Plan &p, Random &)
{
    p.n = 2;
    p.starts = false;
    p.env["FTCCL_FAULT"] = "refuse_ppm=1000000";
    p.want.push_back({"starting|comm_hang_link", {}});
}

void never_starts(Plan &p, Random &random)
{
    p.starts = false;
    p.absent = {p.victim};
    if (p.n > 3 && random() % 3 == 0)
        p.absent.insert(p.peer);
    p.expect("starting", p.absent);
}

void flipped_bit(Plan &p, Random &random)
{
    p.env["FTCCL_VERIFY"] = "1";
    p.env["FTCCL_FAULT"] = "flip_after=" + std::to_string(10 + random() % 50) +
                           ",flip_rank=" + std::to_string(p.victim);
    p.call = "AllReduce";
    p.expect_victim("corrupt");
}

/* ---- no fault -------------------------------------------------------------------------------- */

void healthy(Plan &p, const std::string &act, bool all)
{
    p.compute_us = 20000 + 3000 * p.n;
    p.count = std::min<size_t>(p.count, 5000);
    p.after_s = 5;
    p.watch_s = 6;
    p.act = act;
    for (int r = 0; r < p.n && all; r++)
        p.actors.insert(r);
}

void jitter(Plan &p, Random &)
{
    healthy(p, "jitter", true);
}

/* Much goes over a network without a fault. */
void busy_network(Plan &p, Random &random)
{
    size_t count = std::min<size_t>(p.count, 100000);
    on_hosts(p, random, random() % 2);
    healthy(p, "jitter", true);
    p.count = count;
    p.compute_us = 5000;
}

void one_pause(Plan &p, Random &)
{
    healthy(p, "pause", false);
}

void checkpoints(Plan &p, Random &)
{
    healthy(p, "checkpoint", false);
}

/* ---- several --------------------------------------------------------------------------------- */

/* Each half of the job works for itself. */
void two_at_once(Plan &p, Random &)
{
    p.n = std::max(p.n, 4);
    p.words["on"] = "half";
    p.words.erase("overlap"); /* it would join the halves */
    p.victim = static_cast<int>(p.seed % 2);
    p.peer = p.n - 1 - static_cast<int>(p.seed / 2 % 2);
    p.act = "sleep";
    p.strike = [](Job &job) { job.at(job.plan.peer).signal(SIGSTOP); };
    p.expect_victim("noncomm_hang").expect("rank_stopped", {p.peer});
}

void hostile_files(Plan &p, Random &)
{
    p.act = "sleep";
    p.torn = true;
    p.want.push_back({"trouble", {}});
}

} // namespace

std::string standin_driver()
{
    char path[PATH_MAX];
    return realpath("tests/cuda/.libs/libcuda.so.1", path) ? path : "";
}

const std::vector<Kind> &kinds()
{
    static const std::vector<Kind> all = {
        {1, "a rank is killed", killed, false},
        {2, "all ranks of a host are killed", host_killed, true},
        {3, "a rank is stopped between calls", stopped_between, false},
        {4, "a rank is stopped inside a call", stopped_inside, false},
        {5, "a rank sleeps", sleeps, false},
        {6, "a rank loops", loops, false},
        {7, "a rank reads a FIFO", reads_fifo, false},
        {8, "a rank waits for a stopped child", waits_for_child, false},
        {9, "a rank skips a call", skips_call, false},
        {10, "a rank leaves early", leaves, false},
        {11, "another count, type or root", calls_differently, false},
        {12, "communicators in opposite order", opposite_order, false},
        {13, "a send without a receive", unanswered_send, false},
        {14, "a stream is held", held_stream, false},
        {15, "a link loses one direction", one_direction_lost, true},
        {16, "a host is cut off", host_cut_off, true},
        {17, "a spine is lost", spine_lost, true},
        {18, "a link breaks", link_breaks, false},
        {19, "connections are refused", refused, false},
        {20, "a rank never starts", never_starts, false},
        {21, "a thread is frozen", frozen_thread, false},
        {22, "a device does not complete", endless_device, false},
        {23, "a link is slow", slow_link, true},
        {24, "what a rank sends is slow", slow_source, true},
        {25, "what a rank receives is slow", slow_destination, true},
        {26, "a link is delayed", delayed_link, true},
        {27, "a path loses 1%", lossy_path, true},
        {28, "a rank computes 1.3 times as long", slow_rank, false},
        {29, "little of a processor", little_processor, false},
        {30, "little memory", little_memory, false},
        {31, "jitter (no fault)", jitter, false},
        {31, "a busy network (no fault)", busy_network, true},
        {32, "a pause of 2 s (no fault)", one_pause, false},
        {33, "checkpoints (no fault)", checkpoints, false},
        {34, "a bit flips", flipped_bit, false},
        {35, "a sleeping and a stopped rank", two_at_once, false},
        {36, "spoilt files", hostile_files, false},
    };
    return all;
}

} // namespace faults
