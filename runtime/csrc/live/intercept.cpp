// What happens to one operator inside a scope. The order matters:
//
//   1. Lock the tracked arguments, so that nothing evicts them, and bring the missing ones back.
//   2. Where the operator writes a constant that recipes read: keep the old content for them (a
//      copy, or what rests on it is computed and becomes constant itself).
//   3. Record the recipe, before the call: the call consumes its arguments and advances the
//      generator.
//   4. Run it, with the lock open and interception off for what it calls.
//   5. Adopt the results: fresh storages become values, written ones get a new version. Unlock.
//
// Not recorded, so that their results are constants: first-order backward, whose gradients look
// large and cheap but need the whole backward pass again; optimizer steps, whose state would drag
// its history along; operators that we cannot keep.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "runtime/csrc/live/call.h"
#include "runtime/csrc/live/guard.h"
#include "runtime/csrc/live/hold.h"
#include "runtime/csrc/live/ticks.h"

namespace torch::autograd {
TORCH_API int
get_current_graph_task_id();  // -1 outside a backward pass. Its header costs 20 s to compile.
}

namespace dtr {

thread_local int InOperator::depth = 0;
thread_local std::int64_t InOperator::search_ticks = 0;
thread_local bool InOperator::replaying = false;
thread_local bool InOperator::handled = false;

namespace {

thread_local bool in_optimizer = false;

// Smaller results are constants at birth: a record costs as much as they do. Small integers and
// booleans too, because composite kernels read such arguments (lengths, split points) without
// asking the dispatcher.
constexpr Bytes kSmallestValue = 512;
constexpr Bytes kSmallestIndexValue = Bytes{64} << 10;
constexpr std::uint16_t kLongestWriteChain = 16;

const c10::DispatchKeySet kDense = c10::DispatchKeySet(
    {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU,
     c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutocastCUDA,
     c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

bool is_dense(const c10::TensorImpl& tensor) {
  return (tensor.key_set().raw_repr() & ~kDense.raw_repr()) == 0 && tensor.has_storage();
}

bool worth_evicting(const c10::TensorImpl& tensor, Bytes bytes) {
  c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  bool index = c10::isIntegralType(type, /*includeBool=*/true);
  return bytes >= (index ? kSmallestIndexValue : kSmallestValue);
}

// The operator and the shapes and types of what it reads, or is to make: what decides how long it
// takes.
Costs::Key cost_key(const OperatorInfo& info, const TensorArguments& arguments,
                    const torch::jit::Stack& stack) {
  Costs::Key key = reinterpret_cast<std::uintptr_t>(&info);
  const auto mix = [&](std::uint64_t number) {
    key = (key ^ number) * 0x9e3779b97f4a7c15;
    key ^= key >> 29;
  };
  for (const TensorArgument& argument : arguments) {
    mix(argument.argument << 8 | static_cast<std::uint8_t>(argument.tensor->dtype().itemsize()));
    for (std::int64_t size : argument.tensor->sizes()) mix(static_cast<std::uint64_t>(size));
  }
  for (std::uint32_t i = 0; arguments.empty() && i < info.arguments; ++i) {
    const c10::IValue& value = stack[stack.size() - info.arguments + i];
    if (value.isInt()) mix(static_cast<std::uint64_t>(value.toInt()));
    if (!value.isIntList()) continue;
    for (std::int64_t size : value.toIntVector()) mix(static_cast<std::uint64_t>(size));
  }
  return key;
}

// Until a time is known: five microseconds to launch, and memory at 2 TB/s. Products of matrices
// and convolutions come out too cheap, for the first step only.
Nanos estimate(Bytes bytes) { return 5000 + bytes / 2000; }

}  // namespace

// A dense tensor of the session's device, or a number on the host, which a recipe keeps itself.
bool Session::ours(const c10::TensorImpl& tensor) const {
  if (!is_dense(tensor)) return false;
  if (tensor.device() == device_.device) return true;
  return tensor.is_cpu() &&
         tensor.unsafe_storage().unsafeGetStorageImpl()->nbytes() <= kLargestInline;
}

// In a scope where nothing is: what adopt_outputs and prepare_writes would do.
bool Session::would_track(const Call& call, const c10::TensorImpl& tensor) const {
  if (!ours(tensor)) return false;
  const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (!worth_evicting(tensor, static_cast<Bytes>(storage->nbytes()))) return false;
  return std::ranges::none_of(call.arguments,
                              [&](const auto& argument) { return argument.storage == storage; });
}

bool Session::would_record(const Call& call, TraceRecorder& recorder) const {
  if (!call.recordable || call.info.fresh) return call.recordable;
  bool versions = false, small = true;
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written) continue;
    const bool tracked = recorder.tracks(key_of(argument.storage));
    versions |= tracked;
    small &= tracked || static_cast<Bytes>(argument.storage->nbytes()) <= kLargestCopy;
  }
  return versions && small;
}

void Session::set_in_optimizer(bool inside) {
  in_optimizer = inside;
  Session* session = active();
  if (!inside || !session || !records_this_thread()) return;
  if (TraceRecorder* recorder = session->recorder_) recorder->optimizing();
}

void Session::arm(c10::StorageImpl* storage) {
#if __has_include(<c10/core/StorageMaterializer.h>)
  if (!storage->has_materializer()) storage->set_materializer(&raw_access);
#endif
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (Session* session = Session::active()) {
    try {
      session->execute(operator_info(op), keys, stack);
    } catch (const c10::OutOfMemoryError& error) {
      if (InOperator::depth > 0) throw;
      session->rethrow_with_advice(error);
    }
  } else {
    op.redispatchBoxed(keys, stack);
  }
}

void Session::execute(const OperatorInfo& info, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  std::int64_t begin = ticks();
  Call call{.info = info, .keys = keys};
  call.handled = keys.has(c10::DispatchKey::Python);
  gather(call, *stack);
  if (c10::GradMode::is_enabled()) in_optimizer = false;  // A step that raised ran no post hook.
  bool differentiating = !c10::GradMode::is_enabled() &&
                         (in_optimizer || torch::autograd::get_current_graph_task_id() >= 0);
  call.recordable = (options_.record || recorder_.load()) && call.here && info.recordable &&
                    (info.fresh || info.writes) && !call.foreign && !call.handled &&
                    !differentiating && captures_ == 0 && !Hold::here() &&
                    !info.draws_elsewhere(*stack);
  call.recording = options_.record && call.recordable;

  std::optional<Turn> turn;
  if (options_.record && (info.writes || info.random)) turn.emplace(*this);
  if (call.recording) call.random = Recipe::snapshot(info, *stack, device_);

  Op* op = nullptr;
  if (options_.record && (call.recording || call.tracked || info.writes)) op = before(call, *stack);

  if (TraceRecorder* recorder = recorder_) {
    for (const TensorArgument& argument : call.arguments) {
      call.held.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(argument.storage));
    }
    record_begin(call, *recorder);
  }
  Costs::Sample sample;
  bool timed = costs_ && call.here;
  if (timed) {
    call.cost = cost_key(info, call.arguments, *stack);
    if (captures_ == 0) sample = costs_->begin(call.cost, stream());
  }
  MutationDetector::Arguments seen;
  if (detector_) seen = detector_->look(info, call.arguments);
  std::int64_t start = ticks();
  std::int64_t search = InOperator::search_ticks;
  try {
    InOperator inside(call.handled);
    c10::impl::ExcludeDispatchKeyGuard below(kKey);
    info.handle.redispatchBoxed(keys, stack);
  } catch (...) {
    if (TraceRecorder* recorder = recorder_) recorder->abandon();
    if (timed) costs_->abandon(sample);
    after_failure(call, op);
    throw;
  }
  if (sample.first) costs_->end(sample, stream());
  call.kernel_ticks = ticks() - start - (InOperator::search_ticks - search);
  call.before_ticks = start - begin - call.remat_ticks;
  std::exception_ptr undeclared;
  try {
    if (detector_) detector_->compare(info, seen);
  } catch (...) {
    undeclared = std::current_exception();
  }
  after(call, op, *stack);
  if (undeclared) std::rethrow_exception(undeclared);
}

