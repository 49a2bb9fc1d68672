/*
 * Property: a rank answers in the protocol of NCCL's RAS as its clients expect, whatever happens to
 * ranks and whatever clients do, and costs the job nothing. Method: jobs of processes, asked as
 * SGLang, Ray and Marin ask; ranks that hang, are stopped or killed; clients that send garbage,
 * stay, or ask while communicators come and go. jansson, which did not write them, reads the
 * answers.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "tests/common/sanitizer.h"
#include "tests/proc/proc.h"

#ifdef FT_HAVE_JANSSON
#include <jansson.h>
#endif

namespace
{

constexpr int kRanks = 4, kPort = 28028;

void wait_for_ever()
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

/* worker ID NRANKS RANK VICTIM: all reduce for ever; the victim stops calling after 20 times. */
CHILD(worker)
{
    ftcclComm_t comm;
    ftcclStream_t stream;
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    float value = 1;
    for (int i = 0;; i++) {
        if (i == 20)
            printf("running\n");
        if (i >= 20 && rank == std::stoi(arguments[3]))
            wait_for_ever();
        if (ftcclAllReduce(&value, &value, 1, ftcclFloat, ftcclMax, comm, stream) != ftcclSuccess ||
            ftcclStreamSynchronize(stream) != ftcclSuccess)
            wait_for_ever();
        usleep(1000);
    }
}

/* ---- where ----------------------------------------------------------------------------------- */

/* An address of the loopback that nobody else has: of this process, and new at each call. */
std::string new_host()
{
    static int n = 0;
    n++;
    return "127." + std::to_string(1 + getpid() % 250) + "." +
           std::to_string(1 + getpid() / 250 % 250) + "." + std::to_string(1 + n % 250);
}

struct Job {
    std::string host = new_host();
    std::vector<std::unique_ptr<proc::Child>> rank;
    explicit Job(int victim = -1, const std::map<std::string, std::string> &more = {})
    {
        ftcclUniqueId id;
        std::map<std::string, std::string> env = {
            {"NCCL_RAS_ADDR", host + ":" + std::to_string(kPort)}};
        env.insert(more.begin(), more.end());
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < kRanks; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "worker",
                std::vector<std::string>{proc::hex(id), std::to_string(kRanks), std::to_string(r),
                                         std::to_string(victim)},
                env));
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "running");
    }
    proc::Child &at(int r) const
    {
        return *rank[static_cast<size_t>(r)];
    }
    pid_t pid() const
    {
        return at(0).pid();
    }
};

/* ---- a client -------------------------------------------------------------------------------- */

class Client
{
  public:
    explicit Client(const std::string &host)
    {
        sockaddr_in to = {};
        to.sin_family = AF_INET;
        to.sin_port = htons(kPort);
        inet_pton(AF_INET, host.c_str(), &to.sin_addr);
        fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd_, reinterpret_cast<sockaddr *>(&to), sizeof to) != 0) {
            close(fd_);
            fd_ = -1;
        }
    }
    ~Client()
    {
        if (fd_ >= 0)
            close(fd_);
    }
    Client(const Client &) = delete;
    bool is_connected() const
    {
        return fd_ >= 0;
    }
    bool send(const std::string &text) const
    {
        return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(text.size());
    }
    void end() const
    {
        shutdown(fd_, SHUT_WR);
    }
    /* What comes until the other side ends, or until the text comes, or until the time is over. */
    std::string hear(double seconds, const std::string &until = "\n\n\n") const
    {
        std::string all;
        double end = proc::now() + seconds;
        char bytes[4096];
        while (all.find(until) == std::string::npos) {
            pollfd fd = {fd_, POLLIN, 0};
            int left = static_cast<int>((end - proc::now()) * 1000);
            if (left <= 0 || poll(&fd, 1, left) <= 0)
                break;
            ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
            if (n <= 0) {
                ended_ = true;
                break;
            }
            all.append(bytes, static_cast<size_t>(n));
        }
        return all;
    }
    bool has_ended() const
    {
        return ended_;
    }
    int port() const
    {
        sockaddr_in own = {};
        socklen_t len = sizeof own;
        getsockname(fd_, reinterpret_cast<sockaddr *>(&own), &len);
        return ntohs(own.sin_port);
    }

  private:
    int fd_;
    mutable bool ended_ = false;
};

/* As SGLang asks; "": no answer. Its second is for machines that are not busy; see
 * AnswersAsSglangAsks. */
