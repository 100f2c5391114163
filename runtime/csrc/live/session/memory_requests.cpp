#include "runtime/csrc/live/session/memory_requests.h"

#include <algorithm>
#include <optional>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/profiler.h"
#include "runtime/csrc/live/machine/python_aware_lock.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/scope.h"

namespace dtr {

void* MemoryRequests::allocate(std::size_t bytes, Stream stream) {
  const auto asked = static_cast<Bytes>(bytes);
  // The host's allocator has looked itself.
  if (!device_.device.is_cpu() && Scope::lost_key()) notes_.note_unseen(asked);
  const bool fails = allocations_to_failure_ > 0 && --allocations_to_failure_ == 0;
  std::string shortage;  // What the machine said, where it has less than the budget.
  Block* block = fails ? nullptr : take(asked, Fit::kCommitted, stream, shortage);
  void* data = block ? memory_.data(block) : nullptr;
  if (!block) {
    const std::int64_t begin = ticks();
    Guard guard(locks_);
    const Nanos moved = memory_.moving();
    if (!fails && asked <= kLargestBudget) block = find_room(asked, stream, shortage, guard);
    moving_ += memory_.moving() - moved;
    const std::int64_t passed = ticks() - begin;
    search_ticks_ += passed;
    InOperator::state.search_ticks += passed;
    Hold::searched(passed);
    if (!block) out_of_memory(asked, shortage);
    data = memory_.data(block);  // Before the lock opens, and what died may run code.
  }
  InOperator::State& thread = InOperator::state;
  if (thread.depth > 0) thread.made.allocated(data, round_to_granule(asked));
  TraceRecorder* const recorder = recorder_;
  if (recorder && !thread.replaying) recorder->allocated(data, asked);
  // Torch's interface to a device's allocator tells it itself.
  if (device_.device.is_cpu()) tell_profiler(memory_, *block, block->size, device_.device);
  return data;
}

// What fails by a limit that is then refused is asked for again. Each try needs another resize. The
// turn is not waited for: a kernel may hold a lock of torch's that a replay waits for.
Block* MemoryRequests::find_room(Bytes asked, Stream stream, std::string& shortage, Guard& guard) {
  constexpr int kTries = 8;
  std::int64_t ended = resizes_.ended;
  Block* block = make_room(asked, stream, shortage, guard.lock());
  const auto disturbed = [&] { return resizes_.under_way > 0 || resizes_.ended != ended; };
  for (int i = 0; !block && i < kTries && disturbed(); ++i) {
    {
      Guard::Opened open(guard);
      const PythonAwareLock over(resizes_.mutex);
    }
    ended = resizes_.ended;
    shortage.clear();
    block = make_room(asked, stream, shortage, guard.lock());
  }
  return block;
}

Block* MemoryRequests::take(Bytes asked, Fit fit, Stream stream, std::string& shortage) {
  try {
    return memory_.allocate(asked, fit, stream);
  } catch (const std::bad_alloc& error) {
    shortage = error.what();
    return nullptr;
  }
}

Block* MemoryRequests::make_room(Bytes asked, Stream stream, std::string& shortage, Lock& lock) {
  const auto take_again = [&](Fit fit, bool at_last) {
    storages_.bury_with_lock_open(lock);  // What was shed.
    std::optional<Unlocked> open;
    if (memory_.is_torchs()) open.emplace(lock);
    Block* block = take(asked, fit, stream, shortage);
    if (block || !at_last || !give_up_ahead()) return block;
    return take(asked, fit, stream, shortage);
  };
  // What an operator reads that passes us by is not locked.
  const bool unseen = InOperator::state.handled || Scope::lost_key();
  const bool may_evict = !capturing() && !unseen;
  const Meanwhile making_room(InOperator::state.making_room, true);
  const Pool* pool = memory_.pool();
  return pool ? allocate_evicting(*pool, engine_, move_prices(*pool), asked, take_again, may_evict)
              : allocate_evicting(engine_, take_again, may_evict);
}

// A repeatable run must not hang on what a machine can do.
MovePrices MemoryRequests::move_prices(const Pool& pool) const {
  return options_.logical_clock ? MovePrices::usual(pool.arena().page()) : pool.move_prices();
}

void MemoryRequests::out_of_memory(Bytes asked, const std::string& shortage) {
  storages_.events().note(EventLog::Kind::kRefused, nullptr, asked);
  const PoolStats pool = memory_.stats();
  InOperator::State& thread = InOperator::state;
  if (thread.depth == 0) {  // Of an error that nobody took on, and of an operator that is over.
    forget_refusal();
    thread.made.start();
  }
  const Bytes locked = engine_.eviction().locked_bytes();
  // Torch's device allocator frees what an operator made, and tells nobody.
  const Bytes made = memory_.is_torchs() ? 0 : thread.made.bytes();
  const std::vector<std::string> exposures = notes_.exposures();
  const Refusal refusal{.asked = asked,
                        .charge = asked > kLargestBudget ? asked : memory_.charge(asked),
                        .pool = pool,
                        .locked = locked,
                        .made = std::clamp<Bytes>(pool.live - locked, 0, made),
                        .largest_operator = engine_.stats().largest_operator,
                        .full_swap = swap_ ? swap_->full() : 0,
                        .exposures = exposures};
  // What no such machine has is refused without us as well.
  const Bytes most = device_.work ? device_.work->total_memory() : kLargestBudget;
  if (asked <= most) thread.refused = std::max(thread.refused, asked);
  if (!shortage.empty()) {
    thread.at_least = 0;
    throw_machine_is_full(refusal, shortage);
  }
  if (asked > most) {
    thread.at_least = 0;
    throw_too_large(asked, most, pool.budget);
  }
  if (thread.handled) throw_nothing_is_evicted_here(refusal);
  thread.at_least = std::max(thread.at_least, refusal.least_budget());
  throw_budget_is_full(refusal);
}

// ---- Streams

// The argument's memory may be evicted, and given to another stream, while an operator of this one
// still reads it: the program need not have said so, since it keeps the tensor. So the memory is
// told of every stream that uses a block. A stream that comes later than a replay waits for it at
// its first operator. A program on one stream pays for a comparison.
bool MemoryRequests::follow_stream() {
  const Stream current = device_.current_stream();
  if (std::find(streams_.begin(), streams_.end(), current) == streams_.end()) {
    memory_.meet_stream(current);
    if (memory_.many_streams()) memory_.gather_streams(current);
    streams_.push_back(current);
  }
  latest_stream_.store(current, std::memory_order_relaxed);
  return memory_.many_streams();
}

void MemoryRequests::meet_this_stream() {
  if (device_.work && !capturing()) follow_stream();
}

// By a look without a lock: it may be met after all.
bool MemoryRequests::may_be_new() const {
  if (!device_.work || !options_.record) return false;
  return device_.current_stream() != latest_stream_.load(std::memory_order_relaxed);
}

void MemoryRequests::retire_stream(Stream stream) {
  Turn turn(locks_);
  Guard guard(locks_);
  TORCH_CHECK(!capturing(), "a stream cannot be retired while a graph is captured: its work must "
                              "be waited for");
  memory_.retire_stream(stream);
  std::erase(streams_, stream);
  latest_stream_.store(kNoStream, std::memory_order_relaxed);
}

void MemoryRequests::read_on_stream(const Value& value) {
  if (value.constant() || !value.resident()) return;
  memory_.record_stream(block_of(value), device_.current_stream());
}

}  // namespace dtr
