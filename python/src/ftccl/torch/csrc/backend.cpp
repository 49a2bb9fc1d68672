#include "backend.hpp"

#include "exchange.hpp"

#include <algorithm>

namespace ftccl_torch {

namespace {

constexpr int kBarrierTag = -0x7fffff01;

} // namespace

/* Its steps are enqueued as one group on the stream of the work. Outputs that are not contiguous
 * get their values from stand-ins when the work is done. */
struct Backend::Call {
  using Step = std::function<ftcclResult_t(ftcclComm_t, ftcclStream_t)>;

  const char* name;
  c10d::OpType type;
  Milliseconds timeout;
  Tensors inputs, results; /* as the user gave them */
  Tensors keeps{};
  std::vector<Step> steps{};
  std::function<void()> deliver{};

  Tensor input(const Tensor& tensor) {
    check_tensor(name, tensor);
    keeps.push_back(contiguous_input(tensor));
    return keeps.back();
  }
  Tensor output(const Tensor& tensor) {
    check_tensor(name, tensor);
    auto target = contiguous_output(name, tensor);
    keeps.push_back(target);
    if (!target.is_same(tensor))
      then([tensor, target]() mutable { tensor.copy_(target); });
    return target;
  }
  /* Its value is read and overwritten. */
  Tensor both(const Tensor& tensor) {
    Tensor target = output(tensor);
    if (!target.is_same(tensor))
      target.copy_(tensor);
    return target;
  }
  /* Where a collective puts one block for each of the tensors: in them, if they are one piece. */
  Tensor blocks(const Tensors& outputs) {
    for (const Tensor& each : outputs)
      check_output(name, each);
    auto one = as_one(outputs);
    Tensor all = one ? *one
                     : at::empty({static_cast<int64_t>(outputs.size()), outputs[0].numel()},
                                 outputs[0].options());
    keeps.push_back(all);
    if (!one)
      then([all, outputs] {
        for (size_t i = 0; i < outputs.size(); i++)
          outputs[i].copy_(all[static_cast<int64_t>(i)].view(outputs[i].sizes()));
      });
    return all;
  }
  ftcclResult_t enqueue(ftcclComm_t comm, ftcclStream_t stream) const {
    if (steps.size() == 1)
      return steps[0](comm, stream);
    ftcclGroupStart();
    for (const Step& step : steps)
      step(comm, stream);
    return ftcclGroupEnd();
  }
  void then(std::function<void()> next) {
    deliver = [first = std::move(deliver), next = std::move(next)] {
      if (first)
        first();
      next();
    };
  }
};

Backend::Backend(const c10::intrusive_ptr<Store>& store, int rank, int size, std::string group,
                 Milliseconds timeout)
    : c10d::Backend(rank, size), store_(store),
      options_(c10::make_intrusive<GroupOptions>(timeout)),
      group_(std::move(group)) {
  watch_forks();
  Bound bound = Bound::after(timeout, &aborted_);
  Settings settings{timeout};
  made_with_ = timeout;
  communicator_ = Communicator::init(size, exchange_id(*store, rank, size, bound), rank,
                                     settings, bound);
  settings.concurrent = true;
  mailbox_ = std::make_shared<Mailbox>(communicator_->split(settings, bound));
  init();
}

Backend::Backend(int rank, int size, std::string group, Milliseconds timeout)
    : c10d::Backend(rank, size), options_(c10::make_intrusive<GroupOptions>(timeout)),
      group_(std::move(group)), reconfigurable_(true) {
  watch_forks();
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  options_->enable_reconfigure = true;
#endif
  init();
}

Backend::~Backend() {
  if (is_fork()) {
    new std::deque<WorkPointer>(std::move(pending_)); /* in use by operations of the parent */
    return;
  }
  try {
    if (id_)
      ftcclUniqueIdRelease(&*id_);
    leave_group(); /* in order, if nothing is under way: peers may be in the last operation still */
  } catch (const std::exception& error) {
    TORCH_WARN("ftccl: while the group ended: ", error.what());
  }
}

void Backend::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
}

Title Backend::title(const char* call) {
  return {group_, call, rank_, ++sequence_};
}

/* The library keeps the time limit with which the communicator was made; any other is kept by
 * whoever waits. */
Limit Backend::limit(Milliseconds timeout) const {
  Milliseconds wanted = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  return {wanted, wanted != made_with_};
}