std::string ask(const std::string &host, double seconds = 20)
{
    Client client(host);
    if (!client.is_connected() || !client.send("SET FORMAT json\n") || !client.send("STATUS\n"))
        return "";
    std::string said = client.hear(seconds);
    return client.has_ended() ? said : "";
}

struct Said {
    int status = -1;
    std::string text;
};

Said ncclras(const std::string &host, const std::string &options)
{
    Said said;
    said.text = proc::output_of("./tools/ncclras -h " + host + " " + options, &said.status);
    return said;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

#ifdef FT_HAVE_JANSSON

class Json
{
  public:
    explicit Json(const std::string &text)
    {
        size_t at = text.find('{');
        json_error_t error = {};
        root_ = json_loads(at == std::string::npos ? "" : text.c_str() + at, 0, &error);
        EXPECT_NE(root_, nullptr) << error.text << " in: " << text;
    }
    ~Json()
    {
        json_decref(root_);
    }
    Json(const Json &) = delete;
    json_t *at(const char *key) const
    {
        return json_object_get(root_, key);
    }
    json_t *root() const
    {
        return root_;
    }
    /* The communicator of the process; other jobs may run on this machine. */
    json_t *comm(pid_t pid) const
    {
        size_t i, k;
        json_t *comm, *rank;
        json_array_foreach(at("communicators"), i, comm)
        {
            for (const char *list : {"ranks", "missing_ranks"})
                json_array_foreach(json_object_get(comm, list), k, rank)
                {
                    if (json_integer_value(json_object_get(rank, "pid")) == pid)
                        return comm;
                }
        }
        ADD_FAILURE() << "no communicator with process " << pid;
        return nullptr;
    }

  private:
    json_t *root_;
};

std::set<std::string> keys(json_t *object)
{
    std::set<std::string> all;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) all.insert(key);
    return all;
}

/* No integer is negative. */
void expect_naturals(json_t *value)
{
    size_t i;
    const char *key;
    json_t *element;
    if (json_is_integer(value)) {
        EXPECT_GE(json_integer_value(value), 0);
    }
    json_array_foreach(value, i, element) expect_naturals(element);
    json_object_foreach(value, key, element) expect_naturals(element);
}

json_int_t number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    EXPECT_TRUE(json_is_integer(value)) << key;
    return json_integer_value(value);
}

using Keys = std::set<std::string>;

void expect_rank(json_t *rank)
{
    EXPECT_EQ(keys(rank),
              (Keys{"rank", "host", "pid", "cuda_dev", "nvml_dev", "status", "collective_counts"}));
    EXPECT_EQ(keys(json_object_get(rank, "status")),
              (Keys{"init_state", "async_error", "finalize_called", "destroy_flag", "abort_flag"}));
    EXPECT_EQ(keys(json_object_get(rank, "collective_counts")),
              (Keys{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}));
}

/* NCCL's keys and what its clients rely on; `missing` of the ranks are missing. */
void expect_form(const Job &job, const Json &json, int missing)
{
    EXPECT_EQ(keys(json.root()),
              (Keys{"nccl_version", "cuda_runtime_version", "cuda_driver_version", "timestamp",
                    "communicators_count", "communicators", "ras", "ftccl"}));
    EXPECT_EQ(keys(json.at("ras")), (Keys{"collection_time_sec", "timeouts_count"}));
    json_t *comm = json.comm(job.pid()), *ranks = json_object_get(comm, "ranks"), *rank,
           *gone = json_object_get(comm, "missing_ranks");
    EXPECT_EQ(keys(comm), (Keys{"hash", "secondary_hash", "size", "ranks_count",
                                "missing_ranks_count", "ranks", "missing_ranks"}));
    EXPECT_EQ(number(comm, "size"), kRanks);
    EXPECT_EQ(number(comm, "ranks_count"), kRanks - missing);
    EXPECT_EQ(number(comm, "missing_ranks_count"), missing);
    EXPECT_EQ(json_array_size(ranks), static_cast<size_t>(kRanks - missing));
    EXPECT_EQ(json_array_size(gone), static_cast<size_t>(missing));
    size_t i;
    json_array_foreach(ranks, i, rank) expect_rank(rank);
    json_array_foreach(gone, i, rank)
    {
        EXPECT_EQ(keys(rank), (Keys{"rank", "host", "pid", "cuda_dev", "nvml_dev", "status"}));
        EXPECT_EQ(keys(json_object_get(rank, "status")), (Keys{"unresponsive", "considered_dead"}));
    }
    expect_naturals(json.root());
}

