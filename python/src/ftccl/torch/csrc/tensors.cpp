#include "tensors.hpp"

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

namespace ftccl_torch {

void check_tensor(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "ftccl: ", call, ": an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ftccl: ", call, ": the tensor is ",
                    tensor.layout(), "; only dense tensors can be sent");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "ftccl: ", call, ": the tensor is on ",
                    tensor.device(), "; this backend is for the CPU");
}

void check_one(const char* call, const char* what, size_t tensors) {
  TORCH_CHECK_VALUE(tensors == 1, "ftccl: ", call, ": ", tensors, " ", what,
                    " tensors; there must be one");
}

void check_same_type(const char* call, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "ftccl: ", call, ": tensors of types ",
                   a.scalar_type(), " and ", b.scalar_type());
}

void check_root(const char* call, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "ftccl: ", call, ": root ", root,
                    " is not a rank of a group of ", size);
}

static std::optional<ftcclDataType_t> type_of(at::ScalarType type) {
  switch (type) {
  case at::kChar:
    return ftcclInt8;
  case at::kByte:
  case at::kBool:
    return ftcclUint8;
  case at::kInt:
    return ftcclInt32;
  case at::kUInt32:
    return ftcclUint32;
  case at::kLong:
    return ftcclInt64;
  case at::kUInt64:
    return ftcclUint64;
  case at::kHalf:
    return ftcclFloat16;
  case at::kFloat:
    return ftcclFloat32;
  case at::kDouble:
    return ftcclFloat64;
  case at::kBFloat16:
    return ftcclBfloat16;
  case at::kFloat8_e4m3fn:
    return ftcclFloat8e4m3;
  case at::kFloat8_e5m2:
    return ftcclFloat8e5m2;
  default:
    return std::nullopt;
  }
}

Elements movable(const at::Tensor& tensor) {
  void* data = tensor.data_ptr();
  auto type = type_of(tensor.scalar_type());
  if (type)
    return {data, static_cast<size_t>(tensor.numel()), *type};
  return {data, static_cast<size_t>(tensor.nbytes()), ftcclUint8};
}

/* ---- reductions ------------------------------------------------------------------------------ */

static std::optional<ftcclRedOp_t> operator_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
  case c10d::ReduceOp::SUM:
    return ftcclSum;
  case c10d::ReduceOp::AVG:
    return ftcclAvg;
  case c10d::ReduceOp::PRODUCT:
    return ftcclProd;
  case c10d::ReduceOp::MIN:
    return ftcclMin;
  case c10d::ReduceOp::MAX:
    return ftcclMax;
  default:
    return std::nullopt;
  }
}

/* True and false are 1 and 0: a sum is "any", a product is "all". */
static std::optional<ftcclRedOp_t> operator_of_bools(c10d::ReduceOp::RedOpType op) {
  switch (op) {
  case c10d::ReduceOp::SUM:
  case c10d::ReduceOp::MAX:
  case c10d::ReduceOp::BOR:
    return ftcclMax;
  case c10d::ReduceOp::PRODUCT:
  case c10d::ReduceOp::MIN:
  case c10d::ReduceOp::BAND:
    return ftcclMin;
  default:
    return std::nullopt;
  }
}

static bool is_bitwise(c10d::ReduceOp::RedOpType op) {
  return op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
}

static double factor_of(const char* call, const c10d::ReduceOp& op) {
  /* its only name until 2.13 */
  auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement, "ftccl: ", call, ": PREMUL_SUM without its factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
}

