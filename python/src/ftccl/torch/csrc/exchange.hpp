/*
 * How the ranks of a new group get the id that rank 0 makes, over the group's store.
 */
#pragma once

#include "library.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ftccl_torch {

/* Blocks until this rank has the id; on rank 0, until every other rank has it. */
ftcclUniqueId exchange_id(c10d::Store&, int rank, int size, const Bound&);

} // namespace ftccl_torch
