#include "runtime/csrc/live/session.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/live/guard.h"
#include "runtime/csrc/live/hold.h"
#include "runtime/csrc/live/ticks.h"

namespace dtr {
namespace {

// The text of raw access to an evicted tensor. It is copied at every eviction, hence short.
const char kEvictedText[] =
    "this tensor is evicted: dtr_alloc.materialize(tensor) brings it back; a thread other than the "
    "scope's joins it by dtr_alloc.join_scope(), or gets tensors after dtr_alloc.pin(tensor)";

std::unique_ptr<Arena> arena_for(const SessionOptions& options) {
  Bytes addresses = options.limited ? scope_addresses(options.budget) : options.budget;
  return options.on_cuda ? make_cuda_arena(addresses, options.cuda_device)
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

Nanos unix_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

constexpr Bytes kKib = 1 << 10, kMib = 1 << 20;

std::string in_mib(Bytes bytes) {
  const bool small = bytes < kMib;
  char text[32];
  std::snprintf(text, sizeof text, small ? "%.2f KiB" : "%.2f MiB",
                static_cast<double>(bytes) / (small ? kKib : kMib));
  return text;
}

// Rounded up: for a budget that shall do.
std::string enough_mib(Bytes bytes) {
  const Bytes unit = bytes < kMib ? kKib : kMib;
  return in_mib(((bytes * 100 + unit - 1) / unit * unit + 99) / 100);
}

}  // namespace

std::atomic<Session*> Session::active_{nullptr};

Session::Session(const SessionOptions& options, SessionDevice device)
    : options_(options),
      device_(std::move(device)),
      costs_(device_.work ? std::make_unique<Costs>(*device_.work) : nullptr),
      pool_(Pool::create(arena_for(options), options.budget)),
      engine_(*this, options.heuristic, options.policy),
      detector_(options.debug ? std::make_unique<MutationDetector>() : nullptr) {
  if (auto scorer = device_scorer_for(options)) engine_.score_on(std::move(scorer));
  engine_.shed_before_evicting();
}

Session::~Session() {
  if (active() == this) active_ = nullptr;
}

void Session::claim() {
  Session* last = active();
  if (last && !(last->lingering_ && last->engine_.stats().values == 0)) last = nullptr;
  TORCH_CHECK(active_.compare_exchange_strong(last, this),
              "a dtr_alloc scope is already open in this process; scopes do not nest: leave it first");
}

void Session::record_this_thread(bool on) { c10::impl::tls_set_dispatch_key_included(kKey, on); }

bool Session::records_this_thread() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(kKey);
}

void Session::enter() {
  claim();
  record_this_thread(true);
}

Bytes Session::leave() {
  struct Close {
    Session* session;
    ~Close() {
      record_this_thread(false);
      session->leaving_ = false;
      // Storages that could not be made ordinary still lead here when they die.
      session->lingering_ = true;
      if (session->engine_.stats().values == 0) active_ = nullptr;
    }
  } close{this};
  leaving_ = true;
  end_watch(Watch::kOver);
  commit();
  pool_->trim();
  return spilled_;
}

void Session::join() {
  Turn turn(*this);
  end_watch(Watch::kThreads);
  TORCH_CHECK(!recorder_.load(), "a trace is being recorded, of one thread: others cannot join the scope");
  ++joined_;
  record_this_thread(true);
}

void Session::part() {
  Turn turn(*this);
  record_this_thread(false);
  --joined_;
}

void Session::fail_allocation(std::int64_t k) { allocations_to_failure_ = k; }

void Session::abandon_in_child() {
  record_this_thread(false);
  lingering_ = true;
  if (engine_.stats().values == 0) active_ = nullptr;
}

// ---- Storages -----------------------------------------------------------------------------------

// Needs no lock: of a tracked storage, evicted or not, the deleter stays as it is.
bool Session::tracked(const c10::StorageImpl* storage) {
  return const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get_deleter() ==
         &storage_died;
}

Value* Session::value_of(const c10::StorageImpl* storage) {
  const at::DataPtr& pointer =
      const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &storage_died ? static_cast<Value*>(pointer.get_context())
                                                : nullptr;
}

// The block of an ordinary storage that lies in this session's pool, else null.
Block* Session::block_of(const c10::StorageImpl* storage) const {
  const at::DataPtr& pointer =
      const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != device_.deleter) return nullptr;
  return Pool::owner_of(pointer.get()) == pool_.get() ? pool_->find(pointer.get()) : nullptr;
}

