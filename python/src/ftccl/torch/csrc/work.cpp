#include "work.hpp"

#include <torch/csrc/utils/pybind.h>

#include <c10/util/thread_name.h>

#include <algorithm>

namespace ftccl_torch {

namespace {
/* How long a wait lasts before it looks at signals and time limits. */
constexpr Milliseconds kSlice{50};
} // namespace

std::string Title::text() const {
  return "rank " + std::to_string(rank) + ": " + call + ", operation " +
         std::to_string(sequence) + " of group " + (group.empty() ? "?" : group);
}

/* What the profiler calls an operation; null: it is not recorded. */
static const char* profiled_name(c10d::OpType type) {
  switch (type) {
  case c10d::OpType::BROADCAST:
    return "ftccl:broadcast";
  case c10d::OpType::ALLREDUCE:
  case c10d::OpType::ALLREDUCE_COALESCED:
    return "ftccl:all_reduce";
  case c10d::OpType::REDUCE:
    return "ftccl:reduce";
  case c10d::OpType::ALLGATHER:
  case c10d::OpType::ALLGATHER_COALESCED:
    return "ftccl:all_gather";
  case c10d::OpType::_ALLGATHER_BASE:
    return "ftccl:all_gather_single";
  case c10d::OpType::GATHER:
    return "ftccl:gather";
  case c10d::OpType::SCATTER:
    return "ftccl:scatter";
  case c10d::OpType::REDUCE_SCATTER:
    return "ftccl:reduce_scatter";
  case c10d::OpType::_REDUCE_SCATTER_BASE:
  case c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED:
    return "ftccl:reduce_scatter_single";
  case c10d::OpType::ALLTOALL:
    return "ftccl:all_to_all";
  case c10d::OpType::ALLTOALL_BASE:
    return "ftccl:all_to_all_single";
  case c10d::OpType::SEND:
    return "ftccl:send";
  case c10d::OpType::RECV:
    return "ftccl:recv";
  case c10d::OpType::RECVANYSOURCE:
    return "ftccl:recvAnySource";
  case c10d::OpType::BARRIER:
    return "ftccl:barrier";
  default:
    return nullptr;
  }
}

Work::Work(Title title, c10d::OpType type, std::vector<at::Tensor> inputs,
           std::vector<at::Tensor> results, Limit limit)
    : c10d::Work(title.rank, type, profiled_name(type),
                 std::optional<std::vector<at::Tensor>>(std::move(inputs))),
      title_(std::move(title)), results_(std::move(results)), limit_(limit),
      created_(Clock::now()) {}

bool Work::isCompleted() {
  check_fork();
  if (!is_done())
    drive(Milliseconds(0));
  return is_done();
}

bool Work::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr Work::exception() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

bool Work::wait(Milliseconds timeout) {
  check_fork();
  struct AtEnd {
    ~AtEnd() {
      stay_if_exiting();
    }
  } at_end;
  auto end = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  bool own = limit_.own && created_ + limit_.time < end;
  if (own)
    end = created_ + limit_.time;
  while (!is_done()) {
    Milliseconds slice = kSlice;
    if (end != Clock::time_point::max())
      slice = std::min(slice, std::chrono::ceil<Milliseconds>(end - Clock::now()));
    drive(std::max(slice, Milliseconds(0)));
    if (is_done())
      break;
    if (Clock::now() >= end)
      fail(title_.text() + ": Timed out waiting " +
           std::to_string((own ? limit_.time : timeout).count()) +
           "ms; it is not done, and goes on");
    check_signals();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (exception_)
    std::rethrow_exception(exception_);
  return true;
}

void Work::synchronize() {
  wait();
}

void Work::abort() {
  fail("ftccl: one operation cannot be aborted; abort the group");
}

std::vector<at::Tensor> Work::result() {
  return results_;
}

uint64_t Work::getSequencenumber() const {
  return title_.sequence;
}

std::chrono::milliseconds Work::getTimeout() const {
  return limit_.time;
}

static void settle(c10::ivalue::Future& future, std::exception_ptr exception,
                   const std::vector<at::Tensor>& results) {
  if (exception)
    future.setError(exception);
  else
    future.markCompleted(c10::IValue(results));
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  check_fork();
  std::unique_lock<std::mutex> lock(mutex_);
  if (future_)
    return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()));
  auto future = future_;
  if (completed_) {
    lock.unlock();
    settle(*future, exception_, results_);
  } else {
    lock.unlock();
    Watcher::get().add(WorkPointer::unsafe_reclaim_from_nonowning(this));
  }
  return future;
}