void expect_now(const Json &json)
{
    struct tm parts = {};
    const char *text = json_string_value(json.at("timestamp"));
    ASSERT_NE(text, nullptr);
    ASSERT_NE(strptime(text, "%Y-%m-%d %H:%M:%S", &parts), nullptr) << text;
    parts.tm_isdst = -1;
    EXPECT_LE(std::abs(difftime(mktime(&parts), time(nullptr))), 3) << text;
}

json_int_t reduced(const Job &job, const Json &json)
{
    json_t *rank = json_array_get(json_object_get(json.comm(job.pid()), "ranks"), 0);
    return number(json_object_get(rank, "collective_counts"), "AllReduce");
}

TEST(Ras, AnswersAsSglangAsks)
{
    Job job;
    std::string said;
    for (int tries = 0; said.empty() && tries < 20; tries++)
        said = ask(job.host, 1);
    Json first(said);
    expect_form(job, first, 0);
    expect_now(first);
    EXPECT_GE(reduced(job, first), 20);
    double end = proc::now() + 20;
    while (reduced(job, Json(ask(job.host))) <= reduced(job, first) && proc::now() < end) {}
    EXPECT_LT(proc::now(), end) << "the counts stand still at " << reduced(job, first);
}

/* An answer is what was found after the question, however often others ask. */
TEST(Ras, NoAnswerIsOld)
{
    Job job;
    json_int_t last = 0;
    for (int i = 0; i < 8; i++) {
        json_int_t now = reduced(job, Json(ask(job.host)));
        EXPECT_GT(now, last) << "answer " << i;
        last = now;
    }
}

TEST(Ras, AnswersAsRayAndMarinAsk)
{
    Job job;
    Said ray = ncclras(job.host, "-f json -t 8");
    EXPECT_EQ(ray.status, 0) << ray.text;
    expect_form(job, Json(ray.text), 0);
    Client marin(job.host);
    ASSERT_TRUE(marin.send("TIMEOUT 5\r\nset format JSON\nVERBOSE STATUS\n"));
    marin.end();
    std::string said = marin.hear(5);
    EXPECT_EQ(said.rfind("OK\nOK\n{", 0), 0u) << said;
    EXPECT_TRUE(marin.has_ended());
    expect_form(job, Json(said), 0);
}

/* A verdict blames rank 2, which hangs. */
bool blames(const Job &job, const Json &json)
{
    size_t i;
    json_t *verdict;
    json_array_foreach(json_object_get(json.at("ftccl"), "verdicts"), i, verdict)
    {
        json_t *culprit = json_array_get(json_object_get(verdict, "culprits"), 0);
        if (!strcmp(json_string_value(json_object_get(verdict, "kind")), "noncomm_hang") &&
            json_integer_value(json_object_get(culprit, "pid")) == job.at(2).pid() &&
            json_integer_value(json_object_get(culprit, "rank")) == 2)
            return true;
    }
    return false;
}

TEST(Ras, NamesTheRankOfAHang)
{
    Job job(2);
    double end = proc::now() + 30;
    std::string said = ask(job.host);
    expect_form(job, Json(said), 0);
    while (!blames(job, Json(said)) && proc::now() < end)
        said = ask(job.host);
    EXPECT_LT(proc::now(), end) << said;
}

/* The missing rank of an answer: its process, and whether it is dead. */
std::pair<json_int_t, bool> missing_of(const Job &job, const Json &json, size_t index)
{
    json_t *rank = json_array_get(json_object_get(json.comm(job.pid()), "missing_ranks"), index),
           *status = json_object_get(rank, "status");
    EXPECT_TRUE(json_is_true(json_object_get(status, "unresponsive")));
    return {number(rank, "pid"), json_is_true(json_object_get(status, "considered_dead"))};
}

/* One of them is the process that listens. */
TEST(Ras, AnyRankIsStopped)
{
    Job job;
    for (int r = 0; r < kRanks; r++) {
        job.at(r).signal(SIGSTOP);
        Said said = ncclras(job.host, "-f json -t 8");
        EXPECT_EQ(said.status, 0) << "rank " << r << ": " << said.text;
        Json json(said.text);
        expect_form(job, json, 1);
        EXPECT_EQ(missing_of(job, json, 0), std::make_pair(json_int_t{job.at(r).pid()}, false));
        expect_form(job, Json(ask(job.host)), 1); /* nobody is asked in vain any more */
        job.at(r).signal(SIGCONT);
    }
}

