#include "runtime/csrc/live/session/session.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/graph/owner.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/python_aware_lock.h"
#include "runtime/csrc/live/machine/swap_file.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/locks.h"

namespace dtr {
namespace {

std::unique_ptr<Arena> arena_for(const SessionOptions& options) {
  const Bytes addresses = options.limited ? scope_addresses(options.budget) : options.budget;
  return options.on_cuda ? make_cuda_arena(addresses, options.cuda_device, options.page_uses)
                         : make_host_arena(addresses);
}

// Null where the host scores. What the driver refuses is an error only if it was asked for.
std::unique_ptr<DeviceScorer> device_scorer_for(const SessionOptions& options) {
  if (!options.on_cuda || !options.record || options.image.empty()) return nullptr;
  if (options.scorer == ScorerPlace::kHost) return nullptr;
  if (options.heuristic.selection == Selection::kRandom) return nullptr;
  try {
    return std::make_unique<DeviceScorer>(options.cuda_device, options.image, options.heuristic,
                                          options.scorer);
  } catch (const std::exception& error) {
    TORCH_CHECK(options.scorer != ScorerPlace::kDevice, "CUDA device ", options.cuda_device,
                " cannot score: ", error.what(),
                R"(; scorer="auto" lets the host do it where the device cannot)");
    return nullptr;
  }
}

std::unique_ptr<Tier> tier_for(const SessionOptions& options, Memory& memory) {
  if (options.on_cuda) return make_host_tier(*memory.pool(), options.cuda_device, options.swap);
  return std::make_unique<SwapFile>(options.swap_folder, options.swap);
}

}  // namespace

Memory::Handle pool_for(const SessionOptions& options) {
  return Pool::create(arena_for(options), options.budget);
}

Session::Session(const SessionOptions& options, SessionDevice device, Memory::Handle memory)
    : options_(options),
      device_(std::move(device)),
      costs_(device_.work ? std::make_unique<Costs>(*device_.work) : nullptr),
      detector_(options.debug ? std::make_unique<MutationDetector>() : nullptr),
      memory_(std::move(memory)),
      engine_(*this, options.heuristic, options.policy),
      trace_(options.record),
      storages_(engine_, *memory_, device_, trace_.now()),
      constants_(
          engine_, storages_, device_, detector_.get(),
          [this](const c10::StorageImpl& storage, Bytes bytes, Lock& lock) {
            return copy_of(storage, bytes, lock);
          },
          [this] { forget_refusal(); }),
      replayer_(
          engine_, *memory_, storages_, device_, under_way_, detector_.get(),
          [this](Bytes bytes) {
            return device_.ordinary(allocate(bytes, device_.current_stream()));
          },
          [this](const void* content, Bytes bytes) { return copy_of(content, bytes); }),
      swap_(options.swap
                ? std::make_unique<Swap>(engine_, *memory_, storages_, tier_for(options, *memory_),
                                         options.logical_clock, options.instruments.swap_always)
                : nullptr),
      thrash_(options.thrash_limit),
      scope_(*this),
      budget_(options.budget) {
  if (auto scorer = device_scorer_for(options)) engine_.selector().score_on(std::move(scorer));
  engine_.shed_before_evicting();
  if (swap_) engine_.move_by(swap_->transfer());
}

// ---- Executor ------------------------------------------------------------------------------------

void Session::recompute(Op& op, Lock& lock) {
  const std::int64_t begin = ticks(), searched = InOperator::state.search_ticks;
  const Nanos at = events_.keeps() ? EventLog::now() : 0ns;
  if (op.reload) return reload(op, lock);
  InOperator::State& thread = InOperator::state;
  const auto outer = std::pair(std::exchange(thread.refused, 0), std::exchange(thread.at_least, 0));
  const Bytes bytes = replayer_.recompute(op, lock);
  note_caught(Recipe::of(op).info());
  std::tie(thread.refused, thread.at_least) = outer;
  const std::int64_t searching = thread.search_ticks - searched;
  const std::int64_t passed = costs_ ? to_ticks(op.cost) : ticks() - begin - searching;
  remat_ticks_ += passed;
  thrash_.recomputed(passed);
  if (!events_.keeps()) return;
  events_.recomputed(Recipe::of(op).info(), at, to_nanoseconds(passed), bytes, memory_->live());
}

void Session::release(Value& value, Loss loss) {
  const bool evicted = loss == Loss::kEvicted;
  if (evicted && value.movable()) store(value);
  if (evicted && InOperator::state.making_room) evicted_for_room_ += value.size;
  TraceRecorder* recorder = trace_.recorder();
  if (recorder && evicted) recorder->evicted(value);
  storages_.free(block_of(value));
  if (evicted && events_.keeps() && !value.movable()) {
    events_.evicted(Recipe::of(*value.producer).info(), value.size, memory_->live());
  }
  if (c10::StorageImpl* storage = storages_.home_of(value)) storages_.empty(storage, value);
}

void Session::make_ordinary(Value& value) {
  Block* block = block_of(value);
  c10::StorageImpl* storage = storages_.home_of(value);
  if (!storage) {  // For recipes alone.
    auto kept = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), value.size, storages_.ordinary(block), nullptr, false);
    value.home = value.data = kept.release();
    if (detector_) detector_->watch(value, nullptr);
    return;
  }
  TraceRecorder* recorder = trace_.recorder();
  const bool shed = InOperator::state.making_room;  // That a simulation finds out itself.
  if (recorder && !scope_.leaving() && !shed) recorder->froze(storage);
  storages_.detach(storage, block);
  if (scope_.leaving()) scope_.outlives(storage);
  c10::raw::intrusive_ptr::incref(storage);
  value.data = storage;
  constants_.add(value, storage);
  if (detector_ && value.uses) detector_->watch(value, nullptr);
}

