#include "mailbox.hpp"

#include "tensors.hpp"

#include <c10/util/thread_name.h>

#include <algorithm>
#include <cstring>

namespace ftccl_torch {

/* ---- works ----------------------------------------------------------------------------------- */

ReceiveWork::ReceiveWork(Title title, at::Tensor to, int from, int tag, Limit limit,
                         std::shared_ptr<Mailbox> owner)
    : Work(std::move(title), from < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, {to},
           {to}, limit),
      tensor(to), target(contiguous_output("recv", to)), wanted_source(from), wanted_tag(tag),
      mailbox(std::move(owner)) {}

int ReceiveWork::sourceRank() const {
  return source;
}

/* Waits for the stream that the message must come by, in short slices: others drive, too. */
void ReceiveWork::drive(Milliseconds slice) {
  auto end = Clock::now() + slice;
  mailbox->drivers_++;
  do {
    std::unique_lock<std::mutex> lock(mailbox->mutex_);
    while (!is_done() && mailbox->progress()) {
    }
    if (is_done() || slice.count() == 0)
      break;
    int from = wanted_source;
    for (int r = 0; from < 0 && r < static_cast<int>(mailbox->peers_.size()); r++)
      if (mailbox->peers_[static_cast<size_t>(r)].into.get() == this)
        from = r;
    if (from >= 0 && mailbox->peers_[static_cast<size_t>(from)].stream) {
      Mailbox::Peer& peer = mailbox->peers_[static_cast<size_t>(from)];
      mailbox->look(peer, Milliseconds(1));
      continue;
    }
    lock.unlock();
    std::this_thread::yield();
  } while (Clock::now() < end);
  mailbox->drivers_--;
}

/* ---- the mailbox ----------------------------------------------------------------------------- */

Mailbox::Mailbox(Communicator::Pointer comm)
    : comm_(std::move(comm)), peers_(static_cast<size_t>(comm_->size())) {}

Mailbox::~Mailbox() {
  close();
}

void Mailbox::close() {
  if (is_fork()) {
    if (thread_.joinable())
      thread_.detach();
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  fail_all("the group has ended");
  changed_.notify_all();
  auto thread = std::move(thread_);
  lock.unlock();
  if (thread.joinable() && thread.get_id() == std::this_thread::get_id())
    thread.detach();
  else if (thread.joinable())
    thread.join();
}

WorkPointer Mailbox::send(Title title, const at::Tensor& tensor, int to, int tag, Limit limit) {
  auto data = contiguous_input(tensor);
  auto work = c10::make_intrusive<StreamWork>(
      std::move(title), c10d::OpType::SEND, std::vector<at::Tensor>{tensor},
      std::vector<at::Tensor>{}, limit);
  auto envelope = std::make_shared<Envelope>();
  envelope->len_bytes = data.nbytes();
  envelope->tag = tag;
  bool inside = data.nbytes() <= sizeof envelope->data;
  if (inside && data.nbytes() > 0)
    std::memcpy(envelope->data, data.data_ptr(), data.nbytes());
  work->keeps = {data};
  work->deliver = [envelope] {};
  comm_->enqueue([&] { return work->text(); }, [&](ftcclComm_t comm) {
    ftcclGroupStart();
    ftcclSend(envelope.get(), kEnvelope, ftcclUint8, to, comm, work->stream.handle());
    if (!inside)
      ftcclSend(data.data_ptr(), data.nbytes(), ftcclUint8, to, comm, work->stream.handle());
    return ftcclGroupEnd();
  });
  return work;
}

WorkPointer Mailbox::receive(Title title, const at::Tensor& tensor, int from, int tag,
                             Limit limit) {
  auto work = c10::make_intrusive<ReceiveWork>(std::move(title), tensor, from, tag, limit,
                                               shared_from_this());
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.empty() || closed_)
    fail("ftccl: " + work->text() + ": " + (failure_.empty() ? "the group has ended" : failure_));
  if (deliver_kept(work))
    return work;
  wanted_.push_back(work);
  progress();
  if (!work->is_done() && !thread_.joinable())
    thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return work;
}

bool Mailbox::matches(const ReceiveWork& work, int source, int tag) const {
  return (work.wanted_source < 0 || work.wanted_source == source) && work.wanted_tag == tag;
}

Mailbox::Receive Mailbox::find(int source, int tag) const {
  for (const auto& work : wanted_)
    if (matches(*work, source, tag))
      return work;
  return Receive();
}

bool Mailbox::is_wanted(int source) const {
  return std::any_of(wanted_.begin(), wanted_.end(), [&](const Receive& work) {
    return work->wanted_source < 0 || work->wanted_source == source;
  });
}

void Mailbox::remove(const Receive& work) {
  wanted_.remove(work);
}

void Mailbox::deliver(const Receive& work, int source) {
  work->source = source;
  if (!work->target.is_same(work->tensor))
    work->tensor.copy_(work->target);
  work->complete(std::string());
}

static std::string size_sentence(int source, uint64_t got, size_t room) {
  return "rank " + std::to_string(source) + " sent " + std::to_string(got) +
         " bytes, and the tensor has " + std::to_string(room);
}

bool Mailbox::deliver_kept(const Receive& work) {
  auto at = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return matches(*work, kept.source, kept.tag);
  });
  if (at == kept_.end())
    return false;
  if (at->data.size() != work->target.nbytes()) {
    work->complete(size_sentence(at->source, at->data.size(), work->target.nbytes()));
  } else {
    if (!at->data.empty())
      std::memcpy(work->target.data_ptr(), at->data.data(), at->data.size());
    deliver(work, at->source);
  }
  kept_.erase(at);
  return true;
}

