/*
 * Property: the first cause wins on every rank. If every process exits at its first error, as most
 * programs do, each process names the rank with which the failure began: the rank that was killed
 * or stopped, a rank of a host that was cut off, or the rank that made another call (also which
 * call, unless its next call came first). It never names a rank that only passed the news on, and
 * says once who told it. Method: jobs of 2 to 8 processes on one host, on hosts by name and in
 * network namespaces, over shared memory and TCP, with one fault each, all drawn from a seed.
 *
 * FT_CAUSE_SEED: of all draws. FT_CAUSE_RUN: only this run. FT_CAUSE_RUNS and FT_CAUSE_SECONDS: the
 * test ends after so many, whichever comes first. FT_CAUSE_JOBS: runs at the same time.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "tests/campaign/net.h"
#include "tests/proc/proc.h"

namespace
{

/* ---- a member of a job ----------------------------------------------------------------------- */

struct Member {
    int nranks, rank;
    size_t count;
    bool quick;     /* _exit(1), else exit(1) */
    int odd_step;   /* in this step it makes another call; -1: never */
    int odd_call;   /* which */
    std::string ns; /* its network namespace; "-": its parent's */
};

Member parse(const std::vector<std::string> &words)
{
    return {std::stoi(words[0]),
            std::stoi(words[1]),
            std::stoul(words[2]),
            words[3] == "_exit",
            std::stoi(words[4]),
            std::stoi(words[5]),
            words[6]};
}

std::vector<std::string> words_of(const Member &m)
{
    return {std::to_string(m.nranks),
            std::to_string(m.rank),
            std::to_string(m.count),
            m.quick ? "_exit" : "exit",
            std::to_string(m.odd_step),
            std::to_string(m.odd_call),
            m.ns};
}

[[noreturn]] void fail(const Member &me, ftcclComm_t comm, ftcclResult_t result)
{
    int ranks[16], count = 0;
    std::string failed, text = ftcclGetLastError(comm);
    if (comm)
        ftcclCommGetFailedRanks(comm, ranks, 16, &count);
    for (int i = 0; i < count; i++)
        failed += std::to_string(ranks[i]) + ",";
    printf("%d|%s|%s\n", result, failed.c_str(), text.c_str());
    fflush(stdout);
    if (me.quick)
        _exit(1);
    exit(1);
}

ftcclResult_t odd_call(const Member &me, float *data, ftcclComm_t comm)
{
    if (me.odd_call == 0)
        return ftcclBroadcast(data, data, me.count, ftcclFloat, 0, comm, nullptr);
    if (me.odd_call == 1)
        return ftcclAllReduce(data, data, me.count + 1, ftcclFloat, ftcclSum, comm, nullptr);
    return ftcclAllReduce(data, data, me.count, ftcclInt32, ftcclSum, comm, nullptr);
}

