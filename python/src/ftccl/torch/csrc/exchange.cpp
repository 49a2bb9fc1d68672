/*
 * Every rank asks under a name that it has just made, rank 0 answers under that name, and the rank
 * says what it has read. A store may hold what an earlier start of the job left there (torchrun
 * gives a restarted worker the same store), and no rank takes that for its own.
 */
#include "exchange.hpp"

#include "handles.hpp"

#include <algorithm>
#include <thread>

namespace ftccl_torch {

namespace {

using c10d::Store;
using Bytes = std::vector<uint8_t>;

std::string question_of(int rank) {
  return "ftccl_question_" + std::to_string(rank);
}

std::string answer_to(const std::string& name) {
  return "ftccl_answer_" + name;
}

std::string receipt_of(const std::string& name) {
  return "ftccl_receipt_" + name;
}

ftcclUniqueId ask(Store& store, int rank, const Bound& bound) {
  ftcclUniqueId id;
  std::string name = random_name();
  store.set(question_of(rank), Bytes(name.begin(), name.end()));
  auto left = std::chrono::duration_cast<Milliseconds>(bound.end - Clock::now());
  store.wait({answer_to(name)}, std::max(left, Milliseconds(1)));
  Bytes bytes = store.get(answer_to(name));
  TORCH_CHECK_VALUE(bytes.size() == sizeof id, "ftccl: the store has ", bytes.size(),
                    " bytes as the group's id, not ", sizeof id);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(&id));
  store.set(receipt_of(name), bytes);
  return id;
}

struct Asker {
  int rank;
  std::string answered{}; /* the name of its last question */
};

/* Has the rank read its answer? One that asks under another name was started anew. */
bool serve(Store& store, Asker& asker, const Bytes& id) {
  const std::string question = question_of(asker.rank);
  if (!store.check({question}))
    return false;
  Bytes asked = store.get(question);
  std::string name(asked.begin(), asked.end());
  if (name != asker.answered) {
    store.set(answer_to(name), id);
    asker.answered = name;
  }
  if (!store.check({receipt_of(name)}) || store.get(receipt_of(name)) != id)
    return false;
  for (const std::string& key : {question, answer_to(name), receipt_of(name)})
    store.deleteKey(key);
  return true;
}

ftcclUniqueId answer(Store& store, int size, const Bound& bound) {
  ftcclUniqueId id;
  check(ftcclGetUniqueId(&id), "making an id");
  auto* bytes = reinterpret_cast<uint8_t*>(&id);
  Bytes text(bytes, bytes + sizeof id);
  std::vector<Asker> askers;
  for (int rank = 1; rank < size; rank++)
    askers.push_back({rank});
  while (true) {
    askers.erase(std::remove_if(askers.begin(), askers.end(),
                                [&](Asker& asker) { return serve(store, asker, text); }),
                 askers.end());
    if (askers.empty())
      return id;
    if (Clock::now() > bound.end)
      fail("ftccl: init: rank " + std::to_string(askers[0].rank) + " did not come in time; " +
           std::to_string(askers.size()) + " of " + std::to_string(size) + " are missing");
    std::this_thread::sleep_for(Milliseconds(1));
    check_signals();
  }
}

} // namespace

ftcclUniqueId exchange_id(Store& store, int rank, int size, const Bound& bound) {
  return rank == 0 ? answer(store, size, bound) : ask(store, rank, bound);
}

} // namespace ftccl_torch
