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
    Mailbox::Hold hold(*mailbox);
    while (mailbox->ended_.empty() && mailbox->progress()) {
    }
    if (!mailbox->ended_.empty() || slice.count() == 0)
      continue;
    if (Mailbox::Peer* peer = mailbox->awaited_peer(*this)) {
      mailbox->look(*peer, Milliseconds(1));
    } else {
      hold.release();
      std::this_thread::yield();
    }
  } while (!is_done() && Clock::now() < end);
  mailbox->drivers_--;
}

/* ---- the mailbox ----------------------------------------------------------------------------- */

void Mailbox::Hold::release() {
  if (!lock.owns_lock())
    return;
  auto ended = std::move(mailbox_.ended_);
  mailbox_.ended_.clear();
  lock.unlock();
  for (const auto& [work, what] : ended)
    work->complete(what);
}

Mailbox::Mailbox(Communicator::Pointer comm)
    : comm_(std::move(comm)), peers_(static_cast<size_t>(comm_->size())) {}

void Mailbox::close() {
  if (is_fork())
    return;
  Hold hold(*this);
  closed_ = true;
  fail_all("the group has ended");
  for (Peer& peer : peers_)
    while (peer.into) {
      look(peer, Milliseconds(20));
      give_up(peer);
    }
  changed_.notify_all();
  auto thread = std::move(thread_);
  hold.release();
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
  Hold hold(*this);
  if (!failure_.empty())
    fail("ftccl: " + work->text() + ": " + failure_);
  if (deliver_kept(work))
    return work;
  wanted_.push_back(work);
  progress();
  if (is_busy() && !thread_.joinable())
    thread_ = std::thread([self = shared_from_this()] { self->run(); });
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
  ended_.push_back({work, std::string()});
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
    ended_.push_back({work, size_sentence(at->source, at->data.size(), work->target.nbytes())});
  } else {
    if (!at->data.empty())
      std::memcpy(work->target.data_ptr(), at->data.data(), at->data.size());
    deliver(work, at->source);
  }
  kept_.erase(at);
  return true;
}

/* What a stream still fills ends later, with give_up(). */
void Mailbox::fail_all(const std::string& what) {
  if (failure_.empty())
    failure_ = what;
  for (const auto& work : wanted_)
    ended_.push_back({work, what});
  wanted_.clear();
}

bool Mailbox::give_up(Peer& peer) {
  if (!peer.into)
    return false;
  look(peer, Milliseconds(0));
  if (peer.ended == ftcclInProgress)
    return false;
  ended_.push_back({std::move(peer.into), failure_});
  peer.into.reset();
  return true;
}

/* ---- progress -------------------------------------------------------------------------------- */

void Mailbox::look(Peer& peer, Milliseconds time) {
  if (peer.ended != ftcclInProgress)
    return;
  peer.ended = time.count() > 0 ? peer.stream->wait(time) : peer.stream->query();
  if (peer.ended != ftcclInProgress && peer.ended != ftcclSuccess)
    peer.why = sentence(peer.ended);
}

Mailbox::Peer* Mailbox::awaited_peer(const ReceiveWork& work) {
  if (work.wanted_source >= 0) {
    Peer& peer = peers_[static_cast<size_t>(work.wanted_source)];
    return peer.stream ? &peer : nullptr;
  }
  for (Peer& peer : peers_)
    if (peer.into.get() == &work)
      return &peer;
  return nullptr;
}

bool Mailbox::is_done(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  look(peer, Milliseconds(0));
  if (peer.ended == ftcclInProgress)
    return false;
  if (peer.ended == ftcclSuccess)
    return true;
  fail_all("receiving from rank " + std::to_string(rank) + ": " + peer.why);
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
    ended_.push_back({work, size_sentence(rank, envelope.len_bytes, work->target.nbytes())});
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
    if (!is_done(rank))
      return false;
    peer.state = Peer::ARRIVED;
    return true;
  case Peer::ARRIVED:
    return step_arrived(rank);
  case Peer::PAYLOAD:
    if (!is_done(rank))
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
  for (int r = 0; r < static_cast<int>(peers_.size()); r++) {
    try {
      moved |= failure_.empty() ? step(r) : give_up(peers_[static_cast<size_t>(r)]);
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
  }
  return moved || !ended_.empty();
}

bool Mailbox::is_busy() const {
  return !wanted_.empty() || std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.into != nullptr;
  });
}

/* So that a sender goes on while nobody waits for what it sends. */
void Mailbox::run() {
  c10::setThreadName("ftccl_mailbox");
  for (;;) {
    Hold hold(*this);
    if (closed_)
      return;
    if (!is_busy())
      changed_.wait(hold.lock);
    else if (drivers_ > 0 || !progress())
      changed_.wait_for(hold.lock, Milliseconds(1));
  }
}

} // namespace ftccl_torch