// The storage of a value, alive until the lock is next opened. Null where the program has let it
// go: its deleter may be waiting for the lock in another thread, and what it would do is done at
// once.
c10::StorageImpl* Session::home_of(Value& value) {
  if (!value.home) return nullptr;
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(
      static_cast<c10::StorageImpl*>(value.home));
  c10::intrusive_ptr<c10::StorageImpl> home = weak.lock();
  weak.release();
  if (home) {
    graveyard_.push_back(home);  // Ours may be the last reference by the time it goes.
    return home.get();
  }
  value.dying = true;
  engine_.lock(value);  // The deleter has a pointer to it.
  forget_home(value);
  return nullptr;
}

void Session::forget_home(Value& value) {
  first_use(value);
  if (TraceRecorder* recorder = recorder_) recorder->died(value.home);
  c10::raw::weak_intrusive_ptr::decref(static_cast<c10::StorageImpl*>(value.home));
  engine_.dropped(value);
}

void Session::attach(c10::StorageImpl* storage, Value& value, Block* block) {
  if (!tracked(storage)) c10::raw::weak_intrusive_ptr::incref(storage);
  at::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = at::DataPtr(pool_->data(block), &value, &storage_died, device_.device);
  block->owner = &value;
  arm(storage);
  if (TraceRecorder* recorder = recorder_) {
    recorder->rekey(pool_->data(block), storage);
    value.name = recorder->name_of(storage);
  }
}

void Session::detach(c10::StorageImpl* storage, Block* block) {
  at::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  pointer.release_context();
  c10::raw::weak_intrusive_ptr::decref(storage);
  pointer = ordinary(pool_->data(block));
  block->owner = nullptr;
  disarm(storage);
  // From now on no operator tells the pool who reads it (follow_stream).
  if (pool_->many_streams()) pool_->record_every_stream(block);
  if (TraceRecorder* recorder = recorder_) recorder->rekey(storage, pool_->data(block));
}

Value& Session::constant_for(c10::StorageImpl* storage) {
  Value*& slot = constants_[storage];
  if (!slot) {
    if (of_library(storage)) library_constants_.insert(storage);
    c10::raw::intrusive_ptr::incref(storage);
    slot = &engine_.constant(storage->nbytes(), storage, storage);
  }
  return *slot;
}

bool Session::overlap(c10::StorageImpl* one, c10::StorageImpl* other) {
  auto* a = static_cast<const char*>(one->_mutable_data_ptr_no_checks().get());
  auto* b = static_cast<const char*>(other->_mutable_data_ptr_no_checks().get());
  return a < b + other->nbytes() && b < a + one->nbytes();
}

// Whether others may have a name for its memory too: torch's allocators did not make it.
bool Session::of_library(const c10::StorageImpl* storage) const {
  c10::DeleterFnPtr deleter =
      const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get_deleter();
  return deleter != device_.deleter && deleter != &storage_died &&
         deleter != c10::GetDefaultCPUAllocator()->raw_deleter();
}

// What recipes read of the memory that `storage` lies over: through it, or, where a library has
// handed the memory out twice (from_numpy, DLPack), through another storage.
c10::SmallVector<Value*, 4> Session::constants_over(c10::StorageImpl* storage) const {
  c10::SmallVector<Value*, 4> found;
  if (auto own = constants_.find(storage); own != constants_.end()) found.push_back(own->second);
  if (of_library(storage)) {
    for (const auto& [other, constant] : constants_) {
      if (other != storage && overlap(other, storage)) found.push_back(constant);
    }
  } else {
    for (c10::StorageImpl* other : library_constants_) {
      if (overlap(other, storage)) found.push_back(constants_.at(other));
    }
  }
  return found;
}

// The result of `empty` is about to be filled: by an operator, which comes here, or through a
// pointer by the kernel that asked for it, which must not find it evicted. Hence the lock.
void Session::first_use(Value& value) {
  if (!value.unfilled) return;
  value.unfilled = false;
  engine_.unlock(value);
}

// ---- Executor -----------------------------------------------------------------------------------

void Session::free(Block* block) {
  block->owner = nullptr;
  pool_->free(block);
}