TEST(Ras, RanksAreKilledOneAfterTheOther)
{
    Job job;
    for (int r = 0; r < kRanks - 1; r++) {
        job.at(r).signal(SIGKILL);
        EXPECT_EQ(job.at(r).wait(), 128 + SIGKILL);
        Said said = ncclras(job.host, "-f json -t 8");
        EXPECT_EQ(said.status, 0) << "rank " << r << ": " << said.text;
        Json json(said.text);
        expect_form(job, json, r + 1);
        for (int k = 0; k <= r; k++)
            EXPECT_EQ(missing_of(job, json, static_cast<size_t>(k)),
                      std::make_pair(json_int_t{job.at(k).pid()}, true));
    }
}

#endif

/* ---- clients that ask for nothing good ------------------------------------------------------- */

bool has_answer(const std::string &said)
{
    return said.rfind("OK\n{", 0) == 0 && said.find("\"verdicts\":[") != std::string::npos;
}

TEST(Ras, AnswersWhatIsWrongWithASentence)
{
    Job job;
    for (const char *line :
         {"nonsense", "STATUS please", "SET FORMAT xml", "TIMEOUT -1", "TIMEOUT x", "MONITOR dogs",
          "CLIENT PROTOCOL", "STATUSES", "GET / HTTP/1.1"}) {
        Client client(job.host);
        ASSERT_TRUE(client.send(std::string(line) + "\nTIMEOUT 3\n")) << line;
        std::string said = client.hear(5, "OK\n");
        EXPECT_EQ(said.rfind("ERROR: ", 0), 0u) << line << ": " << said;
        EXPECT_NE(said.find("\nOK\n"), std::string::npos) << line << ": " << said;
    }
    Client client(job.host);
    ASSERT_TRUE(client.send(std::string(5000, 'x')));
    EXPECT_EQ(client.hear(5).rfind("ERROR: ", 0), 0u);
    EXPECT_TRUE(client.has_ended());
    Said text = ncclras(job.host, "--verbose");
    EXPECT_EQ(text.status, 0) << text.text;
    EXPECT_NE(text.text.find("4 ranks, 4 present, 0 missing"), std::string::npos) << text.text;
    EXPECT_EQ(ncclras(job.host, "-t 0").status, 2);
    EXPECT_EQ(ncclras(job.host, "-f xml").status, 2);
    EXPECT_EQ(ncclras(new_host(), "-t 1").status, 1);
}

TEST(Ras, Garbage)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? static_cast<unsigned>(strtoul(given, nullptr, 0))
                          : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/proc/ras_test --gtest_filter=*Garbage");
    std::mt19937_64 random(seed);
    static const char *const words[] = {
        "STATUS", "SET FORMAT ", "json",       "\n",   "MONITOR ",
        "all",    "TIMEOUT ",    "9999999999", "\r\n", "CLIENT PROTOCOL "};
    Job job;
    for (int round = 0; round < 300; round++) {
        Client client(job.host);
        std::string text;
        for (size_t n = random() % 200; n > 0; n--)
            if (random() % 2)
                text += words[random() % std::size(words)];
            else
                text += static_cast<char>(random());
        if (client.is_connected())
            client.send(text);
        if (round % 2)
            client.hear(0.01);
    }
    EXPECT_TRUE(has_answer(ask(job.host)));
    for (auto &child : job.rank)
        EXPECT_EQ(kill(child->pid(), 0), 0);
}

int descriptors_of(pid_t pid)
{
    return std::stoi(proc::output_of("ls /proc/" + std::to_string(pid) + "/fd | wc -l"));
}

/* Those who came first and say nothing, read nothing, or have begun a line. */
TEST(Ras, ClientsThatStay)
{
    Job job;
    int before = 0, during = 0;
    for (auto &child : job.rank)
        before += descriptors_of(child->pid());
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 60; i++) {
        clients.push_back(std::make_unique<Client>(job.host));
        clients.back()->send(i % 3 == 0   ? ""
                             : i % 3 == 1 ? "SET FOR"
                                          : "SET FORMAT json\nSTATUS\n");
    }
    double end = proc::now() + 20;
    while (!has_answer(ask(job.host)) && proc::now() < end) {}
    EXPECT_LT(proc::now(), end);
    for (auto &child : job.rank)
        during += descriptors_of(child->pid());
    EXPECT_LE(during, before + 20);
    clients.clear();
}