Communicator& Backend::communicator() {
  check_fork();
  if (!communicator_)
    fail("ftccl: group " + group_ + " has no members yet: reconfigure it first");
  if (aborted_)
    fail("ftccl: group " + group_ + " was aborted or shut down");
  return *communicator_;
}

Mailbox& Backend::mailbox() {
  communicator();
  return *mailbox_;
}

Backend::Group Backend::current() const {
  std::lock_guard<std::mutex> lock(group_mutex_);
  return {communicator_, mailbox_};
}

void Backend::set_token(std::string token) {
  std::lock_guard<std::mutex> lock(handle_mutex_);
  token_ = std::move(token);
}

c10d::ErrorType Backend::getError() {
  Communicator::Pointer comm = current().communicator;
  switch (comm && !aborted_ && !is_fork() ? comm->error() : ftcclSuccess) {
  case ftcclSuccess:
    return c10d::ErrorType::SUCCESS;
  case ftcclTimeout:
    return c10d::ErrorType::TIMEOUT;
  case ftcclRemoteError:
    return c10d::ErrorType::REMOTE_ERROR;
  default:
    return c10d::ErrorType::COMM_ERROR;
  }
}

/* ---- works ----------------------------------------------------------------------------------- */

/* Buffers must stay until an operation has ended, also if the caller drops its work. */
void Backend::keep(const WorkPointer& work) {
  drop_completed();
  std::lock_guard<std::mutex> lock(mutex_);
  if (coalescing_)
    coalesced_.push_back(work);
  pending_.push_back(work);
}

/* Asks without the lock: a work may complete, and a future's callback may call the backend. Nor
 * does a work end under the lock: the end of a tensor may wait for Python. */
void Backend::drop_completed() {
  for (;;) {
    WorkPointer first;
    std::unique_lock<std::mutex> lock(mutex_);
    if (pending_.empty())
      return;
    first = pending_.front();
    lock.unlock();
    if (!first->isCompleted())
      return;
    lock.lock();
    if (!pending_.empty() && pending_.front() == first)
      pending_.pop_front();
  }
}

Backend::Pointer Backend::submit(Call&& call) {
  auto work = c10::make_intrusive<StreamWork>(title(call.name), call.type, call.inputs,
                                              call.results, limit(call.timeout));
  work->keeps = std::move(call.keeps);
  work->keeps.insert(work->keeps.end(), call.inputs.begin(), call.inputs.end());
  work->deliver = std::move(call.deliver);
  communicator().enqueue([&] { return work->text(); }, [&](ftcclComm_t comm) {
    return call.enqueue(comm, work->stream.handle());
  });
  keep(work);
  return work;
}

void Backend::startCoalescing() {
  check_fork();
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(!coalescing_, "ftccl: coalesced calls do not nest");
  coalescing_ = true;
}

Backend::Pointer Backend::endCoalescing() {
  check_fork();
  std::vector<WorkPointer> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    works = std::move(coalesced_);
    coalesced_.clear();
    coalescing_ = false;
  }
  return c10::make_intrusive<WorkList>(title("coalesced calls"), c10d::OpType::COALESCED,
                                       std::move(works), limit(c10d::kUnsetTimeout));
}

/* ---- collectives ----------------------------------------------------------------------------- */

Backend::Pointer Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Call call{"broadcast", c10d::OpType::BROADCAST, opts.timeout, tensors, tensors};
  check_one(call.name, "input", tensors.size());
  check_root(call.name, opts.rootRank, size_);
  Elements e = movable(rank_ == opts.rootRank ? call.input(tensors[0]) : call.output(tensors[0]));
  int root = static_cast<int>(opts.rootRank);
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclBroadcast(e.data, e.data, e.count, e.type, root, comm, stream);
  });
  return submit(std::move(call));
}

namespace {

using Reduce = std::function<ftcclResult_t(ftcclRedOp_t)>;

/* Calls f with the operator, which is made for the call if it has a factor. */
ftcclResult_t with_operator(const Reduction& plan, ftcclComm_t comm, const Reduce& f) {
  if (!plan.factor)
    return f(plan.op);
  at::Tensor scalar = at::scalar_tensor(*plan.factor, at::TensorOptions(plan.scalar_type));
  ftcclRedOp_t op;
  ftcclResult_t result = ftcclRedOpCreatePreMulSum(&op, scalar.data_ptr(), plan.elements.type,
                                                   ftcclScalarHostImmediate, comm);
  if (result != ftcclSuccess)
    return result;
  result = f(op);
  ftcclRedOpDestroy(op, comm);
  return result;
}

} // namespace