void Session::bring_back(Value& value, Lock& lock) {
  const Held held(engine_, value);
  lock.unlock();
  Turn turn(*this);
  lock.lock();
  engine_.materialize(value, lock);
}

void Session::watch_for_thrash() {
  const std::optional<double> ratio = thrash_.exceeded();
  if (!ratio) return;
  InOperator::state.at_least = memory_->budget() + kGranule;
  throw_thrashing(memory_->budget(), *ratio, options_.thrash_limit);
}

// ---- Memory --------------------------------------------------------------------------------------

void* Session::allocate(std::size_t bytes, Stream stream) {
  const auto asked = static_cast<Bytes>(bytes);
  const bool fails = allocations_to_failure_ > 0 && --allocations_to_failure_ == 0;
  std::string shortage;  // What the machine said, where it has less than the budget.
  Block* block = fails ? nullptr : take(asked, Fit::kCommitted, stream, shortage);
  void* data = block ? memory_->data(block) : nullptr;
  if (!block) {
    const std::int64_t begin = ticks();
    Guard guard(*this);
    const Nanos moved = memory_->moving();
    if (!fails) block = find_room(asked, stream, shortage, guard);
    moving_ += memory_->moving() - moved;
    const std::int64_t passed = ticks() - begin;
    search_ticks_ += passed;
    InOperator::state.search_ticks += passed;
    Hold::searched(passed);
    if (!block) out_of_memory(asked, shortage);
    data = memory_->data(block);  // Before the lock opens, and what died may run code.
  }
  InOperator::State& thread = InOperator::state;
  if (thread.depth > 0) thread.made.allocated(data, round_to_granule(asked));
  TraceRecorder* recorder = trace_.recorder();
  if (recorder && !thread.replaying) recorder->allocated(data, asked);
  return data;
}

