/*
 * Reconfigure handles: who a process is, where it stands, and how it is reached. A handle is text
 * of one line, "ftccl1/PROCESS/GROUP/RANK/ID": 16 hexadecimal digits that are the backend's own, 16
 * that all members of its present group share ("-": it has none), its rank there, and a unique id
 * that it serves, which contains its address and a secret.
 */
#pragma once

#include <ftccl.h>

#include <string>
#include <vector>

namespace ftccl_torch {

struct Handle {
  std::string process, group;
  int rank = 0;
  ftcclUniqueId id{};

  static Handle parse(const std::string& text); /* throws ValueError with a sentence */
  std::string text() const;
  bool has_group() const { return group != "-"; }
};

/* 16 random hexadecimal digits. */
std::string random_name();
/* 16 digits that follow from the text. */
std::string name_of(const std::string& text);

/* How the processes of the handles, in this order, become one group. Every one of them computes
 * the same from the same handles. */
struct Plan {
  std::vector<Handle> members; /* by new rank */
  std::string base; /* the group whose communicator is shrunk and grown; empty: a new one is made */
  std::vector<int> old, joiners; /* new ranks of the base's members, and of the others */
  int leader = 0; /* new rank of the process whose id the others come to */
};
/* ordered: the handles are in the order of ranks; else survivors come first in their old order. */
Plan make_plan(const std::vector<std::string>& handles, bool ordered);

} // namespace ftccl_torch