void Session::release(Value& value, Loss loss) {
  TraceRecorder* recorder = recorder_;
  if (recorder && loss == Loss::kEvicted) recorder->evicted(value);
  free(static_cast<Block*>(value.data));
  if (keeps_events_ && loss == Loss::kEvicted) {
    events_.push_back(
        {true, unix_ns(), 0, &Recipe::of(*value.producer).info(), value.size, pool_->stats().live});
  }
  c10::StorageImpl* storage = home_of(value);
  if (!storage) return;
  at::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = at::DataPtr(nullptr, &value, &storage_died, device_.device);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kEvictedText);
}

void Session::settle(Value& value) {
  Block* block = static_cast<Block*>(value.data);
  if (value.unfilled) {
    value.unfilled = false;
    --value.locks;
  }
  c10::StorageImpl* storage = home_of(value);
  if (!storage) {
    block->owner = nullptr;
    auto kept =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), value.size,
                                              ordinary(pool_->data(block)), nullptr, false);
    value.home = value.data = kept.release();
    if (detector_) detector_->watch(value, nullptr);
    return;
  }
  TraceRecorder* recorder = recorder_;
  if (recorder && !leaving_ && !making_room_) recorder->froze(storage);
  detach(storage, block);
  if (leaving_) settled_.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  c10::raw::intrusive_ptr::incref(storage);
  value.data = storage;
  constants_[storage] = &value;
  if (detector_ && value.uses) detector_->watch(value, nullptr);
}

std::pair<Bytes, Bytes> Session::free_neighbours(const Value& value) const {
  return pool_->free_neighbours(static_cast<const Block*>(value.data));
}

bool Session::kept_for_recipes(const Value& constant) const {
  return c10::raw::intrusive_ptr::use_count(static_cast<c10::StorageImpl*>(constant.data)) == 1;
}

void Session::forget(Value& value) {
  if (value.copied) copies_ -= value.size;
  if (detector_) detector_->forget(value);
  auto* storage = static_cast<c10::StorageImpl*>(value.home);
  auto found = constants_.find(storage);
  if (found != constants_.end() && found->second == &value) {
    constants_.erase(found);
    library_constants_.erase(storage);
  }
  graveyard_.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim(storage));
}

void Session::forget(Op& op) { Recipe::of(op).destroy(); }

c10::SmallVector<at::Tensor, 4> Session::replay(Op& op, Lock& lock) {
  const Recipe& recipe = Recipe::of(op);
  c10::SmallVector<c10::Storage, 8> storages;
  struct Copy {
    std::uint32_t use;
    const void* from;
    Bytes size;
  };
  c10::SmallVector<Copy, 2> copies;
  const auto storage_over = [&](at::DataPtr&& data, Bytes size) {
    return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data), device_.allocator,
                        true);
  };
  Use* uses = op.uses();
  for (std::uint32_t i = 0; detector_ && i < op.use_count; ++i) {
    if (uses[i].value->constant()) detector_->verify(*uses[i].value, recipe.info());
  }
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    Value& value = *uses[i].value;
    bool written = false;
    std::int32_t places = 0;
    std::uint32_t first = i;
    for (std::uint32_t j = 0; recipe.writes() && j < op.use_count; ++j) {
      if (uses[j].value != &value) continue;
      first = std::min(first, j);
      written |= recipe.writes(j);
      ++places;
    }
    if (first < i) {
      storages.push_back(storages[first]);
      continue;
    }
    void* content =
        value.constant()
            ? static_cast<c10::StorageImpl*>(value.data)->_mutable_data_ptr_no_checks().get()
            : pool_->data(static_cast<Block*>(value.data));
    TORCH_CHECK(content || value.size == 0,
                "a storage that ", recipe.info().handle.operator_name(),
                " read was resized behind PyTorch's dispatcher; its result cannot be recomputed");
    if (!written) {
      storages.emplace_back(c10::Storage::use_byte_size_t(), value.size,
                            at::DataPtr(content, device_.device));
    } else if (!value.constant() && !value.home && value.locks == places) {
      static_cast<Block*>(value.data)->owner = nullptr;
      engine_.steal(value);
      storages.push_back(storage_over(ordinary(content), value.size));
    } else {
      copies.push_back({i, content, value.size});
      storages.emplace_back(storage_over(at::DataPtr(nullptr, device_.device), value.size));
    }
  }
  struct Quiet {  // A replay is not the program's doing.
    Quiet() { InOperator::replaying = true; }
    ~Quiet() { InOperator::replaying = false; }
  } quiet;
  const auto scratch = recipe.scratch();
  if (!copies.empty() || !scratch.empty()) {
    Unlocked open(lock);
    for (Bytes size : scratch)
      storages.push_back(storage_over(ordinary(allocate(size, stream())), size));
    for (const Copy& copy : copies) {
      at::DataPtr data = ordinary(allocate(copy.size, stream()));
      this->copy(data.get(), copy.from, copy.size);
      storages[copy.use].unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    }
  }
  Replay ready = recipe.prepare(storages, device_);
  storages.clear();
  {
    Unlocked open(lock);
    InOperator inside;
    RECORD_FUNCTION(c10::str("dtr::rematerialize(", ready.info->handle.operator_name(), ")"),
                    c10::ArrayRef<const c10::IValue>{});
    ready.run();
  }
  c10::SmallVector<at::Tensor, 4> results;
  for (const c10::IValue& result : ready.stack) {
    results.push_back(result.isTensor() ? result.toTensor() : at::Tensor());
  }
  for (at::Tensor& tensor : ready.written) results.push_back(std::move(tensor));
  return results;
}