/* Every rank, or the root, gathers the inputs and reduces them itself. root -1: every rank. */
Backend::Pointer Backend::reduce_here(Call&& call, const Tensor& output, const c10d::ReduceOp& op,
                                      int root) {
  Tensor input = call.keeps.at(0);
  Elements e = movable(input);
  bool here = root < 0 || root == rank_;
  std::vector<int64_t> shape = input.sizes().vec();
  shape.insert(shape.begin(), size_);
  Tensor all = here ? at::empty(shape, input.options()) : Tensor();
  void* to = here ? all.data_ptr() : nullptr;
  call.keeps.push_back(all);
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return root < 0 ? ftcclAllGather(e.data, to, e.count, e.type, comm, stream)
                    : ftcclGather(e.data, to, e.count, e.type, root, comm, stream);
  });
  if (here)
    call.deliver = [all, op, output]() mutable { output.copy_(reduce_locally(all.unbind(0), op)); };
  return submit(std::move(call));
}

Backend::Pointer Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Call call{"all_reduce", c10d::OpType::ALLREDUCE, opts.timeout, tensors, tensors};
  check_one(call.name, "input", tensors.size());
  Tensor tensor = call.both(tensors[0]);
  Reduction plan = plan_reduction(call.name, tensor, opts.reduceOp);
  if (plan.local)
    return reduce_here(std::move(call), tensors[0], opts.reduceOp, -1);
  Elements e = plan.elements;
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return with_operator(plan, comm, [&](ftcclRedOp_t op) {
      return ftcclAllReduce(e.data, e.data, e.count, e.type, op, comm, stream);
    });
  });
  return submit(std::move(call));
}

Backend::Pointer Backend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& opts) {
  TORCH_CHECK_VALUE(!tensors.empty(), "ftccl: allreduce_coalesced: no tensors");
  Call call{"allreduce_coalesced", c10d::OpType::ALLREDUCE_COALESCED, opts.timeout, tensors,
            tensors};
  for (const Tensor& tensor : tensors) {
    Reduction plan = plan_reduction(call.name, call.both(tensor), opts.reduceOp);
    TORCH_CHECK_TYPE(!plan.local, "ftccl: allreduce_coalesced: tensors of type ",
                     tensor.scalar_type(), " can only be reduced one by one with this operator");
    call.steps.push_back([plan](ftcclComm_t comm, ftcclStream_t stream) {
      return with_operator(plan, comm, [&](ftcclRedOp_t op) {
        const Elements& e = plan.elements;
        return ftcclAllReduce(e.data, e.data, e.count, e.type, op, comm, stream);
      });
    });
  }
  return submit(std::move(call));
}

Backend::Pointer Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Call call{"reduce", c10d::OpType::REDUCE, opts.timeout, tensors, tensors};
  check_one(call.name, "input", tensors.size());
  check_root(call.name, opts.rootRank, size_);
  int root = static_cast<int>(opts.rootRank);
  Tensor tensor = root == rank_ ? call.both(tensors[0]) : call.input(tensors[0]);
  Reduction plan = plan_reduction(call.name, tensor, opts.reduceOp);
  if (plan.local)
    return reduce_here(std::move(call), tensors[0], opts.reduceOp, root);
  Elements e = plan.elements;
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return with_operator(plan, comm, [&](ftcclRedOp_t op) {
      return ftcclReduce(e.data, e.data, e.count, e.type, op, root, comm, stream);
    });
  });
  return submit(std::move(call));
}

static void check_count(const char* call, const char* what, int64_t is, int64_t want) {
  TORCH_CHECK_VALUE(is == want, "ftccl: ", call, ": ", what, " has ", is, " elements, not ", want);
}

static void check_list(const char* call, const std::vector<at::Tensor>& list,
                       const at::Tensor& like, int size) {
  TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size), "ftccl: ", call, ": a list of ",
                    list.size(), " tensors in a group of ", size);
  for (const at::Tensor& tensor : list) {
    check_tensor(call, tensor);
    check_same_type(call, tensor, like);
    check_count(call, "a tensor of the list", tensor.numel(), like.numel());
  }
}