/* The other end of the connection in the kernel's table; 0 if it is not there. */
unsigned long inode_of_other_end(const Client &client)
{
    char line[512], wanted[16];
    unsigned long inode = 0;
    snprintf(wanted, sizeof wanted, ":%04X", static_cast<unsigned>(client.port()));
    FILE *table = fopen("/proc/net/tcp", "re");
    while (table && fgets(line, sizeof line, table)) {
        char remote[32];
        unsigned long found;
        if (sscanf(line, "%*s %*s %31s %*s %*s %*s %*s %*s %*s %lu", remote, &found) == 2 &&
            strstr(remote, wanted) && found)
            inode = found;
    }
    fclose(table);
    return inode;
}

/* Whether a process has the other end of the connection. */
bool serves(pid_t pid, const Client &client)
{
    unsigned long inode;
    double end = proc::now() + 5; /* the table leaves lines out if others connect meanwhile */
    while ((inode = inode_of_other_end(client)) == 0 && proc::now() < end) {}
    EXPECT_NE(inode, 0);
    std::string command = "ls -l /proc/" + std::to_string(pid) + "/fd | grep -qF 'socket:[" +
                          std::to_string(inode) + "]'";
    return system(command.c_str()) == 0;
}

TEST(Ras, MonitorsTellWhatHappens)
{
    Job job;
    Client client(job.host);
    ASSERT_TRUE(client.send("MONITOR lifecycle\n"));
    EXPECT_EQ(client.hear(5, "OK\n"), "OK\n");
    int victim = serves(job.at(3).pid(), client) ? 2 : 3;
    ftcclComm_t comm; /* the first look must be over: it sees this process come */
    std::string pid = std::to_string(job.at(victim).pid());
    std::string came = " pid " + std::to_string(getpid());
    double end = proc::now() + 20;
    std::string said;
    while (said.find("PEER_NEW") == std::string::npos && proc::now() < end) {
        ASSERT_OK(ftcclCommInitAll(&comm, 1, nullptr));
        said += client.hear(1.5, came);
        ASSERT_OK(ftcclCommDestroy(comm));
    }
    EXPECT_NE(said.find("PEER_NEW"), std::string::npos) << said;
    job.at(victim).signal(SIGSTOP);
    said = client.hear(20, " pid " + pid + ": its process is stopped");
    EXPECT_NE(said.find("PEER_UNRESPONSIVE"), std::string::npos) << said;
    job.at(victim).signal(SIGCONT);
    said = client.hear(20, " pid " + pid + ": its process goes on");
    EXPECT_NE(said.find("PEER_RECOVERED"), std::string::npos) << said;
    job.at(victim).signal(SIGKILL);
    said = client.hear(20, " pid " + pid + ": its process has ended");
    EXPECT_NE(said.find("PEER_DEAD"), std::string::npos) << said;
}

/* Seconds of processors that it has used. */
double used_by(pid_t pid)
{
    std::string path = "/proc/" + std::to_string(pid) + "/stat";
    unsigned long user = 0, system = 0;
    FILE *stat = fopen(path.c_str(), "re");
    EXPECT_EQ(fscanf(stat, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                     &user, &system),
              2);
    fclose(stat);
    return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/* Nobody asks: ranks that wait for one that does not come rest, whether or not one listens. */
TEST(Ras, CostsNothingWhenNotAsked)
{
    for (const char *at : {"", "nonsense"}) {
        Job job(0, *at ? std::map<std::string, std::string>{{"FTCCL_RAS_ADDR", at}}
                       : std::map<std::string, std::string>{});
        double end = proc::now() + 20, used = 1;
        while (used > 0.5 && proc::now() < end) { /* until what they did before is over */
            used = 0;
            for (auto &child : job.rank)
                used -= used_by(child->pid());
            usleep(1000000);
            for (auto &child : job.rank)
                used += used_by(child->pid());
        }
        EXPECT_LE(used, 0.5) << "seconds of a second, of four ranks; address '" << at << "'";
    }
}

TEST(Ras, CanBeSwitchedOff)
{
    Job off(-1, {{"NCCL_RAS_ENABLE", "0"}}), silent(-1, {{"FTCCL_TELEMETRY", "0"}});
    EXPECT_FALSE(Client(off.host).is_connected());
    EXPECT_FALSE(Client(silent.host).is_connected());
    Job wrong(-1, {{"FTCCL_RAS_ADDR", "nonsense"}}); /* a warning; the job runs */
}

/* A program that has the port and says nothing, or something else. */
TEST(Ras, ThePortIsTaken)
{
    for (const char *says : {"", "220 smtp\n"}) {
        std::string host = new_host();
        sockaddr_in at = {};
        at.sin_family = AF_INET;
        at.sin_port = htons(kPort);
        inet_pton(AF_INET, host.c_str(), &at.sin_addr);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&at), sizeof at), 0);
        ASSERT_EQ(listen(listener, 5), 0);
        Job job(-1, {{"FTCCL_RAS_ADDR", host + ":28028"}});
        pollfd fd = {listener, POLLIN, 0};
        EXPECT_EQ(poll(&fd, 1, 20000), 1) << "no rank asks who has the port";
        int stranger = accept(listener, nullptr, nullptr);
        EXPECT_EQ(write(stranger, says, strlen(says)), static_cast<ssize_t>(strlen(says)));
        usleep(1000000);
        for (auto &child : job.rank)
            EXPECT_EQ(kill(child->pid(), 0), 0);
        close(stranger);
        close(listener);
        double end = proc::now() + 40; /* it is free now */
        while (!has_answer(ask(host)) && proc::now() < end)
            usleep(100000);
        EXPECT_LT(proc::now(), end) << "nobody has taken the port";
    }
}