// With several streams, a replay comes after all that they were given, and they go on after it: one
// may have made what it reads, another may read what it makes.
void Session::run(Op& op, Lock& lock) {
  std::int64_t begin = ticks();
  const Nanos at = keeps_events_ ? unix_ns() : 0;
  Bytes back = 0;
  if (device_.work) pool_->meet_stream(stream());
  if (pool_->many_streams()) pool_->gather_streams(stream());
  auto results = replay(op, lock);
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value || value->resident()) continue;
    c10::StorageImpl* storage =
        results[i].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    Block* block = block_of(storage);
    TORCH_INTERNAL_ASSERT(block && static_cast<Bytes>(storage->nbytes()) == value->size,
                          "a replay of ", Recipe::of(op).info().handle.operator_name(),
                          " made a storage of ", storage->nbytes(), " bytes, the first run one of ",
                          value->size);
    at::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
    pointer.release_context();
    pointer = at::DataPtr();
    if (c10::StorageImpl* home = home_of(*value)) {
      readmit(*home);
      attach(home, *value, block);
    } else {
      block->owner = value;
    }
    engine_.restore(*value, block);
    back += value->size;
  }
  if (pool_->many_streams()) pool_->spread_stream(stream());
  std::int64_t passed = costs_ ? to_ticks(op.cost) : ticks() - begin;
  remat_ticks_ += passed;
  window_remat_ += passed;
  if (keeps_events_) {
    events_.push_back(
        {false, at, to_nanoseconds(passed), &Recipe::of(op).info(), back, pool_->stats().live});
  }
}

void Session::bring_back(Value& value, Lock& lock) {
  engine_.lock(value);
  lock.unlock();
  Turn turn(*this);
  lock.lock();
  try {
    engine_.materialize(value, lock);
  } catch (...) {
    engine_.unlock(value);
    throw;
  }
  engine_.unlock(value);
}

// A budget far below what the program needs does not fail by itself: it recomputes for ever. A
// window is two seconds and a hundred operators of the program: a single long chain that comes back
// once is no thrashing.
void Session::watch_for_thrash() {
  constexpr std::int64_t kWindowOperators = 100;
  constexpr Nanos kWindow = 2'000'000'000;
  if (operators_ - window_start_ < kWindowOperators || options_.thrash_limit == 0) return;
  if (to_nanoseconds(window_remat_ + window_kernel_) < kWindow) return;
  double ratio = static_cast<double>(window_remat_) / static_cast<double>(window_kernel_ + 1);
  window_remat_ = window_kernel_ = 0;
  window_start_ = operators_;
  if (ratio <= options_.thrash_limit) return;
  refused_ = pool_->budget() + kGranule;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "budget ", in_mib(pool_->budget()),
                   ": the program recomputes ", static_cast<std::int64_t>(ratio),
                   " times longer than it computes, which is above the limit of ",
                   options_.thrash_limit, "; raise the budget to at least ",
                   in_mib(pool_->budget() + pool_->budget() / 4),
                   ", or set thrash_limit=0 to go on regardless");
}

// ---- Allocation ---------------------------------------------------------------------------------