void Session::gather(Call& call, const torch::jit::Stack& stack) const {
  const OperatorInfo& info = call.info;
  const c10::IValue* first = stack.data() + stack.size() - info.arguments;
  if (info.device >= 0 && first[info.device].isDevice()) {
    call.here = first[info.device].toDevice().type() == device_.device.type();
  } else {
    call.here = device_.device.is_cpu();
  }
  for (std::uint64_t bits = info.tensors; bits; bits &= bits - 1) {
    std::uint8_t argument = static_cast<std::uint8_t>(__builtin_ctzll(bits));
    bool written = info.is(info.writes, argument);
    bool scratch = info.is(info.statistics, argument);
    if (scratch && info.training >= 0 && !first[info.training].toBool()) scratch = written = false;
    for_each_tensor(first[argument], [&](c10::TensorImpl& tensor, std::uint16_t item) {
      call.here |= tensor.device() == device_.device;
      if (!ours(tensor) || (written && tensor.device() != device_.device)) {
        // A subclass or a nested tensor may lie over a storage that we track: it must be resident.
        call.foreign = true;
        if (!tensor.has_storage() || !tensor.unsafe_storage()) return;
        if (!tracked(tensor.unsafe_storage().unsafeGetStorageImpl())) return;
      }
      c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
      call.bytes += static_cast<Bytes>(storage->nbytes());
      call.tracked |= !info.shape_only && tracked(storage);
      call.arguments.push_back({&tensor, storage, nullptr, argument, written, scratch, item});
    });
  }
}

