/*
 * The library as the backend uses it: communicators with owners, streams from a pool, results as
 * exceptions. Private to the backend.
 */
#pragma once

#include <ftccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ftccl_torch {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/* "remote error: rank 0 lost rank 1 ...": what the library says of this result in this thread. */
std::string sentence(ftcclResult_t result, ftcclComm_t comm = nullptr);

/* Throws c10::DistBackendError, which is torch.distributed.DistBackendError in Python. */
[[noreturn]] void fail(const std::string& what);
void check(ftcclResult_t result, const std::string& what, ftcclComm_t comm = nullptr);

/* Throws KeyboardInterrupt, or what another handler raises, if the calling thread is Python's main
 * thread and a signal came. */
void check_signals();

/* True in a child of fork. The threads that make operations progress are the parent's, and locks
 * may be theirs: nothing of the parent's is used there, nor freed. */
bool is_fork();
void watch_forks(); /* before the first communicator */
/* Throws with a sentence in a child of fork. */
void check_fork();

/* Python calls note_exit() when the interpreter exits. Its daemon threads must not go back into it
 * from then on: they would be unwound through torch's destructors, which ends the process with
 * SIGABRT. stay_if_exiting() does not return to them. */
void note_exit();
bool is_exiting();
void stay_if_exiting();

/* Host streams are made once and used again: each operation has one of its own while it runs, so
 * that its error is known to be its own. Any thread. */
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ftcclStream_t handle() const { return handle_; }
  /* ftcclInProgress: not done after `time`. Makes the operation progress meanwhile. */
  ftcclResult_t wait(Milliseconds time) const;
  ftcclResult_t query() const { return ftcclStreamQuery(handle_); }

 private:
  ftcclStream_t handle_;
};

/* A time at which the caller gives up, and who else can make it do so. */
struct Bound {
  Clock::time_point end;
  const std::atomic<bool>* aborted = nullptr;
  static Bound after(Milliseconds time, const std::atomic<bool>* aborted = nullptr);
};

struct Settings {
  Milliseconds timeout; /* of operations */
  bool concurrent = false;
  int64_t rank_key = FTCCL_OPTION_UNDEF;
};

/* Owns a communicator. Any thread may call abort() at any time; calls that begin later throw. */
class Communicator {
 public:
  using Pointer = std::shared_ptr<Communicator>;

  /* Blocks until the communicator is made, the bound passes, or it fails: then it throws. */
  static Pointer init(int size, const ftcclUniqueId& id, int rank, const Settings&, const Bound&);
  static Pointer join(int size, const ftcclUniqueId& id, int rank, const Settings&, const Bound&);
  Pointer split(const Settings&, const Bound&);
  Pointer shrink(std::vector<int> exclude, const Settings&, const Bound&);
  Pointer grow(int size, const ftcclUniqueId* id, const Settings&, const Bound&);
  ftcclUniqueId grow_id();

  explicit Communicator(ftcclComm_t comm) : comm_(comm) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int size();
  int rank();
  /* Runs f(comm), which enqueues; throws if it fails or the communicator was aborted. what() is the
   * operation in the exception. */
  void enqueue(const std::function<std::string()>& what,
               const std::function<ftcclResult_t(ftcclComm_t)>& f);
  ftcclResult_t error(); /* ftcclSuccess, also after abort() */
  void revoke();
  void abort();
  void destroy(); /* after all operations; peers are told */

 private:
  using Make = std::function<ftcclResult_t(ftcclComm_t*, ftcclConfig_t*)>;
  static Pointer make_first(const char* what, const Settings&, const Bound&, const Make&);
  Pointer make_child(const char* what, const Settings&, const Bound&, const Make&);
  ftcclComm_t borrow() const; /* throws if it has ended */

  std::timed_mutex mutex_; /* held by calls that enqueue */
  std::atomic<bool> ended_{false};
  ftcclComm_t comm_;
};

} // namespace ftccl_torch
