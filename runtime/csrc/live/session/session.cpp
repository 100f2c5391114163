#include "runtime/csrc/live/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/graph/owner.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/swap_file.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/session/hold.h"

namespace dtr {
namespace {

// Twice the machine's memory, and 128 GiB at least.
Bytes addresses_without_budget() {
  const Bytes memory = Bytes{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::clamp(2 * memory, Bytes{128} << 30, kLargestBudget);
}

std::unique_ptr<Arena> make_arena(const SessionOptions& options, Bytes addresses) {
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

EventLog::Cause cause_of(Op& op) {
  const Recipe& recipe = Recipe::of(op);
  return {.made_by = &recipe.info(), .site = recipe.made_at, .again = true};
}

std::unique_ptr<Tier> tier_for(const SessionOptions& options, Memory& memory) {
  if (options.on_cuda) return make_host_tier(*memory.pool(), options.cuda_device, options.swap);
  return std::make_unique<SwapFile>(options.swap_folder, options.swap);
}

// What is in memory by now is a constant of that trace: what it was made of is not on record.
void tell_what_is_there(const Pool& pool, TraceRecorder& recorder) {
  for (const Block& block : pool.snapshot()) {
    if (block.free) continue;
    const Value* value = as_value(block.owner);
    if (value && !value->home) continue;  // For recipes alone: it may go at any time.
    recorder.found(value ? value->home : pool.data(&block), block.size);
  }
}

}  // namespace

Memory::Handle pool_for(const SessionOptions& options) {
  if (options.budget) {
    return Pool::create(make_arena(options, usual_addresses(options.budget)), options.budget);
  }
  const Bytes addresses = addresses_without_budget();
  return Pool::create(make_arena(options, addresses), addresses);
}

Session::Session(const SessionOptions& options, SessionDevice device, Memory::Handle memory)
    : options_(options),
      device_(std::move(device)),
      detector_(options.debug ? std::make_unique<MutationDetector>() : nullptr),
      memory_(std::move(memory)),
      trace_(options.record, storages_),
      engine_(*this, options.heuristic),
      storages_(
          engine_, *memory_, device_,
          [this](Bytes bytes) { return requests_.allocate(bytes, device_.current_stream()); },
          trace_.now(), *events_),
      tally_(device_.work.get(), options.thrash_limit),
      swap_(options.swap ? std::make_unique<Swap>(storages_, tier_for(options, *memory_),
                                                  options.logical_clock, options.swap_always)
                         : nullptr),
      constants_(storages_, detector_.get()),
      replayer_(storages_, locks_.under_way, detector_.get()),
      session_swap_(*this, swap_.get()),
      requests_(options_, locks_, notes_, swap_.get(), trace_.now()),
      scope_(*this) {
  if (events_->keeps()) memory_->watch(events_);
  if (auto scorer = device_scorer_for(options))
    engine_.eviction().selector().score_on(std::move(scorer));
  engine_.eviction().shed_before_evicting();
  if (swap_) engine_.move_by(swap_->transfer());
}

// ---- Executor

void Session::recompute(Op& op, Lock& lock) {
  const std::int64_t begin = ticks(), searched = InOperator::state.search_ticks;
  const Nanos at = events_->begin();
  if (op.reload) return session_swap_.reload(op, lock);
  const EventLog::Cause cause = cause_of(op);
  const Meanwhile again(EventLog::cause, cause);
  InOperator::State& thread = InOperator::state;
  const auto outer = std::pair(std::exchange(thread.refused, 0), std::exchange(thread.at_least, 0));
  const Bytes bytes =
      replayer_.recompute(op, lock, [&] { notes_.note_caught(Recipe::of(op).info()); });
  std::tie(thread.refused, thread.at_least) = outer;
  const std::int64_t searching = thread.search_ticks - searched;
  const std::int64_t passed = tally_.costs ? to_ticks(op.cost) : ticks() - begin - searching;
  tally_.remat_ticks += passed;
  tally_.thrash.recomputed(passed);
  events_->lasted(EventLog::Kind::kRecomputed, at, to_nanoseconds(passed), bytes, cause);
}

void Session::release(Value& value, Loss loss) {
  const bool evicted = loss == Loss::kEvicted;
  if (evicted && value.movable()) session_swap_.store(value);
  if (evicted && InOperator::state.making_room) tally_.evicted_for_room += value.size;
  TraceRecorder* recorder = trace_.recorder();
  if (recorder && evicted) recorder->evicted(value);
  if (evicted && events_->keeps()) {
    const auto made = value.movable() ? EventLog::Cause() : cause_of(*value.producer);
    events_->note(EventLog::Kind::kEvicted, storages_.data_of(value), value.size, made);
  }
  storages_.free(block_of(value));
  if (c10::StorageImpl* storage = storages_.home_of(value)) storages_.empty(storage, value);
}

void Session::make_ordinary(Value& value) {
  Block* block = block_of(value);
  c10::StorageImpl* storage = storages_.home_of(value);
  if (!storage) {  // For recipes alone.
    value.home = value.data = storage_over(storages_.ordinary(block), value.size).release();
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
  if (value.uses && !scope_.leaving()) constants_.arm(storage);
  if (detector_ && value.uses) detector_->watch(value, nullptr);
}

void Session::bring_back(Value& value, Lock& lock) {
  const Held held(engine_, value);
  lock.unlock();
  Turn turn(locks_);
  lock.lock();
  engine_.materialize(value, lock);
}

std::shared_ptr<const RandomState> Session::random_state(at::Generator& generator) {
  if (!last_random_ || !last_random_->is_of(generator)) {
    last_random_ = std::make_shared<const RandomState>(generator);
  }
  return last_random_;
}

void Session::watch_for_thrash() {
  const std::optional<double> ratio = tally_.thrash.exceeded();
  if (!ratio) return;
  InOperator::state.at_least = memory_->budget() + kGranule;
  throw_thrashing(memory_->budget(), *ratio, options_.thrash_limit);
}

void Session::freed(const void* data) {
  if (InOperator::state.depth > 0) InOperator::state.made.freed(data);
  if (TraceRecorder* recorder = trace_.recorder()) recorder->freed(data);
}

// The recorder and the notes are told by threads without the engine's lock.
void Session::lock_for_fork() {
  engine_.mutex().lock();
  notes_.mutex().lock();
  locked_recorder_ = trace_.recorder();
  if (locked_recorder_) locked_recorder_->mutex().lock();
}

void Session::unlock_after_fork() {
  if (locked_recorder_) locked_recorder_->mutex().unlock();
  notes_.mutex().unlock();
  engine_.mutex().unlock();
}

// A capture may neither evict nor recompute: what is there stays, and nothing is recorded.
void Session::begin_capture() {
  scope_.commit_and([this] { requests_.capture_began(); });
}

// ---- Records and figures

void Session::start_trace() {
  Turn turn(locks_);
  TORCH_CHECK(!swap_, "a trace does not tell what was swapped: record it without swap");
  TORCH_CHECK(!memory_->is_torchs(), "a trace needs to know when memory is freed, which torch's "
                                     "CUDA allocator does not tell: record it with memory=\"pool\"");
  const int others = scope_.joined();
  TORCH_CHECK(others == 0, "a trace is of one thread, and ", others,
              " others have joined this scope: record it before they do");
  const Guard guard(locks_);
  trace_.start();
}

TraceRecorder::Records Session::take_trace() {
  std::lock_guard guard(engine_.mutex());
  return trace_.take();
}

void Session::watch() {
  if (memory_->is_torchs() || swap_) return;  // As above.
  Turn turn(locks_);
  Guard guard(locks_);
  trace_.watch();
  if (const Pool* pool = pool_of_values()) tell_what_is_there(*pool, *trace_.recorder());
}

SessionTrace::Seen Session::seen() const {
  std::lock_guard guard(engine_.mutex());
  return trace_.seen();
}

std::optional<StepCosts> Session::step() {
  ++tally_.steps;
  Scope::keep_recording();
  if (!Scope::records_this_thread()) return std::nullopt;
  Guard guard(locks_);
  trace_.stepped();
  events_->note(EventLog::Kind::kStep);
  engine_.end_step();
  if (swap_) swap_->end_step();
  const StepCosts all{tally_.evicted_for_room,
                      to_nanoseconds(tally_.remat_ticks + requests_.search_ticks())};
  const StepCosts before = std::exchange(tally_.at_last_step, all);
  return StepCosts{all.evicted - before.evicted, all.added - before.added};
}

SessionStats Session::stats() const {
  std::lock_guard guard(engine_.mutex());
  const EngineStats engine = engine_.stats();
  const PoolStats pool = memory_->stats();
  const DeviceScorer* device = engine_.eviction().selector().device();
  const SwapStats swap = swap_ ? swap_->stats() : SwapStats();
  const Nanos searching = to_nanoseconds(requests_.search_ticks());
  const Nanos moving = std::min(requests_.moving(), searching);  // Two clocks may differ a little.
#define DTR_VALUE(type, name, value) .name = value,
  return {DTR_SESSION_STATS(DTR_VALUE)};
#undef DTR_VALUE
}

std::vector<std::int64_t> Session::timeline() const {
  std::lock_guard guard(engine_.mutex());
  return tally_.timeline;
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
