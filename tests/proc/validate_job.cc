/*
 * The ranks of a job that is validated, and what a test sees of them.
 */
#include "tests/proc/validate_job.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <thread>

namespace
{

/* What a rank adds in its nth call, after the result `before`. Exact in doubles. */
double input(int rank, int nth, double before)
{
    return double((rank + 1) * (nth % 97)) + double(int64_t(before) % 1000003);
}

/* The last bits of such sums depend on their order. */
double rough_input(int rank, int n, double before)
{
    return std::sin(rank + 1) + before / (n + 0.7);
}

double expected(int n, int calls)
{
    double result = 0;
    for (int i = 0; i < calls; i++) {
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += input(r, i, result);
        result = sum;
    }
    return result;
}

struct Worker {
    int n, rank, calls;
    std::string kind;
    size_t count;
    ftcclComm_t comm = nullptr, second = nullptr;
    ftcclStream_t stream = nullptr;
    std::vector<double> data, out, in;
    double result = 0, rough = 0;

    explicit Worker(const std::vector<std::string> &arguments)
        : n(std::stoi(arguments[1])), rank(std::stoi(arguments[2])), calls(std::stoi(arguments[6])),
          kind(arguments[4]), count(std::stoul(arguments[3])), out(100), in(100)
    {
        int ns = arguments[5].empty() ? -1 : open(arguments[5].c_str(), O_RDONLY | O_CLOEXEC);
        if ((!arguments[5].empty() && setns(ns, CLONE_NEWNET) != 0) ||
            ftcclStreamCreate(&stream) != ftcclSuccess ||
            ftcclCommInitRank(&comm, n, find_id(arguments[0]), rank) != ftcclSuccess)
            _exit(1);
        if (kind == "two" && ftcclCommSplit(comm, 0, rank, &second, nullptr) != ftcclSuccess)
            _exit(1);
        if (kind == "fork" && fork() == 0)
            pause_for_parent();
    }
    [[noreturn]] static void pause_for_parent()
    {
        for (pid_t parent = getppid(); getppid() == parent;)
            usleep(10000);
        _exit(0);
    }
    /* Rank 0 makes it, in its namespace. */
    static ftcclUniqueId find_id(const std::string &text)
    {
        ftcclUniqueId id;
        if (!text.empty())
            return proc::unhex(text);
        if (ftcclGetUniqueId(&id) != ftcclSuccess)
            _exit(1);
        say(proc::hex(id));
        return id;
    }
    static void say(const std::string &line)
    {
        printf("%s\n", line.c_str());
        fflush(stdout);
    }
    bool reduce(double *what, size_t len, ftcclComm_t with)
    {
        return ftcclAllReduce(what, what, len, ftcclDouble, ftcclSum, with, stream) == ftcclSuccess;
    }
    /* The call of which all know the result. */
    bool call(int nth, bool last)
    {
        data.assign(count, input(rank, nth, result));
        data[1] = last;
        data[2] = rough_input(rank, n, rough);
        bool good = reduce(data.data(), count, second && nth % 2 ? second : comm) &&
                    ftcclStreamSynchronize(stream) == ftcclSuccess;
        result = data[0];
        rough = data[2];
        return good;
    }
    /* A group of calls, and messages around the ring in another. */
    bool mix(int nth)
    {
        double small[3] = {1, 2, 3};
        out.assign(100, rank + nth);
        bool good = ftcclGroupStart() == ftcclSuccess;
        for (double &each : small)
            good &= reduce(&each, 1, comm);
        good &= ftcclGroupEnd() == ftcclSuccess && ftcclGroupStart() == ftcclSuccess &&
                ftcclSend(out.data(), 100, ftcclDouble, (rank + 1) % n, comm, stream) ==
                    ftcclSuccess &&
                ftcclRecv(in.data(), 100, ftcclDouble, (rank + n - 1) % n, comm, stream) ==
                    ftcclSuccess &&
                ftcclGroupEnd() == ftcclSuccess && ftcclStreamSynchronize(stream) == ftcclSuccess;
        return good && small[2] == 3 * n && in[99] == (rank + n - 1) % n + nth;
    }
    /* True: this rank is told to end. */
    bool is_told(int nth)
    {
        char byte;
        if (calls > 0)
            return nth + 1 == calls;
        return kind != "abort" && rank == 0 && read(STDIN_FILENO, &byte, 1) > 0;
    }
    void wait_for_word() const
    {
        char byte;
        while (read(STDIN_FILENO, &byte, 1) < 0)
            usleep(1000);
    }
    void abort_when_told()
    {
        wait_for_word();
        if (ftcclCommAbort(comm) == ftcclSuccess)
            say("aborted");
    }
    int run()
    {
        std::thread aborting;
        if (kind == "abort" && rank == 0)
            aborting = std::thread([this] { abort_when_told(); });
        for (int i = 0, told = 0; !told; i++) {
            if (!call(i, is_told(i)) || (kind == "mixed" && !mix(i))) {
                say("failed");
                pause();
            }
            told = data[1] > 0;
            if (i == 20)
                say("running");
            if (i == 20 && kind == "idle" && calls == 0)
                wait_for_word();
            if (told) {
                char text[100];
                snprintf(text, sizeof text, "%d %.0f %a", i + 1, result, rough);
                say(text);
            }
        }
        return (second && ftcclCommDestroy(second) != ftcclSuccess) ||
               ftcclCommDestroy(comm) != ftcclSuccess;
    }
};

/* worker ID NRANKS RANK COUNT KIND NAMESPACE CALLS: reduces until rank 0 is told to stop, or so
 * many times, and says the result. All agree on the last call, since rank 0 adds to the second
 * element then. */
CHILD(worker)
{
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    return Worker(arguments).run();
}

} // namespace

