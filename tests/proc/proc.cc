/* See proc.h. */
#include "tests/proc/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

extern char **environ;

namespace proc
{

static std::map<std::string, ChildMain> &children()
{
    static std::map<std::string, ChildMain> table;
    return table;
}

ChildEntry::ChildEntry(const char *name, ChildMain f)
{
    children()[name] = std::move(f);
}

testing::AssertionResult is_ok(const char *text, ftcclResult_t result)
{
    if (result == ftcclSuccess)
        return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << text << " gives " << result << " (" << ftcclGetErrorString(result)
           << "): " << ftcclGetLastError(nullptr);
}

testing::AssertionResult is_caller(const char *text, ftcclResult_t result)
{
    const char *sentence = ftcclGetLastError(nullptr);
    if (ftcclGetErrorClass(result) != ftcclClassCaller) {
        return testing::AssertionFailure()
               << text << " gives " << result << " (" << ftcclGetErrorString(result)
               << ") instead of the caller's mistake: " << sentence;
    }
    if (strlen(sentence) < 10)
        return testing::AssertionFailure()
               << text << " is refused without a sentence: \"" << sentence << "\"";
    return testing::AssertionSuccess();
}

std::map<std::string, std::string> over(const std::string &transport)
{
    std::map<std::string, std::string> env{{"FTCCL_TRANSPORTS", transport}};
    if (transport == "net")
        env["FTCCL_NET_PLUGIN"] = FT_TEST_PLUGIN;
    return env;
}

std::vector<std::string> networks()
{
#ifdef FT_HAVE_LIBFABRIC
    return {"tcp", "net", "ofi"};
#else
    return {"tcp", "net"};
#endif
}

double now()
{
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::string output_of(const std::string &command, int *status)
{
    std::string text;
    FILE *pipe = popen((command + " 2>&1").c_str(), "r");
    char part[4096];
    for (size_t n; pipe && (n = fread(part, 1, sizeof part, pipe)) > 0;)
        text.append(part, n);
    int ended = pipe ? pclose(pipe) : -1;
    if (status)
        *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128;
    return text;
}

std::string text_of(const std::string &path)
{
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

void in_threads(int n, const std::function<void(int)> &f)
{
    std::vector<std::thread> threads;
    for (int i = 0; i < n; i++)
        threads.emplace_back(f, i);
    for (auto &thread : threads)
        thread.join();
}

void Meeting::wait()
{
    std::unique_lock<std::mutex> lock(mutex_);
    int time = times_;
    if (++here_ == size_) {
        here_ = 0;
        times_++;
        all_.notify_all();
    } else if (!all_.wait_for(lock, std::chrono::minutes(1), [&] { return times_ != time; })) {
        ADD_FAILURE() << here_ << " of " << size_ << " came to the meeting";
    }
}

World::World(int n) : comm(static_cast<size_t>(n)), stream(static_cast<size_t>(n))
{
    EXPECT_OK(ftcclCommInitAll(comm.data(), n, nullptr));
    for (auto &s : stream)
        EXPECT_OK(ftcclStreamCreate(&s));
}

World::World(int n, const std::function<void(ftcclConfig_t &)> &configure)
    : comm(static_cast<size_t>(n)), stream(static_cast<size_t>(n))
{
    ftcclUniqueId id;
    EXPECT_OK(ftcclGetUniqueId(&id));
    in_threads(n, [&](int r) {
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        configure(config);
        EXPECT_OK(ftcclCommInitRankConfig(&comm[static_cast<size_t>(r)], n, id, r, &config));
    });
    for (auto &s : stream)
        EXPECT_OK(ftcclStreamCreate(&s));
}

World::~World()
{
    each([&](int r) {
        ftcclComm_t c = comm[static_cast<size_t>(r)];
        if (c != nullptr)
            ftcclCommDestroy(c);
    });
    for (auto s : stream)
        ftcclStreamDestroy(s);
}

bool World::works() const
{
    std::vector<int> sum(comm.size());
    std::vector<ftcclResult_t> result(comm.size());
    each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        sum[r] = rank + 1;
        result[r] = ftcclAllReduce(&sum[r], &sum[r], 1, ftcclInt, ftcclSum, comm[r], stream[r]);
        if (result[r] == ftcclSuccess)
            result[r] = finish(stream[r]);
    });
    int want = size() * (size() + 1) / 2;
    for (size_t r = 0; r < comm.size(); r++) {
        if (result[r] == ftcclSuccess && sum[r] == want)
            continue;
        ADD_FAILURE() << "rank " << r << ": " << ftcclGetErrorString(result[r]) << ", sum "
                      << sum[r] << " instead of " << want << ": " << ftcclGetLastError(comm[r]);
        return false;
    }
    return true;
}

ftcclResult_t finish(ftcclStream_t stream)
{
    return ftcclStreamSynchronize(stream);
}

std::string hex(const ftcclUniqueId &id)
{
    std::string text;
    char two[3];
    for (char c : id.internal) {
        snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
        text += two;
    }
    return text;
}

ftcclUniqueId unhex(const std::string &text)
{
    ftcclUniqueId id;
    for (size_t i = 0; i < sizeof id.internal; i++) {
        id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    }
    return id;
}

Child::Child(const std::string &name, const std::vector<std::string> &arguments,
             const std::map<std::string, std::string> &env)
{
    int out[2], in[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(in, O_CLOEXEC) != 0)
        abort();
    std::vector<std::string> words{"child", "--child=" + name}, variables;
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (char **e = environ; *e != nullptr; e++) {
        std::string variable(*e);
        if (env.count(variable.substr(0, variable.find('='))) == 0)
            variables.push_back(variable);
    }
    for (const auto &pair : env)
        variables.push_back(pair.first + "=" + pair.second);
    std::vector<char *> argv, envp;
    for (auto &word : words)
        argv.push_back(word.data());
    for (auto &variable : variables)
        envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), envp.data()) != 0)
        pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(in[0]);
    out_ = out[0];
    in_ = in[1];
}

