/*
 * Works: operations of the backend under way. Any thread may wait for one, also several at a time.
 */
#pragma once

#include "library.hpp"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>

#include <condition_variable>
#include <deque>
#include <thread>

/* Virtual functions that torch has since 2.14. */
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
#define FTCCL_SINCE_2_14 override
#else
#define FTCCL_SINCE_2_14
#endif

namespace ftccl_torch {

/* What a failure says of the operation: "rank 1: all_reduce, operation 7 of group default_pg". */
struct Title {
  std::string group;
  const char* call;
  int rank;
  uint64_t sequence;
  std::string text() const;
};

/* The time limit of an operation. own: the caller gave it for this one, and wait() keeps it; else
 * it is the group's, which the library keeps. */
struct Limit {
  Milliseconds time;
  bool own = false;
};

class Work : public c10d::Work {
 public:
  /* results: the tensors that hold what comes out; all that the operation reads or writes is kept
   * by `keeps`. */
  Work(Title, c10d::OpType, std::vector<at::Tensor> inputs, std::vector<at::Tensor> results,
       Limit);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /* Throws if the operation failed, if the time is over, or if a signal's handler raises. */
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  std::chrono::milliseconds getTimeout() const FTCCL_SINCE_2_14;

  std::string text() const { return title_.text(); }
  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /* Makes the operation progress, at most for `slice`; several threads may do so. */
  virtual void drive(Milliseconds slice) = 0;

 protected:
  /* Once. what: empty if it succeeded. */
  void complete(const std::string& what);
  void complete(std::exception_ptr exception);

  const Title title_;
  std::vector<at::Tensor> results_;

 private:
  const Limit limit_;
  const Clock::time_point created_;
  std::atomic<bool> done_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_; /* under mutex_ */
};

using WorkPointer = c10::intrusive_ptr<Work>;

/* An operation that was enqueued on a stream of its own. */
class StreamWork : public Work {
 public:
  using Work::Work;
  void drive(Milliseconds slice) override;

  Stream stream;
  std::vector<at::Tensor> keeps;
  std::function<void()> deliver; /* copies results to where they belong, if they came elsewhere */

 private:
  std::mutex driver_; /* the stream tells an error once: to one thread */
};

/* Several works as one, for coalesced calls. */
class WorkList : public Work {
 public:
  WorkList(Title, c10d::OpType, std::vector<WorkPointer>, Limit);
  void drive(Milliseconds slice) override;

 private:
  std::vector<WorkPointer> works_;
};

/* A thread that drives works for which nobody may be waiting: those with a future. */
class Watcher {
 public:
  ~Watcher();
  static Watcher& get(); /* the process's */
  void add(WorkPointer);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WorkPointer> works_;
  std::thread thread_;
  bool stop_ = false;
};

} // namespace ftccl_torch
