/*
 * Tensors as the library's calls need them: checks with sentences, types, and contiguous stand-ins.
 */
#pragma once

#include <ftccl.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

namespace ftccl_torch {

/* A range of elements of a type that the library knows. */
struct Elements {
  void* data;
  size_t count;
  ftcclDataType_t type;
};

/* Throws unless the tensor is dense and on the CPU. */
void check_tensor(const char* call, const at::Tensor&);
void check_output(const char* call, const at::Tensor&); /* throws if its elements share memory */
void check_one(const char* call, const char* what, size_t tensors);
void check_same_type(const char* call, const at::Tensor&, const at::Tensor&);
void check_root(const char* call, int64_t root, int size);

/* The same memory for calls that move data: of any type, complex and bool too. Contiguous. */
Elements movable(const at::Tensor&);

/* How a reduction is done. local: the library has no such operator for the type; the ranks gather
 * their inputs, and each reduces them by reduce_locally(). */
struct Reduction {
  bool local = false;
  Elements elements{};
  ftcclRedOp_t op = ftcclSum;
  std::optional<double> factor; /* PREMUL_SUM */
  at::ScalarType scalar_type = at::kFloat; /* of the elements */
};
Reduction plan_reduction(const char* call, const at::Tensor& contiguous, const c10d::ReduceOp&);
/* In the order of ranks, so that every rank has the same bits. */
at::Tensor reduce_locally(const std::vector<at::Tensor>& inputs, const c10d::ReduceOp&);

/* The tensor itself if it is contiguous, else a contiguous copy (inputs) or an empty one of the
 * same shape (outputs). */
at::Tensor contiguous_input(const at::Tensor&);
at::Tensor contiguous_output(const char* call, const at::Tensor&);

/* The tensors as one, if they lie in order behind each other in memory; else an empty optional. */
std::optional<at::Tensor> as_one(const std::vector<at::Tensor>&);

} // namespace ftccl_torch
