#include "runtime/csrc/live/session/scope.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/csrc/engine/settle.h"
#include "runtime/csrc/live/machine/fake_mode.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/session/session.h"
#include "runtime/csrc/live/session/session_swap.h"

namespace dtr {

Scope::~Scope() {
  if (active() == &session_) active_ = nullptr;
}

void Scope::claim() {
  Session* last = active();
  const bool over = last && last->scope().lingering_ && last->engine().stats().values == 0;
  TORCH_CHECK(over || !last || !last->scope().lingering_,
              "a tensor of the dtr_alloc scope before could not be brought back at its end: call "
              "dtr_alloc.materialize(tensor) on it, or delete it, before the next scope");
  if (over) {
    last->swap().close();
    last->scope().lower_budget();
  }
  if (!over) last = nullptr;
  TORCH_CHECK(active_.compare_exchange_strong(last, &session_),
              "a dtr_alloc scope is already open in this process; scopes do not nest: leave it "
              "first");
}

constinit thread_local std::uint64_t Scope::member_of_ = 0;

// A fake mode that is still on keeps the bit.
void Scope::record_this_thread(bool on) {
  c10::impl::tls_set_dispatch_key_included(kKey, on || fake_mode_is_on());
  member_of_ = on ? today() : 0;
}

bool Scope::is_member() { return member_of_ == today(); }

void Scope::keep_recording() {
  if (lost_key() && !fake_mode_is_on()) record_this_thread(true);
}

bool Scope::part_if_member() {
  const bool was = member_of_;
  if (was) record_this_thread(false);
  return was;
}

bool Scope::records_this_thread() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(kKey);
}

void Scope::enter() {
  claim();
  record_this_thread(true);
}

// Storages that could not be made ordinary still lead here when they die.
void Scope::linger() {
  record_this_thread(false);
  ++ended_;
  lingering_ = true;
  if (session_.engine().stats().values == 0) give_up();
}

void Scope::give_up() {
  session_.swap().close();
  if (active() == &session_) active_ = nullptr;
}

Scope::Left Scope::leave() {
  if (active() != &session_ || lingering_) return {};
  keep_recording();
  struct Close {
    Scope& scope;
    ~Close() {
      scope.end_budget();
      scope.linger();
    }
  } close{*this};
  forget_refusal();
  {
    const Guard guard(session_.locks());
    session_.trace().end_watch(SessionTrace::Watch::kOver);
  }
  freeze_all(true, [] {});
  Left left{.spilled = spilled_};
  if (lifted_from_ > 0) {
    const PoolStats stats = session_.memory().stats();
    const Bytes most = stats.peak > peak_before_ ? stats.peak : stats.live;
    left.beyond = std::max<Bytes>(most - lifted_from_, 0);
  }
  if (Pool* pool = session_.memory().pool()) pool->trim();
  return left;
}

void Scope::join() {
  Turn turn(session_.locks());
  const Guard guard(session_.locks());
  session_.trace().end_watch(SessionTrace::Watch::kThreads);
  TORCH_CHECK(!session_.trace().recorder(),
              "a trace is being recorded, of one thread: others cannot join the scope");
  ++joined_;
  record_this_thread(true);
}

// In a forked child another thread, which is not there, may have the turn.
void Scope::part(bool here) {
  if (here) record_this_thread(false);
  if (active() != &session_) return;
  Turn turn(session_.locks());
  --joined_;
}

void Scope::freeze_all(bool leaving, const std::function<void()>& then) {
  std::vector<StoragePtr> let_go;  // Once the lock is open.
  Turn turn(session_.locks());
  Guard guard(session_.locks());
  const Meanwhile leaves(leaving_, leaving || leaving_);
  struct Taken {
    std::vector<StoragePtr>& from;
    std::vector<StoragePtr>& to;
    ~Taken() { to.swap(from); }
  } taken{outliving_, let_go};
  dtr::commit(session_.engine(), guard.lock(),
              [this] { return leaving_ && forget_refusal() && (spill() || lift_budget()); });
  then();
}

// The turn lasts until the end, so that nobody else changes the limit.
void Scope::leave_beyond_budget() {
  Turn turn(session_.locks());
  Memory& memory = session_.memory();
  const Bytes limit = memory.budget();
  memory.set_limit(memory.largest_budget());
  try {
    {
      Guard guard(session_.locks());
      const bool all = return_all(session_.engine(), guard.lock(), [](Bytes) { return true; });
      TORCH_CHECK_WITH(OutOfMemoryError, all,
                       "not all tensors that the program holds fit the memory "
                       "together: delete some, or let others free theirs");
      dtr::commit(session_.engine(), guard.lock(), [] { return false; });
    }
    leave();
  } catch (...) {
    memory.set_limit(limit);  // The next request evicts what is above it.
    throw;
  }
}

// A child has what is in memory. Here all can be evicted as before.
void Scope::bring_back_for_child() {
  Turn turn(session_.locks());
  Guard guard(session_.locks());
  const Memory& memory = session_.memory();
  return_all(session_.engine(), guard.lock(),
             [&](Bytes bytes) { return memory.live() + bytes <= memory.budget(); });
}

// CUDA does not work there, and nothing is asked of it. What operators of other threads have locked
// stays on record, since these threads are not there. No tensor leads to a record any more, so that
// the scope is given up all the same; but not by a child that was forked within an operator, which
// has the rest of it to do.
void Scope::abandon_in_child() {
  if (!session_.storages().device().device.is_cpu()) return linger();
  {
    Guard guard(session_.locks());
    freeze_resident(session_.engine(), [this](Value& value) { session_.storages().lose(value); });
  }
  if (InOperator::state.depth > 0) return linger();
  record_this_thread(false);
  give_up();
}

// What remains is brought back though it does not fit: nothing else can go.
bool Scope::lift_budget() {
  if (lifted_from_ > 0) return false;
  Memory& memory = session_.memory();
  lifted_from_ = memory.budget();
  peak_before_ = memory.stats().peak;
  Pool* pool = memory.pool();
  pool ? pool->lift_budget() : memory.set_limit(memory.largest_budget());
  return true;
}

// A tensor that the swap did not give back at the end may come back later, and then has a place.
void Scope::end_budget() {
  if (session_.engine().stats().values == 0) return lower_budget();
  try {
    lift_budget();
  } catch (const std::exception&) {  // Then it comes back if the budget has room.
  }
}

// What is live above it stays, and its pages go back as it dies.
void Scope::lower_budget() {
  if (lifted_from_ == 0) return;
  try {
    session_.memory().set_limit(lifted_from_);
  } catch (const std::exception&) {  // The system did not take a page back: it stays for now.
  }
}

// What outlives the scope and does not fit the budget together becomes ordinary memory: nothing is
// lost, and the budget still holds. A guest's tensors stay where they are, and those of a pool are
// copied. The engine's lock is held.
bool Scope::spill() {
  StorageTable& storages = session_.storages();
  Bytes moved = 0;
  for (auto& storage : outliving_) {
    if (Block* block = storages.block_of(storage.get())) {
      if (!session_.memory().let_go(block)) {
        at::DataPtr copy = c10::GetDefaultCPUAllocator()->allocate(storage->nbytes());
        std::memcpy(copy.get(), storages.data_of(*block), storage->nbytes());
        pointer_of(storage.get()) = std::move(copy);
      }
      moved += bytes_of(storage.get());
    }
    storages.bury(std::move(storage));
  }
  outliving_.clear();
  spilled_ += moved;
  return moved > 0;
}

}  // namespace dtr