void Backend::add_gather_single(Call& call, Tensor& output, Tensor& input) {
  check_same_type(call.name, output, input);
  check_count(call.name, "the output", output.numel(), input.numel() * size_);
  Elements from = movable(call.input(input)), to = movable(call.output(output));
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclAllGather(from.data, to.data, from.count, from.type, comm, stream);
  });
}

Backend::Pointer Backend::_allgather_base(Tensor& output, Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  Call call{"all_gather_single", c10d::OpType::_ALLGATHER_BASE, opts.timeout, {input}, {output}};
  add_gather_single(call, output, input);
  return submit(std::move(call));
}

Backend::Pointer Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  /* torch 2.12 and 2.13 have no type for it */
  Call call{"all_gather_single_coalesced", c10d::OpType::_ALLGATHER_BASE, opts.timeout, inputs,
            outputs};
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ftccl: ", call.name, ": ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); i++)
    add_gather_single(call, outputs[i], inputs[i]);
  return submit(std::move(call));
}

void Backend::add_gather(Call& call, const Tensors& outputs, const Tensor& input) {
  check_list(call.name, outputs, input, size_);
  Elements from = movable(call.input(input));
  Tensor all = call.blocks(outputs);
  void* to = all.data_ptr();
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclAllGather(from.data, to, from.count, from.type, comm, stream);
  });
}

Backend::Pointer Backend::allgather(TensorLists& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& opts) {
  check_one("all_gather", "input", inputs.size());
  check_one("all_gather", "lists of output", outputs.size());
  Call call{"all_gather", c10d::OpType::ALLGATHER, opts.timeout, inputs, outputs[0]};
  add_gather(call, outputs[0], inputs[0]);
  return submit(std::move(call));
}

Backend::Pointer Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  Call call{"allgather_coalesced", c10d::OpType::ALLGATHER_COALESCED, opts.timeout, inputs, {}};
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "ftccl: ", call.name, ": ",
                    outputs.size(), " lists in a group of ", size_);
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "ftccl: ", call.name, ": a list of ",
                      list.size(), " tensors for ", inputs.size(), " inputs");
    call.results.insert(call.results.end(), list.begin(), list.end());
  }
  for (size_t i = 0; i < inputs.size(); i++) {
    Tensors output;
    for (const Tensors& list : outputs)
      output.push_back(list[i]);
    add_gather(call, output, inputs[i]);
  }
  return submit(std::move(call));
}

Backend::Pointer Backend::gather(TensorLists& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& opts) {
  Call call{"gather", c10d::OpType::GATHER, opts.timeout, inputs, {}};
  check_one(call.name, "input", inputs.size());
  check_root(call.name, opts.rootRank, size_);
  int root = static_cast<int>(opts.rootRank);
  bool here = root == rank_;
  TORCH_CHECK_VALUE(outputs.size() == (here ? 1u : 0u), "ftccl: gather: ", outputs.size(),
                    " lists of outputs on rank ", rank_, ", and the root is ", root);
  Elements from = movable(call.input(inputs[0]));
  void* to = nullptr;
  if (here) {
    check_list(call.name, outputs[0], inputs[0], size_);
    call.results = outputs[0];
    to = call.blocks(outputs[0]).data_ptr();
  }
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclGather(from.data, to, from.count, from.type, root, comm, stream);
  });
  return submit(std::move(call));
}

/* The blocks of a list behind each other: the list itself, if it is one piece. */
static at::Tensor flattened(const std::vector<at::Tensor>& list) {
  if (auto one = as_one(list))
    return *one;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : list)
    flat.push_back(contiguous_input(tensor).view(-1));
  return at::cat(flat);
}

Backend::Pointer Backend::scatter(Tensors& outputs, TensorLists& inputs,
                                  const c10d::ScatterOptions& opts) {
  Call call{"scatter", c10d::OpType::SCATTER, opts.timeout, {}, outputs};
  check_one(call.name, "output", outputs.size());
  check_root(call.name, opts.rootRank, size_);
  int root = static_cast<int>(opts.rootRank);
  bool here = root == rank_;
  TORCH_CHECK_VALUE(inputs.size() == (here ? 1u : 0u), "ftccl: scatter: ", inputs.size(),
                    " lists of inputs on rank ", rank_, ", and the root is ", root);
  const void* from = nullptr;
  Elements to = movable(call.output(outputs[0]));
  if (here) {
    check_list(call.name, inputs[0], outputs[0], size_);
    call.inputs = inputs[0];
    call.keeps.push_back(flattened(inputs[0]));
    from = call.keeps.back().data_ptr();
  }
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclScatter(from, to.data, to.count, to.type, root, comm, stream);
  });
  return submit(std::move(call));
}