void* Session::allocate(std::size_t bytes, Stream stream) {
  Bytes asked = static_cast<Bytes>(bytes);
  bool fails = allocations_to_failure_ > 0 && --allocations_to_failure_ == 0;
  std::string shortage;  // What the machine said, where it has less than the budget.
  const auto take = [&](Fit fit) -> Block* {
    try {
      return pool_->allocate(asked, fit, stream);
    } catch (const std::bad_alloc& error) {
      shortage = error.what();
      return nullptr;
    }
  };
  Block* block = fails ? nullptr : take(Fit::kCommitted);
  if (!block) {
    std::int64_t begin = ticks();
    Guard guard(*this);
    bool may_evict = captures_ == 0 && !InOperator::handled;
    const auto take_again = [&](Fit fit) {
      if (!graveyard_.empty()) bury(guard.lock());  // What was shed.
      return take(fit);
    };
    if (!fails) {
      making_room_ = true;  // What is shed for it, a simulation finds out itself.
      block = allocate_evicting(*pool_, engine_, move_prices(), asked, take_again, may_evict);
      making_room_ = false;
    }
    if (!block) out_of_memory(asked, shortage);
    std::int64_t passed = ticks() - begin;
    search_ticks_ += passed;
    InOperator::search_ticks += passed;
  }
  TraceRecorder* recorder = recorder_;
  if (recorder && !InOperator::replaying) recorder->allocated(pool_->data(block), asked);
  return pool_->data(block);
}

// Once for each doubling of the constants that recipes read: a program may keep a small result of
// each batch, and never want for memory.
void Session::shed_sometimes() {
  if (constants_.size() < shed_at_) return;
  std::vector<Value*> kept;
  for (const auto& [storage, constant] : constants_) {
    if (constant->uses && kept_for_recipes(*constant)) kept.push_back(constant);
  }
  for (Value* constant : kept) engine_.lock(*constant);
  for (Value* constant : kept) engine_.shed(*constant);
  for (Value* constant : kept) engine_.unlock(*constant);
  shed_at_ = 2 * constants_.size() + kFirstShedding;
}

// A repeatable run must not hang on what a machine can do.
MovePrices Session::move_prices() const {
  return options_.logical_clock ? MovePrices::usual(pool_->arena().page())
                                : pool_->arena().move_prices();
}

void Session::out_of_memory(Bytes asked, const std::string& shortage) {
  refused_ = 0;  // Of an error that nobody took on.
  PoolStats pool = pool_->stats();
  Bytes locked = engine_.locked_bytes();
  Bytes floor = std::max(pool.live + round_to_granule(asked), pool.budget + kGranule);
  Bytes largest = engine_.stats().largest_operator;
  TORCH_CHECK_WITH(OutOfMemoryError, shortage.empty(), "budget ", in_mib(pool.budget), ": ",
                   in_mib(asked),
                   " asked and within the budget, but the machine has not the memory (", shortage,
                   ") and nothing is left to evict; other programs may hold it: lower the "
                   "budget to about ",
                   in_mib(pool.committed), ", or stop them");
  TORCH_CHECK_WITH(OutOfMemoryError, !InOperator::handled, "budget ", in_mib(pool.budget), ": ",
                   in_mib(asked), " asked, ", in_mib(pool.budget - pool.live),
                   " free; this torch hides what tensor subclasses and dispatch modes call, so "
                   "nothing is evicted inside them: raise the budget to at least ",
                   enough_mib(floor), ", or take torch 2.13 or later");
  std::string exposed;
  for (const std::string& text : exposures_) exposed += (exposed.empty() ? "" : ", ") + text;
  if (!exposed.empty()) exposed = "memory was handed out by " + exposed + "; ";
  refused_ = floor;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "budget ", in_mib(pool.budget), ": ", in_mib(asked), " asked, ",
      in_mib(pool.budget - pool.live),
      pool.live + round_to_granule(asked) <= pool.budget ? " free but in smaller pieces" : " free",
      ", nothing left to evict: ", in_mib(locked),
      " are read by operators now running or being recomputed, ", in_mib(pool.live - locked),
      " cannot be recomputed (gradients, optimizer state, inputs, exposed or pinned tensors); ",
      forked_ ? "what was in memory when this process forked (a DataLoader's workers) is among "
                "that; "
              : "",
      exposed, "the largest operator so far needs ", in_mib(largest),
      "; raise the budget to at least ", enough_mib(floor));
}