Child::~Child()
{
    if (status_ == -1 && pid_ > 0) {
        ::kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(in_);
}

std::string Child::line(double seconds)
{
    double end = now() + seconds;
    for (;;) {
        size_t newline = buffer_.find('\n');
        if (newline != std::string::npos) {
            std::string text = buffer_.substr(0, newline);
            buffer_.erase(0, newline + 1);
            return text;
        }
        pollfd p{out_, POLLIN, 0};
        double left = end - now();
        if (left <= 0 || poll(&p, 1, static_cast<int>(left * 1e3) + 1) <= 0)
            return "";
        char bytes[4096];
        ssize_t got = read(out_, bytes, sizeof bytes);
        if (got <= 0)
            return "";
        buffer_.append(bytes, static_cast<size_t>(got));
    }
}

void Child::tell(const std::string &text) const
{
    std::string with = text + "\n";
    ::signal(SIGPIPE, SIG_IGN); /* one that has ended is a failure of its own */
    if (write(in_, with.data(), with.size()) < 0)
        ADD_FAILURE() << "the child does not listen";
}

/* The kernel hands SIGSTOP to one thread. Until that thread gets a processor, the others run on. */
static void await_stop(pid_t pid)
{
    siginfo_t info = {};
    double end = now() + 30;
    while (waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid == 0 && now() < end)
        usleep(1000);
}

void Child::signal(int number) const
{
    ::kill(pid_, number);
    if (number == SIGSTOP)
        await_stop(pid_);
}

int Child::wait(double seconds)
{
    double end = now() + seconds;
    int status;
    while (status_ == -1) {
        pid_t got = waitpid(pid_, &status, WNOHANG);
        if (got == pid_)
            status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        else if (now() > end)
            return -1;
        else
            poll(nullptr, 0, 1);
    }
    return status_;
}

static int entries(const char *path, const std::function<bool(const char *)> &wanted)
{
    int count = 0;
    DIR *folder = opendir(path);
    if (folder == nullptr)
        return -1;
    while (dirent *entry = readdir(folder))
        count += entry->d_name[0] != '.' && wanted(entry->d_name);
    closedir(folder);
    return count;
}

int descriptors()
{
    return entries("/proc/self/fd", [](const char *) { return true; }) - 1;
}

std::string descriptor_names()
{
    std::string names;
    entries("/proc/self/fd", [&](const char *name) {
        char target[256] = {};
        if (readlink((std::string("/proc/self/fd/") + name).c_str(), target, sizeof target - 1) > 0)
            names += std::string(" ") + target;
        return true;
    });
    return names;
}

int threads()
{
    return entries("/proc/self/task", [](const char *) { return true; });
}

long resident_kib()
{
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        if (word == "VmRSS:") {
            long kib;
            status >> kib;
            return kib;
        }
    }
    return -1;
}

bool Holdings::more() const
{
    return proc::descriptors() > descriptors || proc::threads() > threads ||
           shm_of(getpid()).size() > shm;
}

std::string Holdings::left() const
{
    for (double end = now() + 20; now() < end && more(); usleep(10000)) {}
    if (!more())
        return "";
    return std::to_string(proc::descriptors() - descriptors) +
           " descriptors:" + descriptor_names() + ", " + std::to_string(proc::threads() - threads) +
           " threads, " + std::to_string(shm_of(getpid()).size() - shm) + " files in /dev/shm";
}

Dice dice()
{
    const char *text = getenv("FT_SEED");
    unsigned long seed = text ? strtoul(text, nullptr, 10) : std::random_device{}();
    const testing::TestInfo *test = testing::UnitTest::GetInstance()->current_test_info();
    printf("seed %lu; replay: FT_SEED=%lu tests/proc/%s --gtest_filter=%s.%s\n", seed, seed,
           program_invocation_short_name, test->test_suite_name(), test->name());
    return {std::mt19937_64(seed)};
}

} // namespace proc

int main(int argc, char **argv)
{
    const char *prefix = "--child=";
    if (argc > 1 && strncmp(argv[1], prefix, strlen(prefix)) == 0) {
        setvbuf(stdout, nullptr, _IOLBF, 0);
        auto found = proc::children().find(argv[1] + strlen(prefix));
        if (found == proc::children().end())
            return 127;
        return found->second(std::vector<std::string>(argv + 2, argv + argc));
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