Op* Session::before(Call& call, const torch::jit::Stack& stack) {
  Guard guard(*this);
  bool missing = false;
  if (call.tracked) {
    for (TensorArgument& argument : call.arguments) {
      argument.value = value_of(argument.storage);
      if (!argument.value) continue;
      engine_.lock(*argument.value);
      engine_.touch(*argument.value);
      first_use(*argument.value);
      missing |= !argument.value->resident();
    }
  }
  try {
    if (missing) {
      std::int64_t begin = ticks();
      for (const TensorArgument& argument : call.arguments) {
        if (argument.value && !argument.value->resident())
          bring_back(*argument.value, guard.lock());
      }
      // Policy::kBanish makes constant what was computed from a value that it forgets.
      for (TensorArgument& argument : call.arguments) {
        if (!argument.value || !argument.value->constant()) continue;
        engine_.unlock(*argument.value);
        argument.value = nullptr;
      }
      call.remat_ticks = ticks() - begin;
      watch_for_thrash();
    }
    if (call.tracked && (call.recording || call.info.shares)) {
      for (TensorArgument& argument : call.arguments) {
        if (!argument.value) continue;
        if (!call.info.shares && !engine_.outweighed(*argument.value)) continue;
        make_constant(call, *argument.value);
      }
    }
    if (call.tracked && device_.work && follow_stream()) {
      for (const TensorArgument& argument : call.arguments) {
        if (argument.value) read_on_stream(*argument.value);
      }
    }
    if (call.info.writes) prepare_writes(call, guard.lock());
    if (!call.recording) return nullptr;
    for (const TensorArgument& argument : call.arguments) {
      if (!detector_ || argument.value) continue;
      auto constant = constants_.find(argument.storage);
      if (constant != constants_.end()) detector_->verify(*constant->second, call.info);
    }
    Op* op = Recipe::record(call.info, call.keys, stack, call.arguments, std::move(call.random));
    if (!op || call.info.shape_only) return op;
    std::uint32_t use = 0;
    for (std::size_t i = 0; i < call.arguments.size(); ++i) {
      const TensorArgument& argument = call.arguments[i];
      if (argument.scratch || argument.inlined()) continue;
      Value* source = call.sources.empty() ? nullptr : call.sources[i];
      if (!source) source = argument.value ? argument.value : &constant_for(argument.storage);
      engine_.read(*op, use++, *source);
      if (detector_ && source->constant()) detector_->watch(*source, argument.tensor);
    }
    for (Value* source : call.sources) {
      if (source) engine_.unlock(*source);
    }
    call.sources.clear();
    return op;
  } catch (...) {
    for (Value* source : call.sources) {
      if (source) engine_.unlock(*source);
    }
    for (const TensorArgument& argument : call.arguments) {
      if (argument.value) engine_.unlock(*argument.value);
    }
    throw;
  }
}

// An argument becomes an ordinary tensor, which the operator then reads.
void Session::make_constant(Call& call, Value& value) {
  if (!value.constant()) engine_.freeze(value);
  for (TensorArgument& argument : call.arguments) {
    if (argument.value != &value) continue;
    argument.value = nullptr;
    engine_.unlock(value);
  }
}

