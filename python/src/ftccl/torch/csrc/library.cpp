#include "library.hpp"

#include <torch/csrc/utils/pybind.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

namespace ftccl_torch {

/* What programs that were written for other backends look for, before the library's sentence. */
static const char* words_of(ftcclResult_t result) {
  switch (result) {
  case ftcclTimeout:
    return "Timed out waiting";
  case ftcclRemoteError:
    return "Connection closed by peer";
  default:
    return ftcclGetErrorString(result);
  }
}

std::string sentence(ftcclResult_t result, ftcclComm_t comm) {
  std::string text = words_of(result);
  const char* why = ftcclGetLastError(comm);
  if (why && *why)
    text += std::string(": ") + why;
  return text;
}

void fail(const std::string& what) {
  C10_THROW_ERROR(DistBackendError, what);
}

void check(ftcclResult_t result, const std::string& what, ftcclComm_t comm) {
  if (result != ftcclSuccess)
    fail("ftccl: " + what + ": " + sentence(result, comm));
}

static bool is_main_thread() {
  static const std::thread::id main = [] {
    pybind11::gil_scoped_acquire gil;
    auto ident = pybind11::module_::import("threading")
                     .attr("main_thread")()
                     .attr("ident")
                     .cast<unsigned long>();
    return std::thread::id(static_cast<pthread_t>(ident));
  }();
  return std::this_thread::get_id() == main;
}

void check_signals() {
  if (!Py_IsInitialized() || !is_main_thread())
    return;
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0)
    throw pybind11::error_already_set();
}

static std::thread::id exiter; /* written before exiting */
static std::atomic<bool> exiting{false};

void note_exit() {
  exiter = std::this_thread::get_id();
  exiting = true;
}

bool is_exiting() {
  return exiting;
}

void stay_if_exiting() {
  while (exiting && std::this_thread::get_id() != exiter)
    std::this_thread::sleep_for(std::chrono::hours(1));
}

static bool forked;

bool is_fork() {
  return forked;
}

void watch_forks() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  TORCH_CHECK(watched == 0, "ftccl: no memory to watch for forks");
}

void check_fork() {
  if (forked)
    fail("ftccl: this process is a child of fork; its groups belong to the parent");
}

/* ---- streams --------------------------------------------------------------------------------- */

namespace {

/* Never destroyed: threads may still give streams back while the process ends. */
struct Pool {
  std::mutex mutex;
  std::vector<ftcclStream_t> free;
};

Pool& pool() {
  static Pool* pool = new Pool;
  return *pool;
}

constexpr size_t kPooled = 64;

} // namespace

Stream::Stream() {
  std::lock_guard<std::mutex> lock(pool().mutex);
  if (pool().free.empty()) {
    check(ftcclStreamCreate(&handle_), "making a stream");
    return;
  }
  handle_ = pool().free.back();
  pool().free.pop_back();
}

/* Only a stream on which nothing is left is used again: a stray error would be another's. */
Stream::~Stream() {
  if (is_fork())
    return;
  if (ftcclStreamQuery(handle_) == ftcclSuccess) {
    std::lock_guard<std::mutex> lock(pool().mutex);
    if (pool().free.size() < kPooled) {
      pool().free.push_back(handle_);
      return;
    }
  }
  ftcclStreamDestroy(handle_);
}

ftcclResult_t Stream::wait(Milliseconds time) const {
  return ftcclStreamWait(handle_, static_cast<int>(std::max<int64_t>(time.count(), 0)));
}

/* ---- communicators --------------------------------------------------------------------------- */

Bound Bound::after(Milliseconds time, const std::atomic<bool>* aborted) {
  return {Clock::now() + time, aborted};
}

static int64_t milliseconds_of(Milliseconds time) {
  return std::clamp<int64_t>(time.count(), 1, 86400000);
}

/* Groups of torch have 30 minutes by default. A process that is stopped is found sooner. */
constexpr int64_t kSilence = 3000;

/* The structs that a call takes its settings from. */
struct Config {
  ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
  ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;

  Config(const Settings& settings, const Bound& bound) {
    auto left = std::chrono::duration_cast<Milliseconds>(bound.end - Clock::now());
    options.opTimeoutMs = milliseconds_of(settings.timeout);
    options.initTimeoutMs = milliseconds_of(left);
    options.concurrentP2p = settings.concurrent;
    options.rankKey = settings.rank_key;
    if (!std::getenv("FTCCL_SILENCE_MS"))
      options.silenceMs = kSilence;
    config.blocking = 0;
    config.options = &options;
  }
  Config(const Config&) = delete;
};

/* Waits until the calls on comm that run in the background have ended, and looks at signals and
 * aborts meanwhile. */
static ftcclResult_t settle(ftcclComm_t comm, const char* what, const Bound& bound) {
  auto pause = std::chrono::microseconds(20);
  for (;;) {
    ftcclResult_t result = ftcclSuccess;
    check(ftcclCommGetAsyncError(comm, &result), what);
    if (result != ftcclInProgress)
      return result;
    if (bound.aborted && *bound.aborted)
      fail(std::string("ftccl: ") + what + ": the group was aborted meanwhile");
    check_signals();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, std::chrono::microseconds(1000));
  }
}

