#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <utility>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/intercept/dispatch_key.h"
#include "runtime/csrc/live/intercept/interception.h"
#include "runtime/csrc/live/machine/autograd_task.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/operators/libraries.h"
#include "runtime/csrc/live/session/hold.h"

namespace dtr {

constinit thread_local InOperator::State InOperator::state;

namespace {

thread_local bool in_optimizer = false;

void mix(Costs::Key& key, c10::IntArrayRef numbers) {
  for (std::int64_t number : numbers) {
    key = (key ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15;
    key ^= key >> 29;
  }
}

// The operator, the shapes, types and places of what it reads, and whole numbers: what mostly
// decides how long it takes. Fractions do not count: an optimizer's may differ in each step.
Costs::Key cost_key(const Call& call, const torch::jit::Stack& stack) {
  Costs::Key key = reinterpret_cast<std::uintptr_t>(&call.info);
  for (const TensorArgument& argument : call.arguments) {
    const c10::TensorImpl& tensor = *argument.tensor;
    const auto type = static_cast<int>(c10::typeMetaToScalarType(tensor.dtype()));
    const int place = argument.argument << 16 | argument.item;
    mix(key, std::int64_t{place} << 16 | type << 1 | static_cast<int>(tensor.is_contiguous()));
    mix(key, tensor.sizes());
  }
  for (const c10::IValue& value : call.stacked_arguments(stack)) {
    if (value.isInt()) mix(key, value.toInt());
    if (value.isBool()) mix(key, value.toBool());
    if (value.isIntList()) {
      for (const std::int64_t number : value.toIntList()) mix(key, number);
    }
  }
  return key;
}

// A backward pass of first order, or an optimizer's step.
bool differentiating() {
  if (c10::GradMode::is_enabled()) {
    in_optimizer = false;  // A step that raised ran no post hook.
    return false;
  }
  return in_optimizer || in_backward();
}

EventLog::Cause cause_of(const OperatorInfo& info) {
  using enum EventLog::Phase;
  const auto phase = in_optimizer ? kOptimizer : in_backward() ? kBackward : kForward;
  return {.made_by = &info, .site = EventLog::here(), .phase = phase};
}

}  // namespace

void set_in_optimizer(bool inside) {
  Scope::keep_recording();
  in_optimizer = inside;
  Session* session = Session::active();
  if (!inside || !session || !Scope::records_this_thread()) return;
  if (TraceRecorder* recorder = session->trace().recorder())
    recorder->mark(TraceRecorder::kOptimizing);
}

void intercept(const OperatorInfo& info, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (others_have_key() && hand_over(info.handle, keys, stack)) return;
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  Session* session = Session::active();
  if (!session) return info.handle.redispatchBoxed(keys, stack);
  const bool outermost = InOperator::state.depth == 0;
  try {
    Interception(*session).execute(info, keys, stack);
  } catch (const c10::OutOfMemoryError& error) {
    if (!outermost) throw;
    session->notes().told_by_error();
    rethrow_with_advice(error, info.name);
  } catch (c10::Error& error) {
    if (outermost) add_refusal(error);
    throw;
  }
  if (outermost) session->notes().tell_of_caught();
}

void Interception::execute(const OperatorInfo& info, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  if (info.itemwise && execute_itemwise(info, keys, stack)) return;
  Call call{.info = info, .keys = keys};
  call.begin_ticks = ticks();
  call.inside_hold = Hold::inside();
  call.handled = keys.has(c10::DispatchKey::Python);
  gather(call, *stack);
  call.recordable = recordable(call, *stack);
  // Of a nested tensor torch tells no shape. By a logical clock no time counts, and no size
  // is expected.
  if (call.here && !call.foreign && !session_.options().logical_clock) {
    call.key = cost_key(call, *stack);
  }
  call.too_small = makes_too_little(call);
  call.recording = session_.options().record && call.recordable && !call.too_small;

  std::optional<Meanwhile<EventLog::Cause>> cause;
  if (session_.events().keeps()) cause.emplace(EventLog::cause, cause_of(info));
  std::optional<Turn> turn;
  if (takes_turn(call)) turn.emplace(session_.locks());
  if (call.recording) snapshot(call, *stack);

  const bool engages = needs_engine(call);
  const bool meets = !engages && call.here && session_.requests().may_be_new();
  Guard guard(session_.locks(), engages || meets || session_.scope().joined() > 0);
  OperatorCall engaged(session_.engine());
  if (engages || meets) begin(call, engaged, engages, *stack, guard.lock());
  // The other process may wait for what another thread of this one is about to do.
  if (info.waits) turn.reset();
  run_unlocked(call, engaged, stack, guard);
  after(call, engaged, *stack, guard.lock());
  if (call.undeclared) std::rethrow_exception(call.undeclared);
}

// Whether all results are known to be too small for values before they are made.
inline bool Interception::makes_too_little(const Call& call) const {
  return call.recordable && !session_.detector() &&
         session_.tally().small.expected(call.info, call.key);
}

inline bool Interception::needs_engine(const Call& call) const {
  return session_.options().record && (call.recording || call.tracked || call.info.writes);
}

// It writes, or it draws, or may draw.
inline bool Interception::takes_turn(const Call& call) const {
  const OperatorInfo& info = call.info;
  return session_.options().record &&
         (info.writes || info.random || (info.others && call.recording));
}

inline void Interception::begin(Call& call, OperatorCall& engaged, bool engages,
                                const torch::jit::Stack& stack, Lock& lock) {
  try {
    engages ? prepare(call, engaged, stack, lock) : session_.requests().meet_this_stream();
  } catch (...) {
    // Nothing was: what has no reader may move as before.
    session_.swap().adopt_what_was_written(call);
    arm_again(call);
    throw;
  }
}

inline void Interception::run_unlocked(Call& call, OperatorCall& engaged, torch::jit::Stack* stack,
                                       Guard& guard) {
  const OperatorInfo& info = call.info;
  try {
    const UnderWay::Operator under_way(session_.locks().under_way, guard.lock(),
                                       info.waits || info.collective);
    Guard::Opened open(guard);
    run(call, stack);
    if ((info.others || call.host_random) && engaged.op()) look_at_what_it_did(call, *stack);
  } catch (...) {
    after_failure(call, engaged);
    throw;
  }
}

// Whether a recipe of this call could be kept, in a session that records.
bool Interception::recordable(Call& call, const torch::jit::Stack& stack) const {
  const OperatorInfo& info = call.info;
  const bool apart = differentiating();  // Asked of every operator: one may end a step that raised.
  if (apart || !may_record(call)) return false;
  if (info.others && (call.stays = distrusts(info))) return false;
  if (!info.recordable || !(info.fresh || info.writes)) return false;
  if (info.listed && info.returns == 0) return false;  // A graph that only writes.
  if (info.unordered.ever() && differs_in_each_run(call, stack, DeterministicMode::now())) {
    return false;
  }
  return !info.draws_elsewhere(stack);
}

bool Interception::differs_in_each_run(const Call& call, const torch::jit::Stack& stack,
                                       DeterministicMode mode) const {
  return call.info.unordered.differs(call.stacked_arguments(stack),
                                     session_.device().work != nullptr, mode);
}

// Whatever the operator.
inline bool Interception::may_record(const Call& call) const {
  if (!session_.options().record && !session_.trace().recorder()) return false;
  return call.here && !call.foreign && !call.handled && !session_.requests().capturing() &&
         !Hold::here();
}

void Interception::gather(Call& call, const torch::jit::Stack& stack) const {
  const OperatorInfo& info = call.info;
  const c10::ArrayRef<c10::IValue> first = call.stacked_arguments(stack);
  const bool names_device = info.device >= 0 && first[info.device].isDevice();
  const c10::Device device = names_device ? first[info.device].toDevice() : c10::Device(c10::kCPU);
  call.here = device.type() == session_.device().device.type();
  for (std::uint64_t bits = info.tensors; bits; bits &= bits - 1) {
    TensorArgument argument{.argument = static_cast<std::uint8_t>(__builtin_ctzll(bits))};
    argument.written = info.is(info.writes, argument.argument);
    argument.scratch = info.is(info.statistics, argument.argument);
    const bool flagged = argument.scratch && info.training >= 0;
    if (flagged && !first[info.training].toBool()) argument.scratch = argument.written = false;
    for_each_tensor(first[argument.argument], [&](c10::TensorImpl& tensor, std::uint16_t item) {
      argument.tensor = &tensor;
      argument.item = item;
      add_argument(call, argument);
    });
  }
}

void Interception::add_argument(Call& call, TensorArgument& argument) const {
  const c10::TensorImpl& tensor = *argument.tensor;
  const bool here = tensor.device() == session_.device().device;
  call.here |= here;
  if (!session_.device().holds(tensor) || (argument.written && !here)) {
    // A subclass or a nested tensor may lie over a storage that we track, which must be resident, or
    // write one that recipes read.
    call.foreign = true;
    if (!tensor.has_storage() || !tensor.unsafe_storage()) return;
    const bool writes = argument.written && pointer_of(storage_of(tensor)).get();
    if (!writes && !session_.trace().tracks(storage_of(tensor))) return;
  }
  argument.storage = storage_of(tensor);
  const bool tracked = StorageTable::tracked(argument.storage);
  argument.armed = !tracked && is_armed(argument.storage);
  if (argument.armed && call.info.shares) disarm(argument.storage);
  call.bytes += bytes_of(argument.storage);
  call.tracked |= tracked && !call.info.shape_only;
  call.arguments.push_back(argument);
}

void Interception::prepare(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack,
                           Lock& lock) {
  if (call.tracked) prepare_reads(call, engaged, lock);
  if (session_.requests().capturing()) call.recording = false;  // One that began meanwhile.
  if (call.info.writes) prepare_writes(call, engaged, lock);
  // What it reads may be new from another stream.
  if (call.here && !call.tracked) session_.requests().meet_this_stream();
  if (call.recording) record(call, engaged, stack);
}

void Interception::record(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack) {
  const bool times = session_.device().work && at::globalContext().benchmarkCuDNN();
  if (times && call.info.handle.schema().name().find("convolution") != std::string::npos) {
    TORCH_WARN_ONCE(
        "torch.backends.cudnn.benchmark is on: cuDNN then times several algorithms in each thread "
        "and may choose another one where a convolution is recomputed in the backward pass, whose "
        "thread is autograd's. Results may differ in the last bits. They are exact with "
        "torch.backends.cudnn.benchmark = False");
  }
  if (session_.detector()) verify_constants(call);
  const Switches::Number switches = session_.locks().under_way.switches();
  // What recordable() saw may have been a replay's of another thread.
  if (call.info.unordered.ever() &&
      differs_in_each_run(call, stack, Switches::deterministic(switches))) {
    return;
  }
  Op* op = Recipe::record(session_.engine(), call.info, call.keys, stack, call.arguments,
                          std::move(call.random), switches);
  if (!op) return;
  if (session_.events().keeps()) Recipe::of(*op).made_at = EventLog::cause.site;
  engaged.begin(*op);
  if (!call.info.shape_only) link_reads(call, *op);
  for (Value* source : call.sources) {
    if (source) engaged.release(*source);
  }
  call.sources.clear();
}

void Interception::link_reads(Call& call, Op& op) {
  std::uint32_t use = 0;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    TensorArgument& argument = call.arguments[i];
    if (argument.scratch || argument.inlined()) continue;
    Value& source = source_of(call, i);
    session_.engine().read(op, use++, source);
    argument.armed |= kSeesRawAccess && !argument.value;
    if (session_.detector() && source.constant())
      session_.detector()->watch(source, argument.tensor);
  }
}

// What a recipe reads as the call's i-th tensor argument.
Value& Interception::source_of(const Call& call, std::size_t i) {
  if (Value* source = call.source(i)) return *source;
  const TensorArgument& argument = call.arguments[i];
  return argument.value ? *argument.value : session_.constants().of(argument.storage);
}

void Interception::verify_constants(const Call& call) {
  for (const TensorArgument& argument : call.arguments) {
    const Value* constant = argument.value ? nullptr : session_.constants().find(argument.storage);
    if (constant) session_.detector()->verify(*constant, call.info);
  }
}

// The operator itself. The engine's lock is open.
void Interception::run(Call& call, torch::jit::Stack* stack) {
  if (TraceRecorder* recorder = session_.trace().recorder()) {
    for (const TensorArgument& argument : call.arguments) {
      call.held.push_back(share(argument.storage));
    }
    session_.trace().begin(call, *recorder);
  }
  if (!session_.detector()) return run_timed(call, stack);
  const MutationDetector::Arguments seen = session_.detector()->look(call.info, call.arguments);
  run_timed(call, stack);
  try {
    session_.detector()->compare(call.info, seen);
  } catch (const std::exception&) {
    call.undeclared = std::current_exception();
  }
}

void Interception::run_timed(Call& call, torch::jit::Stack* stack) {
  if (call.key != 0 && session_.tally().costs && !session_.requests().capturing()) {
    call.sample = session_.tally().costs->begin(call.key, session_.device().current_stream(),
                                                session_.tally().steps);
  }
  const Pool* pool = call.sample.first ? session_.memory().pool() : nullptr;
  const std::int64_t page_calls = pool ? pool->page_calls() : 0;
  InOperator::State& thread = InOperator::state;
  const std::int64_t start = ticks(), search = thread.search_ticks;
  {
    InOperator inside(call.handled);
    if (call.info.others && !call.info.ran.exchange(true)) thread.first_run = true;
    c10::impl::ExcludeDispatchKeyGuard below(kKey);
    call.info.handle.redispatchBoxed(call.keys, stack);
  }
  call.first_run = std::exchange(thread.first_run, false);
  call.inside_ticks = ticks() - start;
  call.kernel_ticks = call.inside_ticks - (thread.search_ticks - search);
  if (thread.refused > 0) session_.notes().note_caught(call.info);
  if (!call.sample.first) return;
  const bool paged = pool && pool->page_calls() != page_calls;
  const bool disturbed = thread.search_ticks != search || paged;
  session_.tally().costs->end(call.sample, session_.device().current_stream(), disturbed);
}

}  // namespace dtr
