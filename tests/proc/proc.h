/*
 * What the tests over the public header share: ranks as threads of this process, ranks as processes
 * that can be killed, and counts of what a process holds. A child is this same program, started
 * again with --child=NAME.
 */
#ifndef FT_TESTS_PROC_H
#define FT_TESTS_PROC_H

#include "tests/proc/shm.h"

#include <ftccl.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <vector>

#define EXPECT_OK(call) EXPECT_PRED_FORMAT1(proc::is_ok, call)
#define ASSERT_OK(call) ASSERT_PRED_FORMAT1(proc::is_ok, call)
/* The call is refused as the caller's mistake, with a sentence. */
#define EXPECT_CALLER(call) EXPECT_PRED_FORMAT1(proc::is_caller, call)

namespace proc
{

/* Memory from ftcclMemAlloc for vectors. If they are long, other ranks may read them in place. */
template <class T> struct Lendable {
    using value_type = T;
    Lendable() = default;
    template <class U> explicit Lendable(const Lendable<U> &)
    {
    }
    T *allocate(size_t n)
    {
        void *p = nullptr;
        if (ftcclMemAlloc(&p, n * sizeof(T)) != ftcclSuccess)
            throw std::bad_alloc();
        return static_cast<T *>(p);
    }
    void deallocate(T *p, size_t)
    {
        EXPECT_EQ(ftcclMemFree(p), ftcclSuccess);
    }
    bool operator==(const Lendable &) const
    {
        return true;
    }
    bool operator!=(const Lendable &) const
    {
        return false;
    }
};

testing::AssertionResult is_ok(const char *text, ftcclResult_t result);
testing::AssertionResult is_caller(const char *text, ftcclResult_t result);

double now(); /* seconds, monotonic */

/* Runs a shell command until it ends. Returns what it said, errors too. *status, if not NULL: as it
 * exited, or 128. */
std::string output_of(const std::string &command, int *status = nullptr);

std::string text_of(const std::string &path); /* empty if there is no such file */

/* Of a rank whose links are all over this transport. net: over the plugin of the tests. */
std::map<std::string, std::string> over(const std::string &transport);
/* The networks of this build: tcp, net, and ofi if there is libfabric. */
std::vector<std::string> networks();

/* Runs f(0) ... f(n - 1) in n threads and waits for all. */
void in_threads(int n, const std::function<void(int)> &f);

/* A barrier for n threads, any number of times, without the library. A collective ends on each rank
 * at its own time, so a rank that aborts or leaves after it would fail what a slower rank still
 * runs. */
class Meeting
{
  public:
    explicit Meeting(int n) : size_(n)
    {
    }
    void wait(); /* after a minute, fails the test: a thread did not come */

  private:
    std::mutex mutex_;
    std::condition_variable all_;
    int size_, here_ = 0, times_ = 0;
};

/* One communicator of n ranks in this process, each with a stream. The destructor destroys it. */
struct World {
    std::vector<ftcclComm_t> comm;
    std::vector<ftcclStream_t> stream;
    explicit World(int n); /* by ftcclCommInitAll() */
    /* By ftcclCommInitRankConfig() in threads. */
    World(int n, const std::function<void(ftcclConfig_t &)> &configure);
    ~World();
    World(const World &) = delete;
    int size() const
    {
        return static_cast<int>(comm.size());
    }
    void each(const std::function<void(int)> &f) const
    {
        in_threads(size(), f);
    }
    /* Every rank reduces once. False: a rank did not get the right sum. */
    bool works() const;
};

/* Waits for the stream, and returns its first error. */
ftcclResult_t finish(ftcclStream_t stream);

std::string hex(const ftcclUniqueId &id);
ftcclUniqueId unhex(const std::string &text);

/* Another process of this program, which runs the function that CHILD(name) defines. The destructor
 * kills it. */
class Child
{
  public:
    Child(const std::string &name, const std::vector<std::string> &arguments,
          const std::map<std::string, std::string> &env = {});
    ~Child();
    Child(const Child &) = delete;
    /* The next line of its stdout; "": at its end, or after the time. */
    std::string line(double seconds = 30);
    void tell(const std::string &text) const; /* writes a line to its stdin */
    void signal(int number) const;            /* SIGSTOP: it has stopped at the return */
    /* Its exit status, 128 + signal, or -1 after the time. */
    int wait(double seconds = 30);
    pid_t pid() const
    {
        return pid_;
    }

  private:
    pid_t pid_ = -1;
    int out_ = -1, in_ = -1, status_ = -1;
    std::string buffer_;
};

using ChildMain = std::function<int(const std::vector<std::string> &)>;
struct ChildEntry {
    ChildEntry(const char *name, ChildMain f);
};
#define CHILD(name)                                                        \
    static int child_##name(const std::vector<std::string> &arguments);    \
    static const proc::ChildEntry child_entry_##name(#name, child_##name); \
    static int child_##name([[maybe_unused]] const std::vector<std::string> &arguments)

/* What this process holds. */
int descriptors();
std::string descriptor_names();
int threads();
long resident_kib();

/* What this process held when it was made, and whether it holds no more now: once what other
 * threads close is closed. */
struct Holdings {
    int descriptors = proc::descriptors(), threads = proc::threads();
    size_t shm = shm_of(getpid()).size();
    bool more() const;
    std::string left() const; /* waits; "": nothing */
    void expect_no_more() const
    {
        EXPECT_EQ(left(), "");
    }
};

/* Random numbers of the running test. */
struct Dice {
    std::mt19937_64 random;
    uint64_t operator()(uint64_t below)
    {
        return random() % below;
    }
};
/* From FT_SEED, or else another seed each time. Prints how to replay it. */
Dice dice();

} // namespace proc

#endif
