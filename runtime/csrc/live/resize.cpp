// A budget that changes while the program runs, and memory that is given back when another program
// needs it: a scheduler, an inference engine beside a trainer, the next of several jobs.
//
// Any thread may ask. The engine's lock makes it one step for all others: an operator that runs
// keeps its arguments, and whatever allocates next finds the new limit. The turn is taken first, so
// that no recomputation is under way, which would hold values that may go a moment later.

#include <c10/util/Exception.h>

#include <algorithm>

#include "runtime/csrc/live/locks.h"
#include "runtime/csrc/live/out_of_memory.h"
#include "runtime/csrc/live/session.h"

namespace dtr {

void Session::resize(Bytes budget) {
  Turn turn(*this);
  Guard guard(*this);
  const Bytes before = memory_->budget();
  if (memory_->live() > budget) give_up_ahead();
  memory_->set_limit(budget);  // First: blocks are handed out without the engine's lock.
  const Bytes stays = memory_->live() - (captures_ > 0 ? 0 : engine_.evictable_bytes());
  if (stays > budget) {
    memory_->set_limit(before);
    throw_cannot_shrink(budget, stays, before);
  }
  try {
    while (memory_->live() > budget && engine_.evict_one(Engine::Shed::kNothing)) {
      storages_.bury_with_lock_open(guard.lock());
    }
  } catch (...) {  // The disk of the swap failed.
    memory_->set_limit(before);
    throw;
  }
  memory_->set_limit(budget);  // Again: gives back the pages that are now too many.
}

// Relative to the budget of the moment, so that lenders in several threads do not undo each other.
void Session::lend(Bytes bytes) {
  Turn turn(*this);
  const Bytes budget = memory_->budget();
  TORCH_CHECK_VALUE(bytes < budget, "amount ", bytes, " is not below the budget of ", budget,
                    " bytes: nothing would be left");
  resize(std::min(budget - bytes, memory_->largest_budget()));
}

Bytes Session::give_back() {
  Turn turn(*this);
  const Bytes before = memory_->stats().committed;
  {
    Guard guard(*this);
    give_up_ahead();
    if (captures_ == 0) engine_.evict_all();
  }
  memory_->trim();
  return before - memory_->stats().committed;
}

}  // namespace dtr