// ---- By hand ------------------------------------------------------------------------------------

namespace {
c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}
}  // namespace

bool Session::evict(const at::Tensor& tensor) {
  Guard guard(*this);
  c10::StorageImpl* storage = storage_of(tensor);
  Value* value = storage ? value_of(storage) : nullptr;
  if (!value || !value->resident() || value->locks) return false;
  engine_.evict(*value);
  return true;
}

void Session::materialize(const at::Tensor& tensor) {
  Guard guard(*this);
  c10::StorageImpl* storage = storage_of(tensor);
  Value* value = storage ? value_of(storage) : nullptr;
  if (value && !value->resident()) bring_back(*value, guard.lock());
}

void Session::pin(const at::Tensor& tensor) {
  Guard guard(*this);
  c10::StorageImpl* storage = storage_of(tensor);
  Value* value = storage ? value_of(storage) : nullptr;
  if (!value) return;
  if (!value->resident()) bring_back(*value, guard.lock());
  value = value_of(storage);
  if (value && value->resident()) engine_.freeze(*value);
}

Session::Exposure Session::expose(const at::Tensor& tensor) {
  if (InOperator::depth && !is_evicted(tensor)) return {};
  c10::StorageImpl* storage = storage_of(tensor);
  if (!storage) return {};
  Turn turn(*this);
  Guard guard(*this);
  if (Hold::here() && Hold::covers(value_of(storage))) return {};
  return hand_out(*storage, guard.lock());
}

Session::Exposure Session::hand_out(c10::StorageImpl& storage, Lock& lock) {
  Bytes tracked = 0;
  if (Value* value = value_of(&storage)) {
    if (!value->resident()) bring_back(*value, lock);
    value = value_of(&storage);
    tracked = value ? value->size : 0;
    if (value && value->resident()) let_write(*value, storage);
  }
  Exposure exposure = keep_content(&storage, lock);
  TraceRecorder* recorder = recorder_;
  if (recorder && !options_.record) recorder->froze(key_of(&storage));
  exposure.kept += tracked;
  return exposure;
}

// From now on the program may write a storage without telling: it is an ordinary one. Its value
// stays for the recipes that read it, without memory.
void Session::let_write(Value& value, c10::StorageImpl& storage) {
  first_use(value);
  if (TraceRecorder* recorder = recorder_) recorder->froze(&storage);
  detach(&storage, static_cast<Block*>(value.data));
  engine_.superseded(value);
}

// Lets go, with the lock open, what must not die under it.
void Session::bury(Lock& lock) {
  auto dead = std::move(graveyard_);
  graveyard_.clear();
  lock.unlock();
  dead.clear();
  lock.lock();
}

void Session::note_exposure(std::string text) {
  std::lock_guard<std::mutex> guard(engine_.mutex());
  exposures_.push_back(std::move(text));
}

std::vector<std::string> Session::exposures() const {
  std::lock_guard<std::mutex> guard(const_cast<Engine&>(engine_).mutex());
  return exposures_;
}

thread_local int Session::Reading::depth = 0;

Session::Reading::Reading(Session& session, const at::Tensor& tensor) : session_(session) {
  Guard guard(session_);
  c10::StorageImpl* storage = storage_of(tensor);
  Value* value = storage ? value_of(storage) : nullptr;
  if (value) {
    session_.engine_.lock(*value);
    try {
      if (!value->resident()) session_.bring_back(*value, guard.lock());
    } catch (...) {
      session_.engine_.unlock(*value);
      throw;
    }
  }
  value_ = value;
  ++depth;
}

Session::Reading::~Reading() {
  --depth;
  if (!value_) return;
  Guard guard(session_);
  if (value_->producer && value_->home) session_.arm(static_cast<c10::StorageImpl*>(value_->home));
  session_.engine_.unlock(*value_);
}

bool Session::is_evicted(const at::Tensor& tensor) const {
  std::lock_guard<std::mutex> guard(const_cast<Engine&>(engine_).mutex());
  c10::StorageImpl* storage = storage_of(tensor);
  Value* value = storage ? value_of(storage) : nullptr;
  return value && !value->resident();
}

void Session::storage_died(void* context) {
  Session* session = active();
  if (!session) return;  // A forked child: the record is the parent's.
  Guard guard(*session);
  Value& value = *static_cast<Value*>(context);
  if (!value.dying) {
    Hold::died(value);
    return session->forget_home(value);
  }
  value.dying = false;
  session->engine_.unlock(value);
}

