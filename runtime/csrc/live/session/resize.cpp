// A budget that changes while the program runs, and memory that is given back when another program
// needs it: a scheduler, an inference engine beside a trainer, the next of several jobs.
//
// Any thread may ask. The engine's lock makes it one step for all others: an operator that runs
// keeps its arguments, and whatever allocates next finds the new limit. The turn is taken first, so
// that no recomputation is under way, which would hold values that may go a moment later. A request
// that fails meanwhile is made again afterwards, since the budget may have been refused.

#include <c10/util/Exception.h>

#include <algorithm>

#include "runtime/csrc/engine/clear_pages.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/python_aware_lock.h"
#include "runtime/csrc/live/session/memory_requests.h"

namespace dtr {

// While it lives a limit is set that may be refused.
class MemoryRequests::Resizing {
 public:
  explicit Resizing(Resizes& resizes) : resizes_(resizes), alone_(resizes.mutex) {
    ++resizes_.under_way;
  }
  ~Resizing() {
    ++resizes_.ended;
    --resizes_.under_way;
  }

 private:
  Resizes& resizes_;
  const PythonAwareLock alone_;
};

void MemoryRequests::resize(Bytes budget) {
  Turn turn(locks_);
  const bool smaller = budget < budget_;
  if (smaller) {
    Guard guard(locks_);
    refuse_what_cannot_fit(budget);
  }
  const Bytes before = memory_.budget(), limit = std::min(budget, most_);
  const Resizing resizing(resizes_);
  try {
    memory_.set_limit(limit);  // First: no lock of ours is held to allocate.
    if (smaller) {
      shrink(budget);
      memory_.set_limit(limit);  // Again: pages that are now too many go back.
    }
  } catch (...) {  // Or the disk of the swap failed, or a device's driver.
    memory_.set_limit(before);
    throw;
  }
  budget_ = budget;
  if (!smaller) return;
  try {
    if (!memory_.pool()) return trim();
    while (clear_pages(budget)) memory_.set_limit(limit);
  } catch (const std::exception&) {  // The budget holds all the same.
  }
}

// Torch's blocks are larger than the tensors in them: how much of them goes is known once they have
// gone. The engine's lock is held.
void MemoryRequests::refuse_what_cannot_fit(Bytes budget) {
  if (memory_.live() > budget) give_up_ahead();
  if (capturing()) return insist_on(budget, memory_.settled_live(budget));
  if (!memory_.is_torchs())
    insist_on(budget, memory_.live() - engine_.eviction().evictable_bytes());
}

void MemoryRequests::insist_on(Bytes budget, Bytes stays) const {
  if (stays > budget) throw_cannot_shrink(budget, stays, budget_);
}

void MemoryRequests::shrink(Bytes budget) {
  Guard guard(locks_);
  refuse_what_cannot_fit(budget);  // Others had no limit to heed until now.
  while (memory_.live() > budget && engine_.eviction().evict_one(Eviction::Shed::kNothing)) {
    storages_.bury_with_lock_open(guard.lock());
  }
  // What was to go may have been read or pinned meanwhile.
  insist_on(budget, memory_.settled_live(budget));
}

bool MemoryRequests::clear_pages(Bytes budget) {
  const Pool* pool = memory_.pool();
  if (!pool || capturing()) return false;
  Guard guard(locks_);
  if (pool->stats().committed - budget < pool->arena().page()) return false;
  give_up_ahead();
  const bool any = dtr::clear_pages(*pool, engine_, budget);
  if (any) storages_.bury_with_lock_open(guard.lock());
  return any;
}

// Relative to the budget of the moment, so that lenders in several threads do not undo each other.
void MemoryRequests::lend(Bytes bytes) {
  Turn turn(locks_);
  TORCH_CHECK_VALUE(bytes < budget_, "amount ", in_mib(bytes), " is not below the budget of ",
                    in_mib(budget_), ", so that nothing would be left: lend less");
  resize(std::min(budget_ - bytes, memory_.largest_budget()));
}

// Torch's memory fraction. As there it bounds what is asked for from now on.
void MemoryRequests::bound(Bytes most) {
  Turn turn(locks_);
  most_ = most;
  memory_.set_limit(std::min(budget_, most));
}

Bytes MemoryRequests::give_back() {
  Turn turn(locks_);
  const Bytes before = memory_.stats().committed;
  {
    Guard guard(locks_);
    give_up_ahead();
    if (!capturing()) engine_.eviction().evict_all();
  }
  trim();
  return before - memory_.stats().committed;
}

// A device must not be given memory back by torch's allocator while a graph is captured.
void MemoryRequests::trim() {
  if (memory_.pool() || !capturing()) memory_.trim();
}

}  // namespace dtr