// The argument's memory may be evicted, and given to another stream, while an operator of this one
// still reads it: the program need not have said so, since it keeps the tensor. So the pool is told
// of every stream that uses a block. A stream that comes later than a replay waits for it at its
// first operator. The lock is held; a program on one stream pays for a comparison.
bool Session::follow_stream() {
  Stream current = stream();
  if (std::find(streams_.begin(), streams_.end(), current) == streams_.end()) {
    streams_.push_back(current);
    pool_->meet_stream(current);
    if (pool_->many_streams()) pool_->gather_streams(current);
  }
  return pool_->many_streams();
}

void Session::read_on_stream(const Value& value) {
  if (value.constant() || !value.resident()) return;
  pool_->record_stream(static_cast<Block*>(value.data), stream());
}

void Session::prepare_writes(Call& call, Lock& lock) {
  // Statistics that an operator keeps beside its results never get a chain of recipes: each would
  // hold on to a batch.
  bool versions = false, constants = false;
  for (TensorArgument& argument : call.arguments) {
    if (!argument.written) continue;
    Value* value = argument.value;
    if (value && call.info.fresh) {
      if (value->producer && value->home && value->resident()) engine_.freeze(*value);
      argument.value = nullptr;
      engine_.unlock(*value);
    } else if (value) {
      disarm(argument.storage);  // Ours alone: a lazy clone's copies it before it is written.
      versions = true;
    }
    constants |= !argument.value && !argument.scratch;
  }
  call.recording &= call.info.fresh || versions;  // Some result is worth recording.
  if (constants && call.recording) record_written(call, lock);
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const TensorArgument& argument = call.arguments[i];
    bool kept = !call.sources.empty() && call.sources[i];
    if (argument.written && !argument.value && !kept) keep_content(argument.storage, lock);
  }
}

// The recipe of an operator that writes a constant must read what was there before: a copy, which
// only a small one is worth. before() unlocks the sources.
void Session::record_written(Call& call, Lock& lock) {
  for (const TensorArgument& argument : call.arguments) {
    bool constant = argument.written && !argument.value && !argument.scratch;
    call.recording &= !constant || static_cast<Bytes>(argument.storage->nbytes()) <= kLargestCopy;
  }
  // A replay could not give two arguments one memory through two storages.
  call.recording = call.recording && !share_memory(call.arguments);
  if (!call.recording) return;
  call.sources.resize(call.arguments.size(), nullptr);
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const TensorArgument& argument = call.arguments[i];
    if (!argument.written || argument.value || argument.scratch || call.sources[i]) continue;
    Value& constant = constant_for(argument.storage);
    engine_.lock(constant);
    try {
      privatize(constant, lock);
      keep_content(argument.storage, lock);  // What lies over the same memory.
    } catch (...) {
      engine_.unlock(constant);
      throw;
    }
    // The recipe reads the old content through every argument over this storage.
    for (std::size_t j = 0; j < call.arguments.size(); ++j) {
      if (call.arguments[j].storage != argument.storage) continue;
      if (j != i) engine_.lock(constant);
      call.sources[j] = &constant;
    }
  }
}

bool Session::share_memory(const TensorArguments& arguments) {
  c10::SmallVector<std::pair<std::uintptr_t, c10::StorageImpl*>, 8> begins;
  for (const TensorArgument& argument : arguments) {
    void* data = argument.storage->_mutable_data_ptr_no_checks().get();
    begins.emplace_back(reinterpret_cast<std::uintptr_t>(data), argument.storage);
  }
  std::sort(begins.begin(), begins.end());
  std::uintptr_t end = 0;
  c10::StorageImpl* last = nullptr;
  for (auto [begin, storage] : begins) {
    if (storage != last && begin < end) return true;
    end = std::max(end, begin + storage->nbytes());
    last = storage;
  }
  return false;
}

// The storage's memory is about to be written, or handed out to be written at any time.
Session::Exposure Session::keep_content(c10::StorageImpl* storage, Lock& lock) {
  auto constants = constants_over(storage);
  Exposure exposure;
  for (Value* constant : constants) engine_.lock(*constant);
  const auto unlock = [&] {
    for (Value* constant : constants) engine_.unlock(*constant);
  };
  try {
    for (Value* constant : constants) {
      Exposure one = keep_content(*constant, lock);
      exposure.copied += one.copied, exposure.kept += one.kept;
    }
  } catch (...) {
    unlock();
    throw;
  }
  unlock();
  return exposure;
}

