#include "runtime/csrc/live/intercept/dispatch_key.h"

#include <torch/library.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/csrc/live/machine/fake_mode.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/operators/pointer_readers.h"
#include "runtime/csrc/live/recipes/call.h"
#include "runtime/csrc/live/session/scope.h"

namespace dtr {
namespace {

// The dispatcher's entry of an operator, which torch keeps private: an explicit instantiation may
// name it (torch 2.11 to 2.15).
auto& definition_of(const c10::OperatorHandle& op);
template <auto member>
struct Definition {
  friend auto& definition_of(const c10::OperatorHandle& op) { return *(op.*member); }
};
template struct Definition<&c10::OperatorHandle::operatorDef_>;

c10::impl::OperatorEntry& entry_of(const c10::OperatorHandle& op) { return definition_of(op).op; }

// Before torch 2.14 nothing tells a fake mode in C++ from ours but the thread's bit. A thread that
// belonged to a scope, which another thread has left, may still have that.
bool is_for_others(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (fake_mode_is_on()) return true;
  bool fake = false;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](c10::TensorImpl& tensor, std::uint16_t) {
      fake |= tensor.key_set().has(kKey);
    });
  }
  return fake || (!Scope::active() && !Scope::part_if_member());
}

void redispatch_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// For what would have a fallthrough if nobody else had the key.
void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (others_have_key() && hand_over(op, keys, stack)) return;
  redispatch_below(op, keys, stack);
}

// Our kernel of an operator, whose facts it looks up once.
class Intercepting : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const OperatorInfo* info = info_.load(std::memory_order_acquire);
    if (!info || info->gone) info_.store(info = &operator_info(op), std::memory_order_release);
    intercept(*info, keys, stack);
  }

 private:
  std::atomic<const OperatorInfo*> info_ = nullptr;
};

// Takes the place of a kernel that somebody else has for one operator.
class Shared final : public Intercepting {
 public:
  Shared(c10::KernelFunction theirs, bool passes) : theirs_(std::move(theirs)), passes_(passes) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const bool is_theirs = is_for_others(op, *stack);
    if (is_theirs && !theirs_.isFallthrough()) return theirs_.callBoxed(op, keys, stack);
    if (is_theirs || passes_) return redispatch_below(op, keys, stack);
    Intercepting::operator()(op, keys, stack);
  }

 private:
  c10::KernelFunction theirs_;
  bool passes_;
};

template <class Kernel>
c10::KernelFunction boxed(std::unique_ptr<Kernel> kernel) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel));
}

c10::KernelFunction kernel_for(bool passes) {
  if (!passes) return boxed(std::make_unique<Intercepting>());
  return others_have_key() ? c10::KernelFunction::makeFromBoxedFunction<&pass>()
                           : c10::KernelFunction::makeFallthrough();
}

c10::KernelFunction shared(const c10::KernelFunction& theirs, bool passes) {
  return boxed(std::make_unique<Shared>(theirs, passes));
}

// Operators of ours, of which none may be intercepted by name: their kernels are registered with
// them, and one has no kernel on the key, so that the fallback is found there.
constexpr std::string_view kOurs = "dtr_alloc::";
constexpr const char* kWithoutKernel = "dtr_alloc::has_no_kernel";

// Keeps every operator's kernel on the key. All is guarded by the dispatcher's lock, with which the
// dispatcher calls a listener: OperatorEntry::registerKernel requires it, and torch::Library would
// wait for it.
class Kernels final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    if (op.schema().name().starts_with(kOurs) || pointer_reader(op)) return;
    all_.push_back({op, passes_over_us(op)});
    // Outside of a scope the next one does. By then the operator has what its library gives it on
    // the key: torch would warn of a second kernel there.
    if (Scope::active()) take(all_.back());
  }

  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    forget_operator(op);
    std::erase_if(all_, [&](const Operator& one) { return one.handle == op; });
  }

  void take_all() {
    for (const Operator& one : all_) take(one);
  }

 private:
  struct Operator {
    c10::OperatorHandle handle;
    bool passes;
  };

  // Puts ours in front of what else is there on the key, or in place of a fallthrough of ours that
  // would hide the operator from a fallback. The dispatcher calls the kernel in front.
  void take(const Operator& one) {
    auto& entry = entry_of(one.handle);
    const auto& dispatcher = c10::Dispatcher::singleton();
    if (!entry.hasKernelForDispatchKey(kKey)) {
      entry.registerKernel(dispatcher, kKey, kernel_for(one.passes), std::nullopt, nullptr,
                           "dtr_alloc");
      return;
    }
    auto& front = const_cast<c10::KernelFunction&>(entry.kernelForDispatchKey(kKey));
    const c10::KernelFunction& ours = one.passes ? kernel_for(true) : intercepting_;
    if (is(front, ours) || is(front, shared_)) return;
    const bool passed = one.passes && (front.isFallthrough() || is(front, pass_));
    front = passed ? ours : shared(front, one.passes);
    entry.updateFallback(dispatcher, kKey);
  }

  static bool is(const c10::KernelFunction& one, const c10::KernelFunction& other) {
    return one._equalsBoxedAndUnboxed(other);  // Compares the functions, not what they hold.
  }

  std::vector<Operator> all_;
  const c10::KernelFunction pass_ = c10::KernelFunction::makeFromBoxedFunction<&pass>();
  // To compare with: each operator has its own.
  const c10::KernelFunction intercepting_ = kernel_for(false), shared_ = shared({}, false);
};

Kernels* kernels = nullptr;  // The dispatcher's, for as long as the process lives.

// The dispatcher tells a new listener of all operators, with its lock held.
class Once final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {
    if (!std::exchange(done_, true)) kernels->take_all();
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

 private:
  bool done_ = false;
};

void notice_others() {
  static std::atomic<bool> noticed = false;
  if (noticed.load(std::memory_order_relaxed) || !others_have_key()) return;
  if (!noticed.exchange(true)) take_key();
}

}  // namespace

bool hand_over(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  notice_others();
  if (!is_for_others(op, *stack)) return false;
  static const c10::OperatorHandle without =
      c10::Dispatcher::singleton().findSchemaOrThrow(kWithoutKernel, "");
  const c10::KernelFunction& theirs = entry_of(without).lookup(c10::DispatchKeySet(kKey));
  if (theirs.isFallthrough()) return false;
  theirs.callBoxed(op, keys, stack);
  return true;
}

void take_key() { c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Once>()); }

void register_interception() {
  static auto* library =  // Registrations live as long as the process.
      new torch::Library(torch::Library::FRAGMENT, "dtr_alloc", std::nullopt, __FILE__, __LINE__);
  library->def("has_no_kernel(Tensor x) -> Tensor");
  auto listener = std::make_unique<Kernels>();
  kernels = listener.get();
  static auto* all = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::move(listener)));
  static_cast<void>(all);
  take_key();
}

}  // namespace dtr