/* The ranks exchange their blocks, and each reduces its own. */
void Backend::add_reduce_scatter_here(Call& call, Tensor& output, const Tensor& in,
                                      const c10d::ReduceOp& op) {
  Tensor all = at::empty({size_, output.numel()}, in.options());
  Elements from = movable(in);
  size_t count = from.count / static_cast<size_t>(size_);
  void* to = all.data_ptr();
  call.keeps.push_back(all);
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclAlltoAll(from.data, to, count, from.type, comm, stream);
  });
  call.then([all, output, op]() mutable {
    output.copy_(reduce_locally(all.unbind(0), op).view(output.sizes()));
  });
}

void Backend::add_reduce_scatter(Call& call, Tensor& output, Tensor& input,
                                 const c10d::ReduceOp& op) {
  check_same_type(call.name, output, input);
  check_count(call.name, "the input", input.numel(), output.numel() * size_);
  Tensor in = call.input(input);
  Reduction plan = plan_reduction(call.name, in, op);
  check_tensor(call.name, output);
  if (plan.local)
    return add_reduce_scatter_here(call, output, in, op);
  Elements from = plan.elements;
  void* to = call.output(output).data_ptr();
  size_t count = from.count / static_cast<size_t>(size_);
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return with_operator(plan, comm, [&](ftcclRedOp_t o) {
      return ftcclReduceScatter(from.data, to, count, from.type, o, comm, stream);
    });
  });
}

Backend::Pointer Backend::_reduce_scatter_base(Tensor& output, Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  Call call{"reduce_scatter_single", c10d::OpType::_REDUCE_SCATTER_BASE, opts.timeout, {input},
            {output}};
  add_reduce_scatter(call, output, input, opts.reduceOp);
  return submit(std::move(call));
}

Backend::Pointer Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  check_one("reduce_scatter", "output", outputs.size());
  check_one("reduce_scatter", "lists of input", inputs.size());
  check_list("reduce_scatter", inputs[0], outputs[0], size_);
  Tensor input = flattened(inputs[0]);
  return _reduce_scatter_base(outputs[0], input, opts);
}

Backend::Pointer Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  Call call{"reduce_scatter_single_coalesced", c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED,
            opts.timeout, inputs, outputs};
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ftccl: ", call.name, ": ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); i++)
    add_reduce_scatter(call, outputs[i], inputs[i], opts.reduceOp);
  return submit(std::move(call));
}

namespace {

/* Rows of the first dimension that go to, or come from, each rank, as ranges of elements. */
struct Blocks {
  std::vector<size_t> offset, count;
};

Blocks blocks_of(const char* what, const at::Tensor& tensor, const std::vector<int64_t>& rows,
                 int size) {
  Blocks blocks;
  int64_t all = tensor.dim() > 0 ? tensor.size(0) : 0, sum = 0;
  TORCH_CHECK_VALUE(rows.empty() || rows.size() == static_cast<size_t>(size),
                    "ftccl: all_to_all_single: ", rows.size(), " sizes of the ", what,
                    " in a group of ", size);
  TORCH_CHECK_VALUE(!rows.empty() || all % size == 0, "ftccl: all_to_all_single: the ", what,
                    " has ", all, " rows, which are not the same for ", size, " ranks");
  int64_t width = all > 0 ? tensor.numel() / all : 0;
  for (int r = 0; r < size; r++) {
    int64_t n = rows.empty() ? all / size : rows[static_cast<size_t>(r)];
    TORCH_CHECK_VALUE(n >= 0, "ftccl: all_to_all_single: a size of ", n, " rows");
    blocks.offset.push_back(static_cast<size_t>(sum * width));
    blocks.count.push_back(static_cast<size_t>(n * width));
    sum += n;
  }
  TORCH_CHECK_VALUE(sum == all, "ftccl: all_to_all_single: the sizes of the ", what, " sum up to ",
                    sum, " rows, and it has ", all);
  return blocks;
}

} // namespace