// What fails by a limit that is then refused is asked for again. Each try needs another resize. The
// turn is not waited for: a kernel may hold a lock of torch's that a replay waits for.
Block* Session::find_room(Bytes asked, Stream stream, std::string& shortage, Guard& guard) {
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

Block* Session::take(Bytes asked, Fit fit, Stream stream, std::string& shortage) {
  try {
    return memory_->allocate(asked, fit, stream);
  } catch (const std::bad_alloc& error) {
    shortage = error.what();
    return nullptr;
  }
}

Block* Session::make_room(Bytes asked, Stream stream, std::string& shortage, Lock& lock) {
  const auto take_again = [&](Fit fit, bool at_last) {
    storages_.bury_with_lock_open(lock);  // What was shed.
    std::optional<Unlocked> open;
    if (memory_->is_torchs()) open.emplace(lock);
    Block* block = take(asked, fit, stream, shortage);
    if (block || !at_last || !give_up_ahead()) return block;
    return take(asked, fit, stream, shortage);
  };
  const bool may_evict = captures_ == 0 && !InOperator::state.handled;
  const MakingRoom making_room;
  const Pool* pool = pool_of_values();
  return pool ? allocate_evicting(*pool, engine_, move_prices(*pool), asked, take_again, may_evict)
              : allocate_evicting(engine_, take_again, may_evict);
}

// A repeatable run must not hang on what a machine can do.
MovePrices Session::move_prices(const Pool& pool) const {
  return options_.logical_clock ? MovePrices::usual(pool.arena().page()) : pool.move_prices();
}

at::DataPtr Session::copy_of(const void* content, Bytes bytes) {
  const Bytes remainder = remainder_of(content);
  void* const block = allocate(bytes + remainder, device_.current_stream());
  at::DataPtr data(static_cast<char*>(block) + remainder, block, device_.deleter, device_.device);
  device_.copy(data.get(), content, bytes);
  return data;
}

// Of a storage that was resized behind the dispatcher there is nothing to copy: a recipe that reads
// the copy then says so (Replayer::lay_over).
c10::intrusive_ptr<c10::StorageImpl> Session::copy_of(const c10::StorageImpl& storage, Bytes bytes,
                                                      Lock& lock) {
  Unlocked open(lock);
  at::DataPtr data = device_.ordinary(nullptr);
  if (static_cast<Bytes>(storage.nbytes()) >= bytes) {
    data = copy_of(pointer_of(&storage).get(), bytes);
  }
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               std::move(data), device_.allocator, false);
}

// The argument's memory may be evicted, and given to another stream, while an operator of this one
// still reads it: the program need not have said so, since it keeps the tensor. So the memory is
// told of every stream that uses a block. A stream that comes later than a replay waits for it at
// its first operator. A program on one stream pays for a comparison.
bool Session::follow_stream() {
  const Stream current = device_.current_stream();
  if (std::find(streams_.begin(), streams_.end(), current) == streams_.end()) {
    memory_->meet_stream(current);
    if (memory_->many_streams()) memory_->gather_streams(current);
    streams_.push_back(current);
  }
  latest_stream_.store(current, std::memory_order_relaxed);
  return memory_->many_streams();
}

void Session::meet_this_stream() {
  if (device_.work && captures_ == 0) follow_stream();
}

// By a look without a lock: it may be met after all.
bool Session::may_be_new(const Call& call) const {
  if (!device_.work || !options_.record || !call.here) return false;
  return device_.current_stream() != latest_stream_.load(std::memory_order_relaxed);
}

void Session::retire_stream(Stream stream) {
  Turn turn(*this);
  Guard guard(*this);
  TORCH_CHECK(captures_ == 0, "a stream cannot be retired while a graph is captured: its work must "
                              "be waited for");
  memory_->retire_stream(stream);
  std::erase(streams_, stream);
  latest_stream_.store(kNoStream, std::memory_order_relaxed);
}

void Session::read_on_stream(const Value& value) {
  if (value.constant() || !value.resident()) return;
  memory_->record_stream(block_of(value), device_.current_stream());
}

void Session::read_on_stream(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    if (argument.value) read_on_stream(*argument.value);
  }
}

void Session::freed(const void* data) {
  if (InOperator::state.depth > 0) InOperator::state.made.freed(data);
  if (TraceRecorder* recorder = trace_.recorder()) recorder->freed(data);
}

// The recorder is told of memory by threads without the engine's lock.
void Session::lock_for_fork() {
  engine_.mutex().lock();
  locked_recorder_ = trace_.recorder();
  if (locked_recorder_) locked_recorder_->mutex().lock();
}

void Session::unlock_after_fork() {
  if (locked_recorder_) locked_recorder_->mutex().unlock();
  engine_.mutex().unlock();
}

void Session::begin_capture() {
  scope_.commit_and([this] { ++captures_; });
}

// ---- Records and figures -------------------------------------------------------------------------

void Session::start_trace() {
  Turn turn(*this);
  TORCH_CHECK(!swap_, "a trace does not tell what was swapped: record it without swap");
  TORCH_CHECK(!memory_->is_torchs(), "a trace needs to know when memory is freed, which torch's "
                                     "CUDA allocator does not tell: record it with memory=\"pool\"");
  const int others = scope_.joined();
  TORCH_CHECK(others == 0, "a trace is of one thread, and ", others,
              " others have joined this scope: record it before they do");
  trace_.start();
}