void Session::raw_access(c10::StorageImpl* storage) {
  Session* session = active();
  if (!session || InOperator::depth || Reading::depth) return;
  Guard guard(*session);
  Value* value = value_of(storage);
  if (!value || !value->resident() || Hold::covers(value)) return;
  value->locks ? session->engine_.freeze(*value) : session->let_write(*value, *storage);
}

// ---- Commit -------------------------------------------------------------------------------------

void Session::commit() {
  Turn turn(*this);
  {
    Guard guard(*this);
    engine_.commit(guard.lock(), [this] { return leaving_ && spill(); });
  }
  settled_.clear();
}

void Session::commit_before_fork() {
  forked_ = true;
  commit();
}

// What outlives the scope and does not fit the budget together goes to ordinary memory: nothing is
// lost, and the pool still keeps its bound. The lock is held.
bool Session::spill() {
  Bytes moved = 0;
  for (const auto& storage : settled_) {
    Block* block = block_of(storage.get());
    if (!block) continue;
    std::size_t bytes = storage->nbytes();
    at::DataPtr copy = c10::GetDefaultCPUAllocator()->allocate(bytes);
    std::memcpy(copy.get(), pool_->data(block), bytes);
    storage->_mutable_data_ptr_no_checks() = std::move(copy);
    moved += static_cast<Bytes>(bytes);
  }
  graveyard_.insert(graveyard_.end(), settled_.begin(), settled_.end());
  settled_.clear();
  spilled_ += moved;
  return moved > 0;
}

void Session::step() {
  if (!records_this_thread()) return;
  if (TraceRecorder* recorder = recorder_) recorder->stepped();
  if (watch_ == Watch::kOn && ++watched_steps_ == kWatchedSteps) end_watch(Watch::kOver);
}

// ---- Device -------------------------------------------------------------------------------------

void Session::copy(void* to, const void* from, Bytes bytes) {
  if (device_.work) {
    device_.work->copy(to, from, bytes, stream());
  } else {
    std::memcpy(to, from, bytes);
  }
}

void Session::begin_capture() {
  commit();
  ++captures_;
}

void Session::end_capture() { --captures_; }

// ---- Figures ------------------------------------------------------------------------------------

SessionStats Session::stats() const {
  std::lock_guard<std::mutex> guard(const_cast<Engine&>(engine_).mutex());
  EngineStats engine = engine_.stats();
  PoolStats pool = pool_->stats();
  const DeviceScorer* device = engine_.device_scorer();
  return {.operators = operators_,
          .recorded = recorded_,
          .evictions = engine.evictions,
          .rematerializations = engine.rematerializations,
          .records = engine.values + engine.ops,
          .kernel_ns = to_nanoseconds(kernel_ticks_),
          .remat_ns = to_nanoseconds(remat_ticks_),
          .search_ns = to_nanoseconds(search_ticks_),
          .bookkeeping_ns = to_nanoseconds(bookkeeping_ticks_),
          .verified = verified_,
          .time_stamps = costs_ ? costs_->stamps() : 0,
          .device_choices = device ? device->choices() : 0,
          .device_scores_from = device && device->threshold() != kNever
                                    ? static_cast<std::int64_t>(device->threshold())
                                    : -1,
          .live_bytes = pool.live,
          .peak_bytes = pool.peak,
          .evictable_bytes = engine.evictable,
          .largest_operator_bytes = engine.largest_operator};
}

std::vector<std::int64_t> Session::timeline() const {
  std::lock_guard<std::mutex> guard(const_cast<Engine&>(engine_).mutex());
  return timeline_;
}

void Session::keep_events() {
  std::lock_guard<std::mutex> guard(engine_.mutex());
  keeps_events_ = true;
}

std::vector<Session::Event> Session::events() const {
  std::lock_guard<std::mutex> guard(const_cast<Engine&>(engine_).mutex());
  return events_;
}

void Session::check() const {
  pool_->check();
  std::lock_guard<std::mutex> guard(const_cast<Engine&>(engine_).mutex());
  engine_.check();
}

void Session::lock_for_fork() {
  if (Session* session = active()) session->engine_.mutex().lock();
}

void Session::unlock_after_fork() {
  if (Session* session = active()) session->engine_.mutex().unlock();
}

}  // namespace dtr