Backend::Pointer Backend::alltoall_base(Tensor& output, Tensor& input,
                                        std::vector<int64_t>& output_rows,
                                        std::vector<int64_t>& input_rows,
                                        const c10d::AllToAllOptions& opts) {
  Call call{"all_to_all_single", c10d::OpType::ALLTOALL_BASE, opts.timeout, {input}, {output}};
  check_same_type(call.name, output, input);
  Tensor in = call.input(input), out = call.output(output);
  Blocks sends = blocks_of("input", in, input_rows, size_),
         receives = blocks_of("output", out, output_rows, size_);
  size_t unit = movable(in).type == ftcclUint8 ? in.element_size() : 1;
  Elements from = movable(in), to = movable(out);
  size_t bytes = in.element_size();
  int size = size_;
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    ftcclGroupStart();
    for (int r = 0; r < size; r++) {
      auto k = static_cast<size_t>(r);
      ftcclSend(static_cast<char*>(from.data) + sends.offset[k] * bytes, sends.count[k] * unit,
                from.type, r, comm, stream);
      ftcclRecv(static_cast<char*>(to.data) + receives.offset[k] * bytes,
                receives.count[k] * unit, to.type, r, comm, stream);
    }
    return ftcclGroupEnd();
  });
  return submit(std::move(call));
}

Backend::Pointer Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& opts) {
  Call call{"all_to_all", c10d::OpType::ALLTOALL, opts.timeout, inputs, outputs};
  TORCH_CHECK_VALUE(inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(),
                    "ftccl: all_to_all: ", inputs.size(), " inputs and ", outputs.size(),
                    " outputs in a group of ", size_);
  std::vector<Elements> from, to;
  for (const Tensor& tensor : inputs)
    from.push_back(movable(call.input(tensor)));
  for (const Tensor& tensor : outputs) {
    check_same_type(call.name, tensor, inputs[0]);
    to.push_back(movable(call.output(tensor)));
  }
  call.steps.push_back([from, to](ftcclComm_t comm, ftcclStream_t stream) {
    ftcclGroupStart();
    for (size_t r = 0; r < from.size(); r++) {
      int peer = static_cast<int>(r);
      ftcclSend(from[r].data, from[r].count, from[r].type, peer, comm, stream);
      ftcclRecv(to[r].data, to[r].count, to[r].type, peer, comm, stream);
    }
    return ftcclGroupEnd();
  });
  return submit(std::move(call));
}

Backend::Pointer Backend::barrier(const c10d::BarrierOptions& opts) {
  Call call{"barrier", c10d::OpType::BARRIER, opts.timeout, {}, {}};
  Tensor one = at::zeros({1}, at::kByte);
  call.keeps.push_back(one);
  Elements e = movable(one);
  call.steps.push_back([=](ftcclComm_t comm, ftcclStream_t stream) {
    return ftcclAllReduce(e.data, e.data, e.count, e.type, ftcclMax, comm, stream);
  });
  return submit(std::move(call));
}

/* ---- messages -------------------------------------------------------------------------------- */

Backend::Pointer Backend::send(Tensors& tensors, int to, int tag) {
  check_one("send", "input", tensors.size());
  check_tensor("send", tensors[0]);
  check_root("send", to, size_);
  auto work = mailbox().send({group_, "send", rank_, ++messages_}, tensors[0], to, tag,
                             limit(c10d::kUnsetTimeout));
  keep(work);
  return work;
}

Backend::Pointer Backend::recv(Tensors& tensors, int from, int tag) {
  check_one("recv", "output", tensors.size());
  check_tensor("recv", tensors[0]);
  check_root("recv", from, size_);
  auto work = mailbox().receive({group_, "recv", rank_, ++messages_}, tensors[0], from, tag,
                                limit(c10d::kUnsetTimeout));
  keep(work);
  return work;
}

Backend::Pointer Backend::recvAnysource(Tensors& tensors, int tag) {
  check_one("recvAnysource", "output", tensors.size());
  check_tensor("recvAnysource", tensors[0]);
  auto work = mailbox().receive({group_, "recv from any rank", rank_, ++messages_}, tensors[0], -1,
                                tag, {options_->timeout, true});
  keep(work);
  return work;
}