void Work::complete(const std::string& what) {
  std::exception_ptr exception;
  if (!what.empty())
    exception = std::make_exception_ptr(
        c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                              title_.text() + " failed: " + what));
  complete(exception);
}

void Work::complete(std::exception_ptr exception) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (completed_)
    return;
  completed_ = true;
  exception_ = exception;
  done_.store(true, std::memory_order_release);
  auto future = future_;
  auto recorded = std::move(recordFunctionEndCallback_);
  lock.unlock();
  if (recorded)
    recorded();
  cv_.notify_all();
  if (future && !is_exiting())
    settle(*future, exception, results_);
}

/* ---- on a stream ----------------------------------------------------------------------------- */

void StreamWork::drive(Milliseconds slice) {
  std::unique_lock<std::mutex> driver(driver_, std::try_to_lock);
  if (!driver) {
    std::unique_lock<std::mutex> lock(mutex_);
    cv_.wait_for(lock, slice, [&] { return completed_; });
    return;
  }
  if (is_done())
    return;
  ftcclResult_t result = slice.count() > 0 ? stream.wait(slice) : stream.query();
  if (result == ftcclInProgress)
    return;
  if (result != ftcclSuccess) {
    complete(sentence(result));
    return;
  }
  try {
    if (deliver)
      deliver();
  } catch (...) {
    complete(std::current_exception());
    return;
  }
  keeps.clear();
  complete(std::string());
}

/* ---- several --------------------------------------------------------------------------------- */

static std::vector<at::Tensor> results_of(const std::vector<WorkPointer>& works) {
  std::vector<at::Tensor> all;
  for (const auto& work : works)
    for (const auto& tensor : work->result())
      all.push_back(tensor);
  return all;
}

WorkList::WorkList(Title title, c10d::OpType type, std::vector<WorkPointer> works,
                   Limit limit)
    : Work(std::move(title), type, {}, results_of(works), limit), works_(std::move(works)) {}

void WorkList::drive(Milliseconds slice) {
  auto end = Clock::now() + slice;
  std::exception_ptr first;
  for (const auto& work : works_) {
    if (!work->is_done()) {
      auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
      work->drive(std::max(left, Milliseconds(0)));
    }
    if (!work->is_done())
      return;
    if (!first)
      first = work->exception();
  }
  complete(first);
}

/* ---- futures --------------------------------------------------------------------------------- */

Watcher& Watcher::get() {
  /* Not destroyed at the end of the process: works may still be under way then. */
  static Watcher* watcher = new Watcher;
  return *watcher;
}

Watcher::~Watcher() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

void Watcher::add(WorkPointer work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable())
    thread_ = std::thread([this] { run(); });
  works_.push_back(std::move(work));
  changed_.notify_all();
}

/* The first is driven, which nearly always is the next to end; the others are looked at. Works end
 * without the lock: the end of a tensor may wait for Python, whose holder may wait in add(). */
void Watcher::run() {
  c10::setThreadName("ftccl_futures");
  for (;;) {
    std::vector<WorkPointer> works;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || !works_.empty(); });
    if (stop_)
      return;
    works.assign(works_.begin(), works_.end());
    lock.unlock();
    works.front()->drive(Milliseconds(works.size() > 1 ? 1 : 20));
    for (const auto& work : works)
      work->isCompleted();
    lock.lock();
    works_.erase(std::remove_if(works_.begin(), works_.end(),
                                [](const WorkPointer& work) { return work->is_done(); }),
                 works_.end());
  }
}

} // namespace ftccl_torch
