/* See job.h. */
#include "tests/campaign/job.h"

#include "tests/proc/shm.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace campaign
{

namespace
{

/* After destroy, above the start: the service of an id that nobody used has four descriptors and a
 * thread, the process's arena two. */
constexpr long DESCRIPTORS_LEFT = 6, THREADS_LEFT = 1, KIB_LEFT = 64 * 1024;

} // namespace

Job::Job(const JobOptions &given, const Net &net) : options(given), net_(net)
{
    memory_ = memfd_create("campaign", 0);
    if (memory_ < 0 || ftruncate(memory_, sizeof(Page)) != 0)
        abort();
    void *map = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
    if (map == MAP_FAILED)
        abort();
    page = static_cast<Page *>(map);
}

Job::~Job()
{
    for (auto &proc : procs_) {
        if (!proc->reaped) {
            kill(proc->pid, SIGKILL);
            waitpid(proc->pid, nullptr, 0);
        }
        close(proc->out);
        for (const std::string &name : proc::shm_of(proc->pid))
            unlink(("/dev/shm/" + name).c_str());
    }
    munmap(page, sizeof(Page));
    close(memory_);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void set(const char *name, const std::string &value)
{
    setenv(name, value.c_str(), 1);
}

static void verbs_environment(int wid)
{
    set("FTCCL_IB_HCA", wid % 2 ? "=rxe1,rxe3" : "=rxe0,rxe2");
    set("FTCCL_IB_TIMEOUT", "12");
    set("FTCCL_RAIL_RETRY_MS", "200");
    set("FTCCL_SOCKET_IFNAME", "lo");
}

static void network_environment(const JobOptions &options, int wid)
{
    bool tcp = options.network == "tcp";
    if (options.place == Place::Network || (options.network_alone && !tcp))
        set("FTCCL_TRANSPORTS", options.network);
    else if (!tcp)
        set("FTCCL_TRANSPORTS", "shm," + options.network);
    if (options.network == "net" && !getenv("FTCCL_NET_PLUGIN"))
        set("FTCCL_NET_PLUGIN", FT_TEST_PLUGIN);
    if (options.network == "verbs")
        verbs_environment(wid);
}

/* In the child, before it becomes a worker. */
static void environment(const JobOptions &options, int host, int wid)
{
    set("FTCCL_OP_TIMEOUT_MS", std::to_string(options.op_timeout_ms));
    set("FTCCL_INIT_TIMEOUT_MS", std::to_string(options.init_timeout_ms));
    set("FTCCL_DEBUG", getenv("CAMPAIGN_VERBOSE") ? getenv("CAMPAIGN_VERBOSE") : "VERSION");
    if (options.place == Place::Shm)
        set("FTCCL_TRANSPORTS", "shm");
    else
        network_environment(options, wid);
    if (options.place >= Place::Hosts)
        set("FTCCL_HOSTID", "host" + std::to_string(host));
    if (options.place == Place::Namespaces)
        set("FTCCL_SOCKET_IFNAME", "eth");
    if (options.delays)
        set("FTCCL_FAULT", "seed=" + std::to_string(options.seed % 1000) +
                               ",delay_us=100,stall_ppm=200,stall_us=20000");
}

void Job::spawn(const WorkerOptions &worker, int host)
{
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0)
        abort();
    std::vector<std::string> words{"campaign",
                                   "--worker",
                                   std::to_string(worker.wid),
                                   std::to_string(worker.nranks),
                                   std::to_string(worker.rank),
                                   std::to_string(memory_),
                                   worker.join ? "1" : "0",
                                   std::to_string(worker.seed),
                                   std::to_string(worker.ballast_bytes),
                                   worker.id};
    std::vector<char *> argv;
    for (auto &word : words)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    auto proc = std::make_unique<Proc>();
    proc->wid = worker.wid;
    proc->host = host;
    proc->out = out[0];
    proc->pid = fork();
    if (proc->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (options.place == Place::Namespaces) {
            int ns = open(net_.path(host).c_str(), O_RDONLY | O_CLOEXEC);
            if (ns < 0 || setns(ns, CLONE_NEWNET) != 0)
                _exit(99);
        }
        environment(options, host, worker.wid);
        dup2(out[1], 1);
        execv("/proc/self/exe", argv.data());
        _exit(98);
    }
    close(out[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    procs_.push_back(std::move(proc));
}

void Job::start(int count, const std::string &given_id, int first_rank)
{
    bool join = !given_id.empty();
    for (int i = 0; i < count; i++) {
        WorkerOptions worker;
        worker.wid = started();
        worker.nranks = join ? first_rank + count : count;
        worker.rank = first_rank + i;
        worker.join = join;
        worker.seed = options.seed;
        worker.ballast_bytes = options.ballast_bytes && worker.wid == options.ballast_wid
                                   ? options.ballast_bytes
                                   : 0;
        if (join)
            worker.id = given_id;
        else if (i > 0)
            worker.id = id;
        spawn(worker, worker.wid % options.hosts);
        if (!join && i == 0 && !wait(20, [&] { return !id.empty(); }))
            return fail("the first worker makes no id");
    }
}

void Job::signal(int wid, int number)
{
    Proc &proc = at(wid);
    if (proc.reaped)
        return;
    kill(proc.pid, number);
    if (number == SIGKILL)
        proc.killed = true;
    if (number == SIGSTOP)
        proc.stopped = true;
    if (number == SIGCONT)
        proc.stopped = false;
}

void Job::control(Control kind, int count)
{
    page->control.store(++serial << 32 | static_cast<uint64_t>(kind) << 16 |
                            static_cast<uint64_t>(count),
                        std::memory_order_release);
}

/* ---- what they say --------------------------------------------------------------------------- */

/* Every rank that tells of the shrink of a communicator must tell the same. */
void Job::decided(const Proc &proc, std::istream &words)
{
    uint64_t gen = 0, op = 0, done = 0, issued = 0;
    std::string rest;
    words >> gen >> op >> done >> issued;
    std::getline(words, rest);
    if (op > issued)
        fail("worker " + std::to_string(proc.wid) + ": last agreed operation " +
             std::to_string(op) + " of " + std::to_string(issued));
    std::string text = "operation " + std::to_string(op) + ", failed" + rest;
    auto found = decisions_.emplace(gen, text);
    if (found.first->second != text)
        fail("worker " + std::to_string(proc.wid) + " shrank generation " + std::to_string(gen) +
             " with: " + text + "; another with: " + found.first->second);
    auto least = done_.emplace(gen, done).first;
    least->second = std::min(least->second, done);
    agreed_[gen] = op;
}

void Job::line(Proc &proc, const std::string &text)
{
    std::istringstream words(text.substr(std::min<size_t>(2, text.size())));
    std::string who = "worker " + std::to_string(proc.wid);
    uint64_t number = 0;
    int code = 0;
    proc.said_ns = now_ns();
    switch (text.empty() ? 0 : text[0]) {
    case 'U':
        words >> id;
        break;
    case 'M': {
        words >> proc.gen >> proc.met_ns >> code;
        proc.members.clear();
        for (int wid; words >> wid;)
            proc.members.push_back(wid);
        size_t rank = static_cast<size_t>(code);
        if (rank >= proc.members.size() || proc.members[rank] != proc.wid)
            fail(who + " has the wrong place: " + text);
        std::string group;
        for (int wid : proc.members)
            group += " " + std::to_string(wid);
        auto found = groups_.emplace(proc.gen, group);
        if (found.first->second != group)
            fail(who + " goes on in generation " + std::to_string(proc.gen) + " with" + group +
                 ", another one with" + found.first->second);
        break;
    }
    case 'E': {
        int64_t ns = 0;
        std::string call;
        words >> ns >> code >> call;
        if (!proc.error_ns) {
            proc.error_ns = ns, proc.error_call = call;
            std::getline(words, proc.error_sentence);
        }
        break;
    }
    case 'D':
        decided(proc, words);
        break;
    case 'G':
        words >> id_serial >> id_nranks >> id;
        break;
    case 'H':
        words >> number >> code;
        proc.grown[number] = code;
        break;
    case 'X':
        words >> proc.why;
        std::getline(words, proc.sentence);
        break;
    case 'Z': {
        long descriptors = 0, threads = 0, kib = 0;
        words >> descriptors >> threads >> kib;
        proc.why = "end";
        if (descriptors > DESCRIPTORS_LEFT || threads > THREADS_LEFT || kib > KIB_LEFT)
            fail(who + " leaks (descriptors, threads, KiB): " + text.substr(2));
        break;
    }
    case 'F':
        fail(who + ": " + text.substr(2));
        break;
    default:
        fail(who + " says: " + text);
    }
}

void Job::pump(int timeout_ms)
{
    std::vector<pollfd> polls;
    std::vector<Proc *> which;
    for (auto &proc : procs_) {
        if (proc->reaped)
            continue;
        polls.push_back({proc->out, POLLIN, 0});
        which.push_back(proc.get());
    }
    if (poll(polls.data(), polls.size(), timeout_ms) < 0)
        return;
    for (size_t i = 0; i < polls.size(); i++) {
        Proc &proc = *which[i];
        /* first, so that its last words are read */
        bool gone = waitpid(proc.pid, &proc.status, WNOHANG) == proc.pid;
        char bytes[8192];
        for (ssize_t got; (got = read(proc.out, bytes, sizeof bytes)) > 0;)
            proc.buffer.append(bytes, static_cast<size_t>(got));
        for (size_t end; (end = proc.buffer.find('\n')) != std::string::npos;) {
            std::string text = proc.buffer.substr(0, end);
            proc.buffer.erase(0, end + 1);
            line(proc, text);
        }
        if (!gone)
            continue;
        proc.reaped = true;
        if (!proc.killed && proc.why.empty())
            fail("worker " + std::to_string(proc.wid) + " ended by itself: " +
                 (WIFSIGNALED(proc.status) ? "signal " + std::to_string(WTERMSIG(proc.status))
                                           : "status " + std::to_string(WEXITSTATUS(proc.status))));
    }
}

bool Job::wait(double seconds, const std::function<bool()> &done)
{
    int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
    for (;;) {
        pump(2);
        if (!failures.empty())
            return false;
        if (done())
            return true;
        if (now_ns() > end)
            return false;
    }
}

/* ---- the state of the job -------------------------------------------------------------------- */

Wids Job::live() const
{
    Wids wids;
    for (auto &proc : procs_)
        if (proc->live())
            wids.insert(proc->wid);
    return wids;
}

uint64_t Job::gen() const
{
    uint64_t highest = 0;
    for (auto &proc : procs_)
        highest = std::max(highest, proc->gen);
    return highest;
}

void Job::reset()
{
    rounds_.clear();
    for (auto &proc : procs_) {
        proc->error_ns = 0;
        rounds_[proc->wid] = page->rounds[proc->wid].load(std::memory_order_relaxed);
    }
}

bool Job::computing(const Wids &group)
{
    return std::all_of(group.begin(), group.end(), [&](int wid) {
        return page->rounds[wid].load(std::memory_order_relaxed) >= rounds_[wid] + 2;
    });
}

bool Job::together(const Wids &group, uint64_t newer_than)
{
    for (int wid : group) {
        Proc &proc = at(wid);
        if (!proc.live() || proc.gen <= newer_than || proc.gen != at(*group.begin()).gen)
            return false;
        if (Wids(proc.members.begin(), proc.members.end()) != group)
            return false;
    }
    return true;
}

void Job::check_agreed(uint64_t gen)
{
    if (agreed_.count(gen) && agreed_[gen] < done_[gen])
        fail("generation " + std::to_string(gen) + ": operation " + std::to_string(agreed_[gen]) +
             " is agreed as the last one, but every rank ended " + std::to_string(done_[gen]));
}

void Job::fail(const std::string &text)
{
    failures.push_back(text);
}

std::string Job::report() const
{
    std::ostringstream out;
    for (auto &proc : procs_) {
        if (proc->reaped && (proc->killed || proc->why == "end"))
            continue;
        uint32_t call = page->call[proc->wid].load();
        out << "    worker " << proc->wid << " pid " << proc->pid << " host " << proc->host
            << (proc->killed ? " killed" : "") << (proc->stopped ? " stopped" : "")
            << " generation " << proc->gen << " in " << (call < CALL_COUNT ? call_names[call] : "?")
            << (proc->error_ns ? ", error in " + proc->error_call + ":" + proc->error_sentence : "")
            << (proc->why.empty() ? "" : ", left: " + proc->why + proc->sentence) << ", members";
        for (int wid : proc->members)
            out << ' ' << wid;
        out << '\n';
    }
    return out.str();
}

void Job::check_leftovers()
{
    for (auto &proc : procs_) {
        if (!proc->reaped) {
            fail("worker " + std::to_string(proc->wid) + " does not end");
            continue;
        }
        std::vector<std::string> names = proc::shm_of(proc->pid);
        if (names.size() > (proc->killed ? 1u : 0u)) {
            std::string all;
            for (const std::string &name : names)
                all += " " + name;
            fail("worker " + std::to_string(proc->wid) + " left in /dev/shm:" + all);
        }
    }
}

} // namespace campaign