// Recipes read this constant. They get a copy, or what rests on them is computed and becomes
// constant itself: whichever is smaller, and the copies that recipes hold already count. Otherwise
// a program that changes its parameters could keep one of each for the sake of a small result.
Session::Exposure Session::keep_content(Value& constant, Lock& lock) {
  if (!constant.uses) return {};
  const Bytes copies = copies_ + constant.size;
  Bytes resting = engine_.resting_on(constant, copies + 1).bytes;
  if (resting > copies) {
    try {
      privatize(constant, lock);
      return {.copied = constant.size};
    } catch (const c10::OutOfMemoryError&) {
      refused_ = 0;
      resting = engine_.resting_on(constant, pool_->budget()).bytes;
    }
  }
  engine_.retire(constant, lock);
  return {.kept = resting};
}

// Gives the recipes that read a constant a copy of their own, locked by the caller.
void Session::privatize(Value& constant, Lock& lock) {
  auto* storage = static_cast<c10::StorageImpl*>(constant.home);
  c10::intrusive_ptr<c10::StorageImpl> copy;
  {
    Unlocked open(lock);
    at::DataPtr data = ordinary(allocate(constant.size, stream()));
    this->copy(data.get(), storage->_mutable_data_ptr_no_checks().get(), constant.size);
    copy = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), constant.size,
                                                 std::move(data), device_.allocator, false);
  }
  constants_.erase(storage);
  library_constants_.erase(storage);
  graveyard_.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim(storage));
  constant.home = constant.data = copy.release();
  constants_[static_cast<c10::StorageImpl*>(constant.home)] = &constant;
  constant.copied = true;
  copies_ += constant.size;
}

void Session::adopt_outputs(Call& call, Op& op, const torch::jit::Stack& stack) {
  const c10::IValue* results = stack.data() + stack.size() - call.info.returns;
  for (std::uint32_t i = 0; i < call.info.returns; ++i) {
    if (!is_defined_tensor(results[i])) continue;
    c10::TensorImpl& tensor = *results[i].unsafeToTensorImpl();
    if (!ours(tensor)) continue;
    c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
    Bytes bytes = static_cast<Bytes>(storage->nbytes());
    if (!worth_evicting(tensor, bytes)) continue;
    bool argument = false;
    for (const TensorArgument& other : call.arguments) argument |= other.storage == storage;
    Block* block = argument ? nullptr : block_of(storage);
    if (!block) continue;
    call.bytes += bytes;
    Value& value = engine_.write(op, i, bytes, storage, block);
    attach(storage, value, block);
    if (!call.info.blank) continue;
    value.unfilled = true;
    engine_.lock(value);
  }
}

// A buffer that is written over and over (a parameter that the program updates by hand) would keep
// a recipe for each write, and all that these read.
bool Session::long_written(Value& value) {
  if (value.version >= kLongestWriteChain) return true;
  return value.version > 0 && engine_.outweighed(value, 1);
}

void Session::after(Call& call, Op* op, const torch::jit::Stack& stack) {
  std::int64_t begin = ticks();
  Guard guard(*this);
  const c10::IValue* results = stack.data() + stack.size() - call.info.returns;
  ++operators_;
  if (costs_ && call.here)
    call.kernel_ticks = to_ticks(costs_->cost(call.cost, estimate(call.bytes)));
  kernel_ticks_ += call.kernel_ticks;
  window_kernel_ += call.kernel_ticks;
  if (op) adopt_outputs(call, *op, stack);

  // A written storage holds another value now: a new version, or what nobody can recompute.
  c10::SmallVector<Value*, 2> old;
  std::uint16_t output = call.info.returns;
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.written) continue;
    std::uint16_t slot = output++;
    Value* value = argument.value;
    if (!value || !value->home) continue;
    Block* block = static_cast<Block*>(value->data);
    c10::StorageImpl* storage = home_of(*value);
    if (storage && value_of(storage) != value) continue;
    old.push_back(value);
    if (!storage) {  // Let go by another thread; what is there is no longer what the recipe makes.
      free(block);
      continue;
    }
    if (op && !long_written(*value)) {
      Value& next = engine_.write(*op, slot, static_cast<Bytes>(storage->nbytes()), storage, block);
      next.version = value->version + 1;
      attach(storage, next, block);
    } else {
      detach(storage, block);
    }
  }
  Nanos cost = options_.logical_clock ? call.bytes : to_nanoseconds(call.kernel_ticks);
  if (TraceRecorder* recorder = recorder_) record_end(call, *recorder, cost, stack);
  engine_.note_operator(call.bytes);
  bool kept = op && op->live_outputs;
  if (op) {
    engine_.finish(*op, cost);
    recorded_ += kept;
    shed_sometimes();
  } else {
    engine_.advance(cost);
  }
  for (Value* value : old) engine_.superseded(*value);

  bool foreign = call.foreign;
  for (std::uint32_t i = 0; i < call.info.returns; ++i) {
    for_each_tensor(results[i], [&](c10::TensorImpl& tensor, std::uint16_t) {
      foreign |= !is_dense(tensor);
      if (detector_) detector_->made(tensor, call.info);
    });
  }
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value) continue;
    if (value->producer && value->home) {
      // A sparse or quantized tensor may hold on to its arguments and read them without the
      // dispatcher.
      if (foreign) {
        engine_.freeze(*value);
      } else {
        arm(static_cast<c10::StorageImpl*>(value->home));
      }
    }
    engine_.unlock(*value);
  }
  bookkeeping_ticks_ += call.before_ticks + ticks() - begin;
  if (options_.timeline) timeline_.push_back(pool_->live());
  // To unlock may banish an argument, and with it the recipe.
  bool lasts = options_.policy != Policy::kBanish;
  if (options_.verify && lasts && kept && !call.info.uninitialized) verify(*op, guard.lock());
  if (options_.evict_always) engine_.evict_all();
}