void Session::watch() {
  if (memory_->is_torchs() || swap_) return;  // As above.
  Turn turn(*this);
  Guard guard(*this);
  trace_.watch();
  if (const Pool* pool = pool_of_values()) tell_what_is_there(*pool, *trace_.recorder());
}

bool Session::watch_again(std::int64_t steps) {
  Turn turn(*this);
  Guard guard(*this);
  const Pool* pool = pool_of_values();
  if (!pool || scope_.joined() > 0) return false;
  TraceRecorder* recorder = trace_.watch_again(steps);
  if (recorder) tell_what_is_there(*pool, *recorder);
  return recorder;
}

// What is in memory by now is a constant of that trace: what it was made of is not on record.
void Session::tell_what_is_there(const Pool& pool, TraceRecorder& recorder) {
  for (const Block& block : pool.snapshot()) {
    if (block.free) continue;
    const Value* value = as_value(block.owner);
    if (value && !value->home) continue;  // For recipes alone: it may go at any time.
    recorder.found(value ? value->home : pool.data(&block), block.size);
  }
}

void Session::follow(const Heuristic& heuristic) {
  Turn turn(*this);  // No recomputation is under way.
  Guard guard(*this);
  engine_.follow(heuristic);
}

Heuristic Session::heuristic() const {
  std::lock_guard guard(engine_.mutex());
  return engine_.heuristic();
}

std::optional<StepCosts> Session::step() {
  ++steps_;
  if (!Scope::records_this_thread()) return std::nullopt;
  trace_.stepped();
  Guard guard(*this);
  engine_.end_step();
  if (swap_) swap_->end_step();
  const StepCosts all{evicted_for_room_, to_nanoseconds(remat_ticks_ + search_ticks_)};
  const StepCosts before = std::exchange(costs_of_steps_, all);
  return StepCosts{all.evicted - before.evicted, all.added - before.added};
}

SessionStats Session::stats() const {
  std::lock_guard guard(engine_.mutex());
  const EngineStats engine = engine_.stats();
  const PoolStats pool = memory_->stats();
  const DeviceScorer* device = engine_.selector().device();
  const SwapStats swap = swap_ ? swap_->stats() : SwapStats();
  const Nanos searching = to_nanoseconds(search_ticks_);
  const Nanos moving = std::min(moving_, searching);  // Two clocks may differ a little.
  return {.operators = operators_,
          .recorded = recorded_,
          .evictions = engine.evictions,
          .rematerializations = engine.rematerializations - swap.reloads,
          .records = engine.values + engine.ops,
          .kernel_ns = to_nanoseconds(kernel_ticks_),
          .remat_ns = to_nanoseconds(remat_ticks_),
          .search_ns = searching - moving,
          .move_ns = moving,
          .bookkeeping_ns = to_nanoseconds(bookkeeping_ticks_),
          .base_cost = engine.base_cost,
          .remat_cost = engine.remat_cost,
          .foretold = engine.foretold,
          .classes = engine.classes,
          .verified = verified_,
          .time_stamps = costs_ ? costs_->stamps() : 0,
          .device_choices = device ? device->choices() : 0,
          .device_scores_from = device && device->threshold() != kNever
                                    ? static_cast<std::int64_t>(device->threshold())
                                    : -1,
          .live_bytes = pool.live,
          .peak_bytes = pool.peak,
          .evictable_bytes = engine.evictable,
          .evicted_bytes = evicted_for_room_,
          .largest_operator_bytes = engine.largest_operator,
          .largest_hold_bytes = largest_hold_,
          .swap = swap};
}

std::vector<std::int64_t> Session::timeline() const {
  std::lock_guard guard(engine_.mutex());
  return timeline_;
}

void Session::keep_events() {
  std::lock_guard guard(engine_.mutex());
  events_.keep();
}

std::vector<EventLog::Event> Session::events() const {
  std::lock_guard guard(engine_.mutex());
  return events_.events();
}

// With no other thread in the scope, none but its own can have locked something.
void Session::check() const {
  memory_->check();
  const bool over = active() != this || scope_.lingering();
  const bool alone = over || (Scope::records_this_thread() && scope_.joined() == 0);
  const bool idle = alone && InOperator::state.depth == 0 && !Hold::here();
  std::lock_guard guard(engine_.mutex());
  engine_.check(idle);
}

}  // namespace dtr