/* Rank 0 hears every rank and then lets all go. It names those that it did not hear. */
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  auto timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  Limit limit{timeout, true};
  Tensor byte = at::zeros({1}, at::kByte);
  auto title = [&] { return Title{group_, "monitored barrier", rank_, ++messages_}; };
  if (rank_ != 0) {
    mailbox().send(title(), byte, 0, kBarrierTag, limit)->wait();
    try {
      mailbox().receive(title(), byte, 0, kBarrierTag, limit)->wait();
    } catch (const c10::Error& error) {
      std::string me = std::to_string(rank_);
      fail("[Rank " + me + "]: Rank " + me + " successfully reached monitoredBarrier, but " +
           "received errors while waiting for send/recv from rank 0: " +
           error.what_without_backtrace());
    }
    return;
  }
  std::vector<WorkPointer> words;
  for (int r = 1; r < size_; r++)
    words.push_back(mailbox().receive(title(), at::zeros({1}, at::kByte), r, kBarrierTag, limit));
  std::string missing;
  int count = 0;
  for (size_t i = 0; i < words.size() && (wait_all_ranks || count == 0); i++) {
    try {
      words[i]->wait();
    } catch (const c10::Error&) {
      missing += (count++ ? ", " : "") + std::to_string(i + 1);
    }
  }
  if (count > 0)
    fail("[Rank 0]: Rank 0 timed out in monitoredBarrier after " + std::to_string(timeout.count()) +
         " ms: Rank" + (count > 1 ? "s " : " ") + missing + " failed to pass monitoredBarrier");
  for (int r = 1; r < size_; r++)
    mailbox().send(title(), byte, r, kBarrierTag, limit)->wait();
}

/* ---- other groups, and the end --------------------------------------------------------------- */

static Milliseconds timeout_of(const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                               Milliseconds otherwise) {
  return opts ? opts->timeout : otherwise;
}

c10::intrusive_ptr<c10d::Backend> Backend::split(
    const c10::intrusive_ptr<Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  auto at = std::find(ranks.begin(), ranks.end(), rank_);
  if (at == ranks.end())
    return nullptr;
  return c10::make_intrusive<Backend>(store, static_cast<int>(at - ranks.begin()),
                                      static_cast<int>(ranks.size()),
                                      opts ? opts->group_name : group_,
                                      timeout_of(opts, options_->timeout));
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(
    const c10::intrusive_ptr<Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  return c10::make_intrusive<Backend>(store, rank, size, opts ? opts->group_name : group_,
                                      timeout_of(opts, options_->timeout));
}

bool Backend::has_pending() {
  std::unique_lock<std::mutex> lock(mutex_);
  std::deque<WorkPointer> pending = pending_;
  lock.unlock();
  return std::any_of(pending.begin(), pending.end(),
                     [](const WorkPointer& work) { return !work->isCompleted(); });
}

/* In order, if nothing is under way: peers may still be in the last operation, which an abort would
 * end for them. */
static void end(Communicator& comm, bool in_order) {
  if (in_order && comm.error() == ftcclSuccess)
    comm.destroy();
  else
    comm.abort();
}

void Backend::leave_group() {
  bool in_order = !aborted_ && !has_pending();
  if (mailbox_) {
    end(mailbox_->communicator(), in_order);
    mailbox_->close();
  }
  if (communicator_)
    end(*communicator_, in_order);
  wait_for_pending();
}

void Backend::wait_for_pending() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto pending = std::move(pending_);
  pending_.clear();
  lock.unlock();
  for (const auto& work : pending)
    while (!work->is_done())
      work->drive(Milliseconds(20));
}

/* Works end with an error, which their waiters get. A group that can be reconfigured keeps what its
 * survivors need for that. */
void Backend::abort() {
  if (is_fork() || aborted_.exchange(true) || !current().communicator)
    return;
  if (reconfigurable_)
    revoke_group();
  else
    leave_group();
}

void Backend::revoke_group() {
  Group now = current();
  now.mailbox->communicator().revoke();
  now.communicator->revoke();
  wait_for_pending();
}

/* Collectives that were called are done first; receives that nobody answered are given up. A group
 * that can be reconfigured comes back as a process without one. */
void Backend::shutdown() {
  if (is_fork() || aborted_ || !communicator_)
    return;
  std::unique_lock<std::mutex> lock(mutex_);
  std::deque<WorkPointer> pending = pending_;
  lock.unlock();
  for (const auto& work : pending)
    while (!work->is_done() && !dynamic_cast<ReceiveWork*>(work.get()))
      work->drive(Milliseconds(20));
  if (aborted_.exchange(true))
    return;
  mailbox_->communicator().destroy();
  mailbox_->close();
  communicator_->destroy();
  wait_for_pending();
  set_token("-");
}

} // namespace ftccl_torch