void Session::after_failure(Call& call, Op* op) {
  Guard guard(*this);
  for (const TensorArgument& argument : call.arguments) {
    Value* value = argument.value;
    if (!value) continue;
    if (!argument.written || !value->home) continue;
    Block* block = static_cast<Block*>(value->data);
    c10::StorageImpl* storage = home_of(*value);
    if (storage && value_of(storage) != value) continue;
    storage ? detach(storage, block) : free(block);  // Perhaps half written: as it is, for ever.
    engine_.superseded(*value);
  }
  if (op) engine_.abandon(*op);
  for (const TensorArgument& argument : call.arguments) {
    if (!argument.value) continue;
    if (argument.value->producer && argument.value->home) {
      arm(static_cast<c10::StorageImpl*>(argument.value->home));
    }
    engine_.unlock(*argument.value);
  }
}

// Runs the recipe at once and compares with what the program got, byte for byte.
void Session::verify(Op& op, Lock& lock) {
  std::vector<Value*> held;
  const auto hold = [&](Value& value) {
    engine_.lock(value);
    held.push_back(&value);
  };
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    if (op.outputs()[i]) hold(*op.outputs()[i]);
  }
  for (std::uint32_t i = 0; i < op.use_count; ++i) hold(*op.uses()[i].value);
  lock.unlock();
  Turn turn(*this);
  lock.lock();
  for (std::uint32_t i = 0; i < op.use_count; ++i) bring_back(*op.uses()[i].value, lock);
  std::string different;
  {
    auto results = replay(op, lock);
    for (std::uint32_t i = 0; i < op.output_count; ++i) {
      Value* value = op.outputs()[i];
      if (!value || !value->resident()) continue;
      const at::Tensor& again = results[i];
      const char* first = static_cast<const char*>(pool_->data(static_cast<Block*>(value->data)));
      const char* second = static_cast<const char*>(again.unsafeGetTensorImpl()
                                                        ->unsafe_storage()
                                                        .unsafeGetStorageImpl()
                                                        ->_mutable_data_ptr_no_checks()
                                                        .get());
      // Only what the tensor shows: bytes that no element covers are never initialised.
      auto sizes = again.sizes();
      auto strides = again.strides();
      std::int64_t item = static_cast<std::int64_t>(again.element_size());
      for (std::int64_t n = 0; n < again.numel() && different.empty(); ++n) {
        std::int64_t rest = n, offset = again.storage_offset();
        for (std::size_t d = sizes.size(); d-- > 0;) {
          offset += rest % sizes[d] * strides[d];
          rest /= sizes[d];
        }
        if (std::memcmp(first + offset * item, second + offset * item, item) != 0) {
          different = c10::str(Recipe::of(op).info().handle.operator_name(), ", output ", i,
                               ", element ", n);
        }
      }
    }
  }
  ++verified_;
  for (Value* value : held) engine_.unlock(*value);
  TORCH_CHECK(different.empty(), "verify: a replay differs from the first run: ", different);
}

}  // namespace dtr