namespace validate
{

Said diagnose(const std::string &options)
{
    Said said;
    double begin = proc::now();
    said.text = proc::output_of("./tools/ftccl-diagnose " + options, &said.status);
    said.seconds = proc::now() - begin;
    return said;
}

Job::Job(int nranks, const std::string &transport, const Options &options)
    : n(nranks), transport_(transport), options_(options)
{
    std::string id;
    for (int r = 0; r < n; r++) {
        std::map<std::string, std::string> env = {{"FTCCL_TRANSPORTS", transport},
                                                  {"FTCCL_OP_TIMEOUT_MS",
                                                   std::to_string(options.timeout_ms)}};
        if (options.victim >= 0) /* the transport must be the same on both sides of a link */
            env["FTCCL_FAULT"] = "delay_us=" +
                                 std::to_string(r == options.victim ? options.late_us : 0);
        if (options.kind == "retry")
            env["FTCCL_FAILURE_POLICY"] = "retry";
        rank.push_back(std::make_unique<proc::Child>(
            "worker",
            std::vector<std::string>{id, std::to_string(n), std::to_string(r),
                                     std::to_string(options.count), options.kind,
                                     options.net ? options.net->path(r) : "",
                                     std::to_string(options.calls)},
            env));
        if (r == 0)
            id = rank[0]->line(60);
    }
    for (auto &child : rank)
        EXPECT_EQ(child->line(60), "running");
}

std::string Job::options_of(const std::string &seconds) const
{
    return "--after 30 --pid " + std::to_string(pid(0)) + " --validate=" + seconds;
}

Said Job::validate(const std::string &seconds, const std::string &more) const
{
    return diagnose(options_of(seconds) + " " + more);
}

std::string Job::file(int r) const
{
    for (const std::string &name : proc::shm_of(pid(r)))
        if (name.rfind("ftccl-" + std::to_string(geteuid()), 0) == 0)
            return "/dev/shm/" + name;
    return "";
}

std::vector<unsigned char> Job::row(int r) const
{
    std::vector<unsigned char> row(kRowBytes);
    int fd = open(file(r).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(pread(fd, row.data(), kRowBytes, kRow), ssize_t(kRowBytes)) << "rank " << r;
    close(fd);
    return row;
}

uint64_t Job::context(int r) const
{
    uint64_t ctx;
    memcpy(&ctx, &row(r)[16], sizeof ctx);
    return ctx;
}

int Job::state(int r) const
{
    uint16_t state;
    memcpy(&state, &row(r)[kState - kRow], sizeof state);
    return state;
}

bool Job::comes_to(int r, int want) const
{
    for (double end = proc::now() + 20; proc::now() < end;)
        if (state(r) == want)
            return true;
    return false;
}

bool Job::has_ended(int r, double seconds) const
{
    for (double end = proc::now() + seconds; proc::now() < end;)
        if (state(r) == kDone || state(r) == kGivenUp)
            return true;
    return false;
}

std::string Job::last_line(int r)
{
    std::string line = rank[size_t(r)]->line(60);
    EXPECT_EQ(rank[size_t(r)]->wait(60), 0) << "rank " << r;
    return line;
}

void Job::expect_right(bool same)
{
    std::vector<std::string> lines;
    rank[0]->tell("x");
    for (int r = 0; r < n; r++)
        lines.push_back(last_line(r));
    int calls = atoi(lines[0].c_str());
    char want[64];
    EXPECT_GT(calls, 20);
    snprintf(want, sizeof want, "%d %.0f ", calls, expected(n, calls));
    for (int r = 0; r < n; r++)
        EXPECT_EQ(lines[size_t(r)].compare(0, strlen(want), want), 0)
            << "rank " << r << ": " << lines[size_t(r)] << ", not " << want;
    if (!same || calls <= 20)
        return;
    Options options = options_;
    options.calls = calls;
    Job other(n, transport_, options);
    for (int r = 0; r < n; r++)
        EXPECT_EQ(other.last_line(r), lines[size_t(r)]) << "without a validation, rank " << r;
}

bool has_sanitizer()
{
    const char *sanitizer = getenv("FT_SANITIZER");
    return sanitizer && *sanitizer;
}

void expect_measured(const Said &said)
{
    EXPECT_NE(said.text.find("validated communicator"), std::string::npos) << said.text;
    if (has_sanitizer())
        return;
    EXPECT_EQ(said.text.find("cannot tell"), std::string::npos) << said.text;
    EXPECT_EQ(said.text.find("nothing came"), std::string::npos) << said.text;
}

} // namespace validate