CHILD(member)
{
    Member me = parse(arguments);
    char hex[1024] = "";
    int ns = me.ns == "-" ? -1 : open(me.ns.c_str(), O_RDONLY | O_CLOEXEC);
    if (me.ns != "-" && (ns < 0 || setns(ns, CLONE_NEWNET) != 0))
        return 3;
    ftcclUniqueId id;
    if (me.rank == 0) {
        if (ftcclGetUniqueId(&id) != ftcclSuccess)
            return 4;
        printf("%s\n", proc::hex(id).c_str());
    } else {
        if (!fgets(hex, sizeof hex, stdin))
            return 5;
        id = proc::unhex(hex);
    }
    ftcclComm_t comm = nullptr;
    ftcclResult_t result = ftcclCommInitRank(&comm, me.nranks, id, me.rank);
    if (result != ftcclSuccess)
        fail(me, nullptr, result);
    std::vector<float> data(me.count + 1, 0.0f);
    for (int step = 0;; step++) {
        result = step == me.odd_step ? odd_call(me, data.data(), comm)
                                     : ftcclAllReduce(data.data(), data.data(), me.count,
                                                      ftcclFloat, ftcclSum, comm, nullptr);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(nullptr);
        if (result != ftcclSuccess)
            fail(me, comm, result);
        if (step == 2)
            printf("ready\n");
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

enum class Fault { Kill, Stop, Cut, Mismatch };
const char *const fault_names[] = {"kill", "stop", "cut", "mismatch"};
enum class Place { Shm, Tcp, Hosts, Namespaces };
const char *const place_names[] = {"shm", "tcp", "hosts", "namespaces"};

struct Run {
    uint64_t seed;
    Fault fault;
    Place place;
    int nranks, victim, hosts;
    size_t count;
    int wait_ms, odd_step, odd_call;
    bool quick;
    bool beside_victim(int rank) const /* on the victim's host */
    {
        return host(rank) == host(victim);
    }
    int host(int rank) const
    {
        return hosts == 0 ? rank : rank * hosts / nranks;
    }
};

Run draw(uint64_t seed, bool namespaces)
{
    static const size_t counts[] = {1, 2, 300, 5000, 100000, 1000000};
    std::mt19937_64 random(seed);
    Run run{};
    run.seed = seed;
    int fault = static_cast<int>(random() % 100);
    run.fault = fault < 32   ? Fault::Kill
                : fault < 55 ? Fault::Stop
                : fault < 75 ? Fault::Cut
                             : Fault::Mismatch;
    if (run.fault == Fault::Cut && !namespaces)
        run.fault = Fault::Kill;
    run.nranks = 2 + static_cast<int>(random() % 7);
    int place = static_cast<int>(random() % 10);
    run.place = place < 4   ? Place::Shm
                : place < 7 ? Place::Tcp
                : place < 9 ? Place::Hosts
                            : Place::Namespaces;
    if (run.fault == Fault::Cut)
        run.place = Place::Namespaces;
    if (run.place == Place::Namespaces && !namespaces)
        run.place = Place::Hosts;
    run.hosts = run.place == Place::Namespaces
                    ? std::min(run.nranks, 2 + static_cast<int>(random() % 3))
                : run.place == Place::Hosts
                    ? 2 + static_cast<int>(random() % (static_cast<unsigned>(run.nranks) - 1))
                    : 1;
    run.victim = static_cast<int>(random() % static_cast<unsigned>(run.nranks));
    run.count = counts[random() % (sizeof counts / sizeof *counts)];
    run.wait_ms = static_cast<int>(random() % 3 ? random() % 20 : random() % 400);
    run.odd_step = run.fault == Fault::Mismatch ? 3 + static_cast<int>(random() % 20) : -1;
    run.odd_call = static_cast<int>(random() % 3);
    run.quick = random() % 2;
    return run;
}

std::string describe(const Run &run)
{
    char text[200];
    snprintf(text, sizeof text, "%s of rank %d of %d, %s%s, %zu floats, after %d ms, %s(1)",
             fault_names[static_cast<int>(run.fault)], run.victim, run.nranks,
             place_names[static_cast<int>(run.place)],
             run.hosts > 1 ? (" " + std::to_string(run.hosts)).c_str() : "", run.count, run.wait_ms,
             run.quick ? "_exit" : "exit");
    return text;
}

std::map<std::string, std::string> environment(const Run &run, int rank)
{
    std::map<std::string, std::string> env;
    env["FTCCL_OP_TIMEOUT_MS"] = run.fault == Fault::Stop ? "1500" : "20000";
    env["FTCCL_TRANSPORTS"] = run.place == Place::Shm   ? "shm"
                              : run.place == Place::Tcp ? "tcp"
                                                        : "shm,tcp";
    env["FTCCL_SUSPECT_MS"] = "1000";
    if (run.place == Place::Hosts)
        env["FTCCL_HOSTID"] = "host" + std::to_string(run.host(rank));
    return env;
}

/* The rank that a sentence holds for the cause; -1: none. */
int blamed(const std::string &text)
{
    static const std::regex patterns[] = {std::regex("begins at rank (\\d+)"),
                                          std::regex("lost rank (\\d+)"),
                                          std::regex("(?:waits for|sends to) rank (\\d+)")};
    std::smatch match;
    for (const auto &pattern : patterns)
        if (std::regex_search(text, match, pattern))
            return std::stoi(match[1]);
    return -1;
}

size_t occurrences(const std::string &text, const std::string &part)
{
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
        n++;
    return n;
}

/* What is wrong with a rank's word; "": nothing. */
std::string judge(const Run &run, int rank, const std::string &line)
{
    size_t one = line.find('|'), two = line.find('|', one + 1);
    if (one == std::string::npos || two == std::string::npos)
        return "no word";
    std::string failed = "," + line.substr(one + 1, two - one - 1), text = line.substr(two + 1);
    if (occurrences(text, "told by") > 1)
        return "the chain is said more than once";
    if (run.fault == Fault::Mismatch)
        return (text.find("different calls") != std::string::npos ||
                text.find("bytes were due") != std::string::npos) &&
                       occurrences(text, "rank " + std::to_string(run.victim) + " ") > 0
                   ? ""
                   : "does not say what differed";
    int named = blamed(text);
    bool right = named >= 0 &&
                 (run.fault == Fault::Cut ? run.beside_victim(named) != run.beside_victim(rank)
                                          : named == run.victim);
    if (!right)
        return "blames rank " + std::to_string(named);
    return failed.find("," + std::to_string(named) + ",") != std::string::npos
               ? ""
               : "rank " + std::to_string(named) + " is not among the failed";
}

std::unique_ptr<campaign::Net> net;
std::mutex net_lock;

struct Tally {
    std::mutex lock;
    size_t runs[4] = {}, wrong_runs = 0, words[4] = {}, right[4] = {};
};

using Job = std::vector<std::unique_ptr<proc::Child>>;

/*
 * Starts the job and waits until every rank is ready. The rank that makes another call may make it
 * before a slow one has said that it is ready: that one fails, and words has what it said.
 */
bool start(const Run &run, Job &job, std::vector<std::string> &words)
{
    for (int r = 0; r < run.nranks; r++) {
        Member m{run.nranks,
                 r,
                 run.count,
                 run.quick,
                 r == run.victim ? run.odd_step : -1,
                 run.odd_call,
                 run.place == Place::Namespaces ? net->path(run.host(r)) : "-"};
        job.push_back(std::make_unique<proc::Child>("member", words_of(m), environment(run, r)));
    }
    std::string id = job[0]->line(60);
    for (size_t r = 1; r < job.size() && !id.empty(); r++)
        job[r]->tell(id);
    bool ready = !id.empty();
    for (size_t r = 0; r < job.size() && ready; r++) {
        std::string line = job[r]->line(60);
        if (line != "ready" && run.fault == Fault::Mismatch)
            words[r] = line;
        ready = line == "ready" || !words[r].empty();
    }
    return ready;
}

void strike(const Run &run, const Job &job)
{
    poll(nullptr, 0, run.wait_ms);
    if (run.fault == Fault::Kill)
        job[static_cast<size_t>(run.victim)]->signal(SIGKILL);
    if (run.fault == Fault::Stop)
        job[static_cast<size_t>(run.victim)]->signal(SIGSTOP);
    if (run.fault == Fault::Cut)
        net->cut(run.host(run.victim));
}

bool speaks(const Run &run, int rank)
{
    return run.fault == Fault::Mismatch || run.fault == Fault::Cut || rank != run.victim;
}

void play(const Run &run, Tally &tally, uint64_t seed, size_t number)
{
    std::unique_lock<std::mutex> held(net_lock, std::defer_lock);
    if (run.place == Place::Namespaces)
        held.lock();
    Job job;
    std::string wrong, said;
    std::vector<std::string> early(static_cast<size_t>(run.nranks));
    bool ready = start(run, job, early);
    if (!ready)
        wrong = "  the job did not start\n";
    else
        strike(run, job);
    size_t words = 0, right = 0;
    for (int r = 0; r < run.nranks && ready; r++) {
        if (!speaks(run, r))
            continue;
        auto at = static_cast<size_t>(r);
        proc::Child &child = *job[at];
        std::string line = early[at].empty() ? child.line(60) : early[at];
        if (line.empty())
            line = "(nothing; it ended with " + std::to_string(child.wait(0.1)) + ")";
        std::string why = judge(run, r, line);
        words++;
        right += why.empty();
        said += "  rank " + std::to_string(r) + ": " + line + "\n";
        if (!why.empty())
            wrong += "  rank " + std::to_string(r) + " " + why + "\n";
    }
    job.clear();
    if (run.fault == Fault::Cut)
        net->heal(run.host(run.victim));
    std::lock_guard<std::mutex> lock(tally.lock);
    auto fault = static_cast<size_t>(run.fault);
    tally.runs[fault]++;
    tally.words[fault] += words;
    tally.right[fault] += right;
    tally.wrong_runs += !wrong.empty();
    if (getenv("FT_CAUSE_VERBOSE") != nullptr)
        printf("run %zu: %s\n%s", number, describe(run).c_str(), said.c_str());
    if (!wrong.empty())
        ADD_FAILURE() << describe(run) << "\n"
                      << wrong << "what they said:\n"
                      << said << "again: FT_CAUSE_SEED=" << seed << " FT_CAUSE_RUN=" << number
                      << " tests/proc/cause_test";
}

uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? strtoull(text, nullptr, 0) : otherwise;
}

TEST(Cause, EveryRankNamesTheFirst)
{
    uint64_t seed = number_of("FT_CAUSE_SEED", std::random_device{}());
    uint64_t only = number_of("FT_CAUSE_RUN", UINT64_MAX),
             runs = number_of("FT_CAUSE_RUNS", UINT64_MAX);
    double end = proc::now() + static_cast<double>(
                                   number_of("FT_CAUSE_SECONDS", runs == UINT64_MAX ? 30 : 86400));
    net = std::make_unique<campaign::Net>();
    bool namespaces = net->missing().empty();
    printf("FT_CAUSE_SEED=%llu%s%s\n", static_cast<unsigned long long>(seed),
           namespaces ? "" : ", nobody is cut off: ", net->missing().c_str());
    fflush(stdout);
    Tally tally;
    std::atomic<size_t> next{only == UINT64_MAX ? 0 : only};
    size_t last = only == UINT64_MAX ? runs : only + 1;
    int jobs = only == UINT64_MAX ? static_cast<int>(number_of("FT_CAUSE_JOBS", 3)) : 1;
    proc::in_threads(jobs, [&](int) {
        for (size_t number = next++; number < last && proc::now() < end; number = next++)
            play(draw(seed * 1000003 + number, namespaces), tally, seed, number);
    });
    net.reset();
    for (size_t f = 0; f < 4; f++)
        printf("%-8s %4zu runs, %4zu of %4zu messages name the cause\n", fault_names[f],
               tally.runs[f], tally.right[f], tally.words[f]);
    printf("%zu runs were wrong\n", tally.wrong_runs);
}

} // namespace