Communicator::Pointer Communicator::make_first(
    const char* what, const Settings& settings, const Bound& bound, const Make& make) {
  Config config(settings, bound);
  ftcclComm_t comm = nullptr;
  ftcclResult_t result = make(&comm, &config.config);
  if (result != ftcclInProgress)
    check(result, what);
  auto made = std::make_shared<Communicator>(comm);
  check(settle(comm, what, bound), what, comm);
  return made;
}

/* The library writes the child when it is made, in a thread of its own: the place outlives the
 * call. A parent may have failed, so that only the child tells whether the call succeeded. */
Communicator::Pointer Communicator::make_child(
    const char* what, const Settings& settings, const Bound& bound, const Make& make) {
  Config config(settings, bound);
  ftcclComm_t parent = borrow();
  auto child = std::make_unique<ftcclComm_t>(nullptr);
  ftcclResult_t result = make(child.get(), &config.config);
  if (result != ftcclInProgress)
    check(result, what, parent);
  try {
    settle(parent, what, bound);
  } catch (...) {
    abort(); /* returns when the call has ended */
    if (*child)
      ftcclCommAbort(*child);
    throw;
  }
  if (!*child)
    fail(std::string("ftccl: ") + what + ": " + ftcclGetLastError(parent));
  return std::make_shared<Communicator>(*child);
}

Communicator::Pointer Communicator::init(
    int size, const ftcclUniqueId& id, int rank, const Settings& settings, const Bound& bound) {
  return make_first("init", settings, bound, [&](ftcclComm_t* comm, ftcclConfig_t* config) {
    return ftcclCommInitRankConfig(comm, size, id, rank, config);
  });
}

Communicator::Pointer Communicator::join(
    int size, const ftcclUniqueId& id, int rank, const Settings& settings, const Bound& bound) {
  return make_first("joining", settings, bound, [&](ftcclComm_t* comm, ftcclConfig_t* config) {
    return ftcclCommGrow(nullptr, size, &id, rank, comm, config);
  });
}

Communicator::Pointer Communicator::split(const Settings& settings, const Bound& bound) {
  return make_child("split", settings, bound, [&](ftcclComm_t* comm, ftcclConfig_t* config) {
    return ftcclCommSplit(comm_, 0, rank(), comm, config);
  });
}

Communicator::Pointer Communicator::shrink(
    std::vector<int> exclude, const Settings& settings, const Bound& bound) {
  return make_child("shrink", settings, bound, [&](ftcclComm_t* comm, ftcclConfig_t* config) {
    return ftcclCommShrink(comm_, exclude.data(), static_cast<int>(exclude.size()), comm, config,
                           FTCCL_SHRINK_DEFAULT);
  });
}

Communicator::Pointer Communicator::grow(
    int size, const ftcclUniqueId* id, const Settings& settings, const Bound& bound) {
  return make_child("grow", settings, bound, [&](ftcclComm_t* comm, ftcclConfig_t* config) {
    return ftcclCommGrow(comm_, size, id, -1, comm, config);
  });
}

ftcclUniqueId Communicator::grow_id() {
  ftcclUniqueId id;
  check(ftcclCommGetUniqueId(borrow(), &id), "making an id to grow", comm_);
  return id;
}

Communicator::~Communicator() {
  abort();
}

ftcclComm_t Communicator::borrow() const {
  if (ended_)
    fail("ftccl: the group was aborted or destroyed");
  return comm_;
}

int Communicator::size() {
  int size = 0;
  check(ftcclCommCount(borrow(), &size), "asking for the size", comm_);
  return size;
}

int Communicator::rank() {
  int rank = 0;
  check(ftcclCommUserRank(borrow(), &rank), "asking for the rank", comm_);
  return rank;
}

void Communicator::enqueue(
    const std::function<std::string()>& what,
    const std::function<ftcclResult_t(ftcclComm_t)>& f) {
  std::lock_guard<std::timed_mutex> lock(mutex_);
  ftcclResult_t result = f(borrow());
  if (result != ftcclSuccess && result != ftcclInProgress)
    check(result, what(), comm_);
}

ftcclResult_t Communicator::error() {
  std::lock_guard<std::timed_mutex> lock(mutex_);
  ftcclResult_t result = ftcclSuccess;
  if (!ended_)
    ftcclCommGetAsyncError(comm_, &result);
  return result == ftcclInProgress ? ftcclSuccess : result;
}

void Communicator::revoke() {
  std::unique_lock<std::timed_mutex> lock(mutex_, std::chrono::milliseconds(100));
  if (!ended_)
    ftcclCommRevoke(comm_, FTCCL_REVOKE_DEFAULT);
}

/* A caller that is inside for longer than the pause waits for room in a full queue: abort may be
 * called beside it, and frees it. */
void Communicator::abort() {
  if (is_fork())
    return;
  std::unique_lock<std::timed_mutex> lock(mutex_, std::chrono::milliseconds(100));
  if (!ended_.exchange(true))
    ftcclCommAbort(comm_);
}

void Communicator::destroy() {
  std::unique_lock<std::timed_mutex> lock(mutex_, std::chrono::milliseconds(100));
  if (!ended_.exchange(true))
    check(ftcclCommDestroy(comm_), "destroy");
}

} // namespace ftccl_torch
