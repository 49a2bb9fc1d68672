/*
 * The c10d backend "ftccl" for tensors on the CPU. Collectives are enqueued on one communicator and
 * run in the order of the calls; sends and receives go over the mailbox, and wait for nothing else.
 */
#pragma once

#include "handles.hpp"
#include "mailbox.hpp"
#include "tensors.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <set>

namespace ftccl_torch {

using c10d::Store;

class GroupOptions : public c10d::Backend::Options {
 public:
  explicit GroupOptions(Milliseconds timeout) : c10d::Backend::Options("ftccl", timeout) {}
};

class Backend : public c10d::Backend {
 public:
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Pointer = c10::intrusive_ptr<c10d::Work>;

  /* Blocks until all ranks of the group have come, at most `timeout`. */
  Backend(const c10::intrusive_ptr<Store>&, int rank, int size, std::string group,
          Milliseconds timeout);
  /* One that has no ranks until reconfigure(). */
  Backend(int rank, int size, std::string group, Milliseconds timeout);
  ~Backend() override;

  const std::string getBackendName() const override { return "ftccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override;
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  Pointer broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  Pointer allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  Pointer allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  Pointer reduce(Tensors&, const c10d::ReduceOptions&) override;
  Pointer allgather(TensorLists&, Tensors&, const c10d::AllgatherOptions&) override;
  Pointer _allgather_base(Tensor&, Tensor&, const c10d::AllgatherOptions&) override;
  Pointer allgather_coalesced(TensorLists&, Tensors&, const c10d::AllgatherOptions&) override;
  Pointer allgather_into_tensor_coalesced(Tensors&, Tensors&,
                                          const c10d::AllgatherOptions&) override;
  Pointer gather(TensorLists&, Tensors&, const c10d::GatherOptions&) override;
  Pointer scatter(Tensors&, TensorLists&, const c10d::ScatterOptions&) override;
  Pointer reduce_scatter(Tensors&, TensorLists&, const c10d::ReduceScatterOptions&) override;
  Pointer _reduce_scatter_base(Tensor&, Tensor&, const c10d::ReduceScatterOptions&) override;
  Pointer reduce_scatter_tensor_coalesced(Tensors&, Tensors&,
                                          const c10d::ReduceScatterOptions&) override;
  Pointer alltoall_base(Tensor&, Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override;
  Pointer alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  Pointer barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;
  Pointer send(Tensors&, int to, int tag) override;
  Pointer recv(Tensors&, int from, int tag) override;
  Pointer recvAnysource(Tensors&, int tag) override;
  void startCoalescing() override;
  Pointer endCoalescing() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<Store>&,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>&)
      override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<Store>&,
                                          const c10::intrusive_ptr<c10d::Backend::Options>&,
                                          const int& rank, const int& size) override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return reconfigurable_; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  Pointer reconfigure(const c10d::ReconfigureOptions&) override;
#endif

 private:
  struct Call;  /* what a collective enqueues, and what it keeps */
  struct Group { /* of one reconfigure */
    Communicator::Pointer communicator;
    std::shared_ptr<Mailbox> mailbox;
  };

  Group current() const; /* any thread */

  Title title(const char* call);
  Limit limit(Milliseconds timeout) const;
  Communicator& communicator();
  Mailbox& mailbox();
  Pointer submit(Call&&);
  Pointer reduce_here(Call&&, const Tensor& output, const c10d::ReduceOp&, int root);
  void add_gather(Call&, const Tensors& outputs, const Tensor& input);
  void add_gather_single(Call&, Tensor& output, Tensor& input);
  void add_reduce_scatter(Call&, Tensor& output, Tensor& input, const c10d::ReduceOp&);
  void add_reduce_scatter_here(Call&, Tensor& output, const Tensor& input, const c10d::ReduceOp&);
  void keep(const WorkPointer&);
  void drop_completed();
  void wait_for_pending();
  bool has_pending();
  void check_members(Communicator&, const Plan&, int64_t uuid, const Bound&);
  Communicator::Pointer shrink_base(const Plan&, const Settings&, const Bound&);
  Communicator::Pointer assemble(const Plan&, int me, int64_t uuid, Settings, const Bound&);
  void adopt(const Plan&, int me, int64_t uuid, Communicator::Pointer, std::shared_ptr<Mailbox>);
  void drop_handle();
  void set_token(std::string);
  void leave_group();
  void revoke_group();

  const c10::intrusive_ptr<Store> store_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const std::string group_;
  mutable std::mutex group_mutex_; /* of the next two, beside threads that abort */
  Communicator::Pointer communicator_;
  std::shared_ptr<Mailbox> mailbox_;
  std::atomic<uint64_t> sequence_{0}, messages_{0};
  std::atomic<bool> aborted_{false};
  Milliseconds made_with_{0}; /* the time limit of the communicator's operations */

  const bool reconfigurable_ = false;
  const std::string process_ = random_name();
  std::vector<std::string> members_; /* processes, by rank */
  std::mutex reconfigure_mutex_;
  std::set<int64_t> uuids_;
  bool id_used_ = false; /* the leader's, by the last reconfigure */
  mutable std::mutex handle_mutex_; /* of token_ and id_ */
  std::string token_ = "-";
  mutable std::optional<ftcclUniqueId> id_;

  std::mutex mutex_; /* of what follows */
  std::deque<WorkPointer> pending_; /* kept although the caller may have let go of them */
  bool coalescing_ = false;
  std::vector<WorkPointer> coalesced_;
};

} // namespace ftccl_torch
