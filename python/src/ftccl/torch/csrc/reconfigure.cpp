/*
 * Reconfigure: the group of this backend becomes the processes of a list of handles. Survivors of
 * the largest old group shrink its communicator to themselves by agreement, which keeps their
 * links. Then it grows by all others, to whom the leader gives the id of the grow over a small
 * communicator of its own. Without any old group a communicator is made.
 */
#include "backend.hpp"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <algorithm>
#include <cstring>

namespace ftccl_torch {

namespace {

struct Word { /* what the leader tells joiners */
  int64_t uuid;
  ftcclUniqueId grow;
};

void run(Communicator& comm, const Bound& bound,
         const std::function<ftcclResult_t(ftcclComm_t, ftcclStream_t)>& f) {
  Stream stream;
  comm.enqueue([] { return "reconfigure"; }, [&](ftcclComm_t c) { return f(c, stream.handle()); });
  for (ftcclResult_t result = ftcclInProgress; result == ftcclInProgress;) {
    result = stream.wait(Milliseconds(20));
    if (result != ftcclInProgress)
      check(result, "reconfigure");
    else if (Clock::now() > bound.end || (bound.aborted && *bound.aborted)) {
      comm.abort();
      while (stream.wait(Milliseconds(20)) == ftcclInProgress) {
      }
      fail("ftccl: reconfigure: aborted, or the time was over");
    }
    check_signals();
  }
}

/* The leader and the joiners meet at the leader's id. */
Word pass_word(const Plan& plan, int me, Word word, const Settings& settings, const Bound& bound) {
  int size = 1 + static_cast<int>(plan.joiners.size()), rank = 0;
  for (size_t i = 0; i < plan.joiners.size(); i++)
    if (plan.joiners[i] == me)
      rank = static_cast<int>(i) + 1;
  auto courier = Communicator::init(
      size, plan.members[static_cast<size_t>(plan.leader)].id, rank, settings, bound);
  run(*courier, bound, [&](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclBroadcast(&word, &word, sizeof word, ftcclUint8, 0, comm, stream);
  });
  courier->destroy();
  return word;
}

} // namespace

/* Calls of the users of a group that all give the same uuid and handles, and stand where the plan
 * has them. */
void Backend::check_members(Communicator& comm, const Plan& plan, int64_t uuid,
                            const Bound& bound) {
  struct Entry {
    int64_t uuid;
    char process[16];
  };
  size_t size = plan.members.size();
  std::vector<Entry> all(size);
  auto me = static_cast<size_t>(comm.rank());
  if (static_cast<size_t>(comm.size()) != size)
    fail("ftccl: reconfigure: " + std::to_string(comm.size()) + " of " + std::to_string(size) +
         " processes are alive and came");
  all[me].uuid = uuid;
  std::memcpy(all[me].process, process_.data(), sizeof all[me].process);
  run(comm, bound, [&](ftcclComm_t c, ftcclStream_t stream) {
    return ftcclAllGather(&all[me], all.data(), sizeof(Entry), ftcclUint8, c, stream);
  });
  for (size_t r = 0; r < size; r++)
    if (all[r].uuid != uuid || plan.members[r].process.compare(0, 16, all[r].process, 16) != 0)
      fail("ftccl: reconfigure: rank " + std::to_string(r) +
           " was called with another uuid or other handles");
}

/* The survivors of the base, in the order of the plan. Null: others of the base want another group
 * at the same time, and nothing has changed. */
Communicator::Pointer Backend::shrink_base(const Plan& plan, const Settings& settings,
                                           const Bound& bound) {
  std::vector<int> exclude;
  for (size_t r = 0; r < members_.size(); r++) {
    bool stays = std::any_of(plan.old.begin(), plan.old.end(), [&](int k) {
      return plan.members[static_cast<size_t>(k)].process == members_[r];
    });
    if (!stays)
      exclude.push_back(static_cast<int>(r));
  }
  try {
    return communicator_->shrink(exclude, settings, bound);
  } catch (const c10::Error& error) {
    if (plan.joiners.empty() && !aborted_ && Clock::now() < bound.end)
      return nullptr;
    throw;
  }
}

Communicator::Pointer Backend::assemble(const Plan& plan, int me, int64_t uuid, Settings settings,
                                        const Bound& bound) {
  auto size = static_cast<int>(plan.members.size());
  const ftcclUniqueId& id = plan.members[static_cast<size_t>(plan.leader)].id;
  settings.rank_key = me;
  id_used_ = plan.base.empty() || !plan.joiners.empty();
  bool old = std::find(plan.old.begin(), plan.old.end(), me) != plan.old.end();
  if (plan.base.empty())
    return Communicator::init(size, id, me, settings, bound);
  if (!old) {
    Word word = pass_word(plan, me, Word{}, settings, bound);
    if (word.uuid != uuid)
      fail("ftccl: reconfigure: the leader was called with another uuid");
    auto place = std::find(plan.joiners.begin(), plan.joiners.end(), me) - plan.joiners.begin();
    return Communicator::join(size, word.grow, static_cast<int>(plan.old.size() + place),
                              settings, bound);
  }
  auto survivors = shrink_base(plan, settings, bound);
  id_used_ |= !survivors;
  if (!survivors)
    return Communicator::init(size, id, me, settings, bound);
  if (static_cast<size_t>(survivors->size()) != plan.old.size())
    fail("ftccl: reconfigure: only " + std::to_string(survivors->size()) + " of " +
         std::to_string(plan.old.size()) + " members of the old group are alive and came");
  if (plan.joiners.empty())
    return survivors;
  if (me != plan.leader)
    return survivors->grow(size, nullptr, settings, bound);
  Word word{uuid, survivors->grow_id()};
  pass_word(plan, me, word, settings, bound);
  return survivors->grow(size, &word.grow, settings, bound);
}

c10d::ReconfigureHandle Backend::get_reconfigure_handle() const {
  check_fork();
  std::lock_guard<std::mutex> lock(handle_mutex_);
  if (!id_) {
    ftcclUniqueId id;
    check(ftcclUniqueIdKeep(&id), "making a handle");
    id_ = id;
  }
  return Handle{process_, token_, rank_, *id_}.text();
}

/* The id of this process's handle was used, or may have been: the next handle has another. */
void Backend::drop_handle() {
  std::lock_guard<std::mutex> lock(handle_mutex_);
  if (id_)
    ftcclUniqueIdRelease(&*id_);
  id_.reset();
}

Backend::Pointer Backend::reconfigure(const c10d::ReconfigureOptions& opts) {
  check_fork();
  std::lock_guard<std::mutex> one_at_a_time(reconfigure_mutex_);
  TORCH_CHECK(uuids_.insert(opts.uuid).second, "ftccl: reconfigure: uuid ", opts.uuid,
              " was already used by this group");
  bool ordered = std::holds_alternative<std::vector<std::string>>(opts.handles);
  std::vector<std::string> handles;
  if (ordered) {
    handles = std::get<std::vector<std::string>>(opts.handles);
  } else {
    const auto& set = std::get<std::unordered_set<std::string>>(opts.handles);
    handles.assign(set.begin(), set.end());
  }
  Plan plan = make_plan(handles, ordered);
  auto at = std::find_if(plan.members.begin(), plan.members.end(),
                         [&](const Handle& handle) { return handle.process == process_; });
  TORCH_CHECK_VALUE(at != plan.members.end(),
                    "ftccl: reconfigure: this process's handle is not among the handles");
  auto me = static_cast<int>(at - plan.members.begin());
  aborted_ = false;
  Settings settings{options_->timeout};
  Bound bound = Bound::after(opts.timeout.value_or(options_->timeout), &aborted_);
  Communicator::Pointer next;
  std::shared_ptr<Mailbox> mailbox;
  try {
    next = assemble(plan, me, opts.uuid, settings, bound);
    check_members(*next, plan, opts.uuid, bound);
    settings.concurrent = true;
    mailbox = std::make_shared<Mailbox>(next->split(settings, bound));
  } catch (...) {
    aborted_ = true;
    drop_handle();
    leave_group();
    set_token("-");
    throw;
  }
  if (me == plan.leader && id_used_)
    drop_handle();
  made_with_ = settings.timeout;
  leave_group();
  adopt(plan, me, opts.uuid, std::move(next), std::move(mailbox));
  if (aborted_) {
    revoke_group();
    fail("ftccl: reconfigure: the group was aborted meanwhile");
  }
  return c10::make_intrusive<WorkList>(title("reconfigure"), c10d::OpType::UNKNOWN,
                                       std::vector<WorkPointer>{}, limit(c10d::kUnsetTimeout));
}

void Backend::adopt(const Plan& plan, int me, int64_t uuid, Communicator::Pointer next,
                    std::shared_ptr<Mailbox> mailbox) {
  std::unique_lock<std::mutex> lock(group_mutex_);
  communicator_ = std::move(next);
  mailbox_ = std::move(mailbox);
  lock.unlock();
  rank_ = me;
  size_ = static_cast<int>(plan.members.size());
  members_.clear();
  std::string all = std::to_string(uuid);
  for (const Handle& handle : plan.members) {
    members_.push_back(handle.process);
    all += handle.process;
  }
  set_token(name_of(all));
}

} // namespace ftccl_torch

#endif
