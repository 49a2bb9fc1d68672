/*
 * ftccl-diagnose --watch beside a job of four processes. Healthy: steps that vary by up to 10%,
 * checkpoints every 50 steps and pauses of 2 s give no alarm. Then: steps become slower and faster
 * again, and a rank is stopped and goes on. Each is said once, and the right rank is named.
 * FT_WATCH_SECONDS: how long the healthy job is watched (12). FT_WATCH_SEED: of its draws.
 */
#include <cmath>
#include <csignal>
#include <memory>
#include <random>
#include <sched.h>
#include <unistd.h>

#include "tests/proc/proc.h"

namespace
{

constexpr int RANKS = 4;

uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 0) : otherwise;
}

/* Other programs, such as tests that run at the same time, would make the steps really slower.
 * Where this is not allowed, a busy machine may give alarms. */
void come_first()
{
    const sched_param lowest = {1};
    (void)sched_setscheduler(0, SCHED_RR, &lowest);
}

/* A signal does not shorten it. */
void rest_ms(double ms)
{
    timespec left = {static_cast<time_t>(ms / 1000), static_cast<long>(fmod(ms, 1000) * 1e6)};
    while (nanosleep(&left, &left) != 0) {}
}

/* stepper ID RANK SEED PAUSE: steps of 40 ms and up to a tenth more. A checkpoint every 50 steps,
 * by the ranks in turn. About every PAUSE steps one rank rests for 2 s. With a signal of SIGUSR1
 * steps take twice as long, with the next one not any more. */
volatile sig_atomic_t slow;

CHILD(stepper)
{
    come_first();
    int rank = std::stoi(arguments[1]);
    std::mt19937_64 all(std::stoull(arguments[2])),
        own(std::stoull(arguments[2]) + 1 + static_cast<unsigned>(rank));
    uint64_t pause = std::stoull(arguments[3]);
    std::vector<float> data(100000);
    ftcclComm_t comm;
    signal(SIGUSR1, [](int) { slow = !slow; });
    if (ftcclCommInitRank(&comm, RANKS, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    for (uint64_t step = 0;; step++) {
        ftcclStep(comm, step);
        if (step == 30)
            puts("running"), fflush(stdout);
        uint64_t who = all() % RANKS;
        bool rests = all() % pause == 0 && step > 50;
        bool saves = step % 50 == 49 && step / 50 % RANKS == static_cast<uint64_t>(rank);
        rest_ms(40 * (slow ? 2 : 1) + static_cast<double>(own() % 4000) / 1000 + (saves ? 300 : 0) +
                (rests && who == static_cast<uint64_t>(rank) ? 2000 : 0));
        if (ftcclAllReduce(data.data(), data.data(), data.size(), ftcclFloat, ftcclSum, comm,
                           nullptr) != ftcclSuccess ||
            ftcclStreamSynchronize(nullptr) != ftcclSuccess)
            return 1;
    }
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> ranks;
    Job(uint64_t seed, uint64_t pause, const char *transport)
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < RANKS; r++)
            ranks.push_back(std::make_unique<proc::Child>(
                "stepper",
                std::vector<std::string>{proc::hex(id), std::to_string(r), std::to_string(seed),
                                         std::to_string(pause)},
                std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", transport}}));
        for (auto &rank : ranks)
            EXPECT_EQ(rank->line(60), "running");
    }
    std::string pid() const
    {
        return std::to_string(ranks[0]->pid());
    }
};

CHILD(watch)
{
    come_first();
    execl("tools/ftccl-diagnose", "ftccl-diagnose", "--watch=0.2", "--pid", arguments[0].c_str(),
          "--after", arguments[1].c_str(), nullptr);
    return 127;
}

bool begins(const std::string &line, const std::string &text)
{
    return line.rfind(text, 0) == 0;
}

/* The next line that begins like this; "": it did not come. */
std::string line_that_begins(proc::Child &watch, const std::string &text, double seconds)
{
    double end = proc::now() + seconds;
    std::string seen;
    while (proc::now() < end) {
        std::string line = watch.line(end - proc::now());
        if (begins(line, text))
            return line;
        seen += line + "\n";
    }
    ADD_FAILURE() << "no line begins with " << text << "; these came:\n" << seen;
    return "";
}

TEST(Watch, AHealthyJobGivesNoAlarm)
{
    auto seconds = static_cast<double>(number_of("FT_WATCH_SECONDS", 12));
    uint64_t seed = number_of("FT_WATCH_SEED", std::random_device{}());
    printf("FT_WATCH_SEED=%llu FT_WATCH_SECONDS=%g\n", static_cast<unsigned long long>(seed),
           seconds);
    fflush(stdout);
    Job job(seed, seconds < 60 ? 60 : 1000, seed % 2 ? "tcp" : "shm");
    proc::Child watch("watch", {job.pid(), "5"});
    std::string line = watch.line(20);
    EXPECT_TRUE(begins(line, "healthy")) << "it says first: " << line;
    int alarms = 0;
    for (double end = proc::now() + seconds; proc::now() < end;) {
        line = watch.line(std::min(60.0, end - proc::now()));
        if (line.empty())
            continue;
        alarms++;
        ADD_FAILURE() << "after " << seconds - (end - proc::now()) << " s: " << line;
    }
    for (auto &rank : job.ranks)
        EXPECT_EQ(rank->wait(0), -1) << "a rank has ended";
    printf("%d alarms in %g s\n", alarms, seconds);
}

TEST(Watch, SaysWhatChanges)
{
    Job job(1, 1000000000, "shm");
    proc::Child watch("watch", {job.pid(), "1"});
    line_that_begins(watch, "healthy", 20);
    for (const char *how : {"slower", "faster again"}) {
        for (auto &rank : job.ranks)
            rank->signal(SIGUSR1);
        std::string line = line_that_begins(watch, "steps of communicator ", 30);
        EXPECT_NE(line.find(how), std::string::npos) << line;
    }
    job.ranks[2]->signal(SIGSTOP);
    std::string line = line_that_begins(watch, "rank_stopped: ", 30);
    EXPECT_NE(line.find("rank 2"), std::string::npos) << line;
    job.ranks[2]->signal(SIGCONT);
    line_that_begins(watch, "healthy", 30);
}

} // namespace