void Mailbox::fail_all(const std::string& what) {
  if (failure_.empty())
    failure_ = what;
  auto wanted = std::move(wanted_);
  wanted_.clear();
  for (auto& peer : peers_)
    if (peer.into)
      wanted.push_back(std::move(peer.into));
  for (const auto& work : wanted)
    work->complete(what);
}

/* ---- progress -------------------------------------------------------------------------------- */

void Mailbox::look(Peer& peer, Milliseconds time) {
  if (peer.ended != ftcclInProgress)
    return;
  peer.ended = time.count() > 0 ? peer.stream->wait(time) : peer.stream->query();
  if (peer.ended != ftcclInProgress && peer.ended != ftcclSuccess)
    peer.why = sentence(peer.ended);
}

bool Mailbox::is_done(int rank, const char* what) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  look(peer, Milliseconds(0));
  if (peer.ended == ftcclInProgress)
    return false;
  if (peer.ended == ftcclSuccess)
    return true;
  fail_all(std::string(what) + " from rank " + std::to_string(rank) + ": " +
           peer.why);
  return false;
}

void Mailbox::enqueue(int rank, void* to, size_t len_bytes) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.ended = ftcclInProgress;
  comm_->enqueue([] { return "recv"; }, [&](ftcclComm_t comm) {
    return ftcclRecv(to, len_bytes, ftcclUint8, rank, comm, peer.stream->handle());
  });
}

bool Mailbox::step_idle(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  bool named = false, any = false;
  for (const auto& work : wanted_) {
    named |= work->wanted_source == rank;
    any |= work->wanted_source < 0;
  }
  int arrived = named;
  if (any && !named)
    comm_->enqueue([] { return "probe"; },
                   [&](ftcclComm_t comm) { return ftcclProbe(comm, rank, &arrived); });
  if (!arrived)
    return false;
  peer.envelope = std::make_shared<Envelope>();
  peer.stream = std::make_unique<Stream>();
  enqueue(rank, peer.envelope.get(), kEnvelope);
  peer.state = Peer::ENVELOPE;
  return true;
}

/* The message goes where it is wanted, or is kept. */
void Mailbox::take(int rank, const Receive& work) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  Envelope& envelope = *peer.envelope;
  bool inside = envelope.len_bytes <= sizeof envelope.data;
  bool fits = work && work->target.nbytes() == envelope.len_bytes;
  if (work)
    remove(work);
  if (work && !fits)
    work->complete(size_sentence(rank, envelope.len_bytes, work->target.nbytes()));
  peer.into = fits ? work : Receive();
  if (!fits)
    peer.kept.resize(envelope.len_bytes);
  void* to = fits ? work->target.data_ptr() : peer.kept.data();
  if (inside) {
    if (envelope.len_bytes > 0)
      std::memcpy(to, envelope.data, envelope.len_bytes);
  } else {
    enqueue(rank, to, envelope.len_bytes);
  }
  /* A message of another size than its receive has been told of; it is not kept for a later one. */
  if (work && !fits)
    envelope.reserved = 1;
  peer.state = Peer::PAYLOAD;
}

bool Mailbox::step_arrived(int rank) {
  auto work = find(rank, peers_[static_cast<size_t>(rank)].envelope->tag);
  if (!work && !is_wanted(rank))
    return false;
  take(rank, work);
  return true;
}

/* A receive that wants the message may have been called while it was on its way. */
void Mailbox::keep(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  kept_.push_back({rank, peer.envelope->tag, std::move(peer.kept)});
  auto work = find(rank, peer.envelope->tag);
  if (!work)
    return;
  remove(work);
  deliver_kept(work);
}

bool Mailbox::step(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  switch (peer.state) {
  case Peer::IDLE:
    return step_idle(rank);
  case Peer::ENVELOPE:
    if (!is_done(rank, "receiving"))
      return false;
    peer.state = Peer::ARRIVED;
    return true;
  case Peer::ARRIVED:
    return step_arrived(rank);
  case Peer::PAYLOAD:
    if (!is_done(rank, "receiving"))
      return false;
    peer.stream.reset();
    if (peer.into)
      deliver(peer.into, rank);
    else if (!peer.envelope->reserved)
      keep(rank);
    peer.into.reset();
    peer.kept.clear();
    peer.state = Peer::IDLE;
    return true;
  }
  return false;
}

bool Mailbox::progress() {
  bool moved = false;
  for (int r = 0; r < static_cast<int>(peers_.size()) && failure_.empty(); r++) {
    try {
      moved |= step(r);
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
  }
  return moved;
}

/* So that a sender goes on while nobody waits for what it sends. */
void Mailbox::run() {
  c10::setThreadName("ftccl_mailbox");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    bool busy = !wanted_.empty() ||
                std::any_of(peers_.begin(), peers_.end(),
                            [](const Peer& peer) { return peer.into != nullptr; });
    if (!busy)
      changed_.wait(lock);
    else if (drivers_ > 0 || !progress())
      changed_.wait_for(lock, Milliseconds(1));
  }
}

} // namespace ftccl_torch