static void check_operator(const char* call, at::ScalarType type, c10d::ReduceOp::RedOpType op) {
  bool known = operator_of(op) || is_bitwise(op) || op == c10d::ReduceOp::PREMUL_SUM;
  TORCH_CHECK_VALUE(known, "ftccl: ", call, ": unknown reduction operator ", static_cast<int>(op));
  bool floating = at::isFloatingType(type) || at::isComplexType(type);
  TORCH_CHECK_VALUE(!is_bitwise(op) || !floating, "ftccl: ", call,
                    ": a bitwise operator on tensors of type ", type);
  TORCH_CHECK_VALUE(type != at::kBool || (op != c10d::ReduceOp::AVG &&
                                          op != c10d::ReduceOp::PREMUL_SUM),
                    "ftccl: ", call, ": no average and no scaled sum of bools");
  bool linear = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG ||
                op == c10d::ReduceOp::PREMUL_SUM;
  TORCH_CHECK_VALUE(!at::isComplexType(type) || linear, "ftccl: ", call,
                    ": complex tensors can be summed and averaged, and nothing else");
}

Reduction plan_reduction(const char* call, const at::Tensor& tensor, const c10d::ReduceOp& how) {
  auto op = static_cast<c10d::ReduceOp::RedOpType>(how);
  check_operator(call, tensor.scalar_type(), op);
  Reduction plan;
  auto real = at::isComplexType(tensor.scalar_type()) ? at::view_as_real(tensor) : tensor;
  auto type = type_of(real.scalar_type());
  auto known = tensor.scalar_type() == at::kBool ? operator_of_bools(op) : operator_of(op);
  TORCH_CHECK_VALUE(op != c10d::ReduceOp::PREMUL_SUM || type, "ftccl: ", call,
                    ": no scaled sum of tensors of type ", tensor.scalar_type());
  if (op == c10d::ReduceOp::PREMUL_SUM) {
    plan.factor = factor_of(call, how);
    known = ftcclSum;
  }
  plan.local = !type || !known;
  plan.scalar_type = real.scalar_type();
  plan.elements = movable(real);
  plan.op = known.value_or(ftcclSum);
  return plan;
}

at::Tensor reduce_locally(const std::vector<at::Tensor>& inputs, const c10d::ReduceOp& how) {
  auto op = static_cast<c10d::ReduceOp::RedOpType>(how);
  at::Tensor all = inputs[0].clone();
  for (size_t r = 1; r < inputs.size(); r++) {
    const at::Tensor& one = inputs[r];
    switch (op) {
    case c10d::ReduceOp::BAND:
      all.bitwise_and_(one);
      break;
    case c10d::ReduceOp::BOR:
      all.bitwise_or_(one);
      break;
    case c10d::ReduceOp::BXOR:
      all.bitwise_xor_(one);
      break;
    case c10d::ReduceOp::PRODUCT:
      all.mul_(one);
      break;
    case c10d::ReduceOp::MIN:
      all = at::minimum(all, one);
      break;
    case c10d::ReduceOp::MAX:
      all = at::maximum(all, one);
      break;
    default:
      all.add_(one);
    }
  }
  if (op == c10d::ReduceOp::AVG)
    all.div_(static_cast<int64_t>(inputs.size()), "trunc");
  return all;
}

/* ---- memory ---------------------------------------------------------------------------------- */

at::Tensor contiguous_input(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg().contiguous()
                                             : tensor.contiguous();
}

void check_output(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "ftccl: ", call,
                    ": elements of the output share memory (it was expanded); clone it first");
}

at::Tensor contiguous_output(const char* call, const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg())
    return tensor;
  check_output(call, tensor);
  return at::empty(tensor.sizes(), tensor.options());
}

std::optional<at::Tensor> as_one(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty())
    return std::nullopt;
  int64_t count = 0;
  const at::Tensor& first = tensors[0];
  for (const at::Tensor& tensor : tensors) {
    bool follows = tensor.is_contiguous() && tensor.scalar_type() == first.scalar_type() &&
                   tensor.is_alias_of(first) &&
                   static_cast<char*>(tensor.data_ptr()) ==
                       static_cast<char*>(first.data_ptr()) + count * first.element_size();
    if (!follows)
      return std::nullopt;
    count += tensor.numel();
  }
  return first.as_strided({count}, {1});
}

} // namespace ftccl_torch
