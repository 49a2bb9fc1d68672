/*
 * Point-to-point messages with tags and from any source, over a communicator with concurrentP2p.
 *
 * Each message is an envelope of fixed size, with a short payload inside, or a payload behind it. A
 * receiver asks a peer for the next envelope when it wants something from it, and takes the payload
 * straight into the tensor that the envelope's tag matches. What nobody wants yet stays with its
 * sender; only if something else of the same sender is wanted is it kept here meanwhile.
 */
#pragma once

#include "work.hpp"

#include <deque>
#include <list>

namespace ftccl_torch {

class Mailbox;

class ReceiveWork : public Work {
 public:
  ReceiveWork(Title, at::Tensor, int source, int tag, Limit, std::shared_ptr<Mailbox>);
  void drive(Milliseconds slice) override;
  int sourceRank() const override;

 private:
  friend class Mailbox;
  const at::Tensor tensor; /* the user's */
  at::Tensor target;       /* contiguous */
  const int wanted_source, wanted_tag; /* source -1: any */
  std::atomic<int> source{-1};
  const std::shared_ptr<Mailbox> mailbox;
};

class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  explicit Mailbox(Communicator::Pointer);
  ~Mailbox();
  WorkPointer send(Title, const at::Tensor&, int to, int tag, Limit);
  /* from -1: any rank */
  WorkPointer receive(Title, const at::Tensor&, int from, int tag, Limit);
  /* Pending receives fail. Returns when the mailbox's thread has ended. */
  void close();
  Communicator& communicator() { return *comm_; }

  static constexpr size_t kEnvelope = 256;

 private:
  friend class ReceiveWork;
  using Receive = c10::intrusive_ptr<ReceiveWork>;

  struct Envelope {
    uint64_t len_bytes;
    int32_t tag;
    uint32_t reserved;
    unsigned char data[kEnvelope - 16];
  };
  static_assert(sizeof(Envelope) == kEnvelope);

  struct Kept { /* a message that came before anybody wanted it */
    int source;
    int32_t tag;
    std::vector<unsigned char> data;
  };

  struct Peer {
    enum { IDLE, ENVELOPE, ARRIVED, PAYLOAD } state = IDLE;
    std::shared_ptr<Envelope> envelope; /* filled while its stream runs */
    std::unique_ptr<Stream> stream;
    /* How the stream's operations ended, and why. It tells that once, to one thread. */
    ftcclResult_t ended = ftcclInProgress;
    std::string why;
    Receive into; /* of the payload; null: it is kept */
    std::vector<unsigned char> kept;
  };

  /* The caller holds mutex_ for all of these. */
  bool progress(); /* true: something moved */
  bool step(int peer);
  bool step_idle(int peer);
  bool step_arrived(int peer);
  void enqueue(int peer, void* to, size_t len_bytes); /* a receive on the peer's stream */
  void look(Peer&, Milliseconds time); /* whether its stream's operations have ended */
  bool is_done(int peer, const char* what); /* its stream; fails the mailbox if that failed */
  void take(int peer, const Receive&);
  void deliver(const Receive&, int source);
  void keep(int peer); /* the message that has come from it */
  bool deliver_kept(const Receive&);
  bool matches(const ReceiveWork&, int source, int tag) const;
  Receive find(int source, int tag) const;
  bool is_wanted(int source) const;
  void fail_all(const std::string& what);
  void remove(const Receive&);
  void run();

  const Communicator::Pointer comm_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::list<Receive> wanted_;
  std::list<Kept> kept_;
  std::string failure_;
  std::atomic<int> drivers_{0};
  std::thread thread_;
  bool closed_ = false;
};

} // namespace ftccl_torch
