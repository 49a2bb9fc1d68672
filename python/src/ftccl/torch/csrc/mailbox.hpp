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
  WorkPointer send(Title, const at::Tensor&, int to, int tag, Limit);
  /* from -1: any rank */
  WorkPointer receive(Title, const at::Tensor&, int from, int tag, Limit);
  /* After the communicator has ended. Pending receives fail. Returns when the mailbox's thread has
   * ended, unless that thread calls. */
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

  struct Ended {
    Receive work;
    std::string what; /* empty: it succeeded */
  };

  /* The lock. Works that ended meanwhile complete after it is let go: a future's callback may call
   * the mailbox. */
  class Hold {
   public:
    explicit Hold(Mailbox& mailbox) : lock(mailbox.mutex_), mailbox_(mailbox) {}
    ~Hold() { release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    void release();

    std::unique_lock<std::mutex> lock;

   private:
    Mailbox& mailbox_;
  };

  /* The caller holds mutex_ for all of these. */
  bool progress(); /* true: something moved */
  bool step(int peer);
  bool step_idle(int peer);
  bool step_arrived(int peer);
  void enqueue(int peer, void* to, size_t len_bytes); /* a receive on the peer's stream */
  void look(Peer&, Milliseconds time); /* whether its stream's operations have ended */
  bool is_done(int peer); /* its stream; fails the mailbox if that failed */
  bool give_up(Peer&);    /* after a failure: its payload ends when nothing writes it any more */
  Peer* awaited_peer(const ReceiveWork&); /* null: none sends it yet */
  bool is_busy() const;
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
  std::vector<Ended> ended_;
  std::string failure_; /* empty: none */
  std::atomic<int> drivers_{0};
  std::thread thread_;
  bool closed_ = false;
};

} // namespace ftccl_torch