/* ---- communicators that come and go ---------------------------------------------------------- */

/* cycles ROUNDS polled|alone: in the second half there is always a communicator, so that answers
 * come. */
CHILD(cycles)
{
    int rounds = std::stoi(arguments[0]);
    proc::Holdings nothing;
    ftcclComm_t stays;
    auto round = [] {
        ftcclComm_t comm[2];
        return ftcclCommInitAll(comm, 2, nullptr) == ftcclSuccess &&
               ftcclCommDestroy(comm[0]) == ftcclSuccess &&
               ftcclCommDestroy(comm[1]) == ftcclSuccess;
    };
    for (int i = 0; i < 50; i++)
        if (!round())
            return 1;
    long kib = proc::resident_kib();
    printf("begun\n");
    double begun = proc::now();
    int done = rounds / 2;
    bool polled = arguments[1] == "polled";
    for (int i = 0; i < rounds / 2; i++)
        if (!round())
            return 1;
    if (ftcclCommInitAll(&stays, 1, nullptr) != ftcclSuccess)
        return 1;
    for (double end = proc::now() + 5; done < rounds || (polled && proc::now() < end); done++)
        if (!round())
            return 1;
    if (ftcclCommDestroy(stays) != ftcclSuccess)
        return 1;
    printf("%ld %f\n", proc::resident_kib() - kib, (proc::now() - begun) / done);
    std::string left = nothing.left();
    fprintf(stderr, "%s", left.c_str());
    return left.empty() ? 0 : 1;
}

struct Cycles {
    int answers = 0;
    long kib = -1;
    double seconds = -1;
};

Cycles run_cycles(int rounds, bool polled)
{
    Cycles seen;
    std::string host = new_host(), last;
    proc::Child child("cycles", {std::to_string(rounds), polled ? "polled" : "alone"},
                      {{"FTCCL_RAS_ADDR", host + ":28028"}, {"FTCCL_DEBUG", "WARN"}});
    EXPECT_EQ(child.line(60), "begun");
    std::atomic<bool> stop{false};
    std::thread asker([&] {
        while (polled && !stop)
            seen.answers += has_answer(ask(host));
    });
    last = child.line(1800);
    stop = true;
    asker.join();
    EXPECT_EQ(sscanf(last.c_str(), "%ld %lf", &seen.kib, &seen.seconds), 2) << last;
    EXPECT_EQ(child.wait(), 0) << "it still holds something";
    return seen;
}

TEST(Ras, PolledWhileCommunicatorsComeAndGo)
{
    const char *given = getenv("FT_RAS_ROUNDS");
    int rounds = given ? atoi(given) : 300;
    Cycles alone = run_cycles(std::min(rounds, 300), false), polled = run_cycles(rounds, true);
    printf("%d rounds: %d answers, %.0f us a round, %.0f us unasked, %ld KiB more\n", rounds,
           polled.answers, polled.seconds * 1e6, alone.seconds * 1e6, polled.kib);
    /* the last five seconds have one communicator all the time */
    EXPECT_GT(polled.answers, 1);
    if (!is_sanitized()) { /* it keeps what was freed */
        EXPECT_LT(polled.kib, 8192);
    }
}

} // namespace
