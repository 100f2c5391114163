#include "runtime/csrc/live/intercept/dispatch_key.h"

#include <torch/library.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/csrc/live/machine/autograd_task.h"
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

// For what would have a fallthrough if nobody else had the key.
void pass(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (others_have_key() && hand_over(op, keys, stack)) return;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

c10::KernelFunction kernel_for(bool passes) {
  if (!passes) return c10::KernelFunction::makeFromBoxedFunction<&intercept>();
  return others_have_key() ? c10::KernelFunction::makeFromBoxedFunction<&pass>()
                           : c10::KernelFunction::makeFallthrough();
}

bool is_ours(const c10::KernelFunction& kernel, bool passes) {
  if (!passes) return kernel._equalsBoxedAndUnboxed(kernel_for(false));
  return kernel.isFallthrough() ||
         kernel._equalsBoxedAndUnboxed(c10::KernelFunction::makeFromBoxedFunction<&pass>());
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
    auto& entry = entry_of(op);
    Kernel kernel{op, passes_over_us(op), std::nullopt};
    // An entry that outlived its operator's definition has our kernel already.
    if (!entry.hasKernelForDispatchKey(kKey)) {
      kernel.place =
          entry.registerKernel(c10::Dispatcher::singleton(), kKey, kernel_for(kernel.passes),
                               std::nullopt, nullptr, "dtr_alloc");
    }
    all_.push_back(std::move(kernel));
  }

  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    forget_operator(op);
    std::erase_if(all_, [&](const Kernel& one) { return one.op == op; });
  }

  // Somebody else has registered a fallback after us.
  void stop_falling_through() {
    for (Kernel& one : all_) {
      if (!one.passes || !one.place) continue;
      (*one.place)->kernel = kernel_for(true);
      entry_of(one.op).updateFallback(c10::Dispatcher::singleton(), kKey);
    }
  }

  std::vector<std::string> others() const {
    std::vector<std::string> names;
    for (const Kernel& one : all_) {
      const auto& entry = entry_of(one.op);
      const bool ours = entry.hasKernelForDispatchKey(kKey) &&
                        is_ours(entry.kernelForDispatchKey(kKey), one.passes);
      if (!ours) names.push_back(c10::toString(one.op.operator_name()));
    }
    return names;
  }

 private:
  struct Kernel {
    c10::OperatorHandle op;
    bool passes;
    // None where a kernel was there first.
    std::optional<c10::impl::OperatorEntry::AnnotatedKernelContainerIterator> place;
  };
  std::vector<Kernel> all_;
};

Kernels* kernels = nullptr;  // The dispatcher's, for as long as the process lives.

// Calls `run` with the dispatcher's lock held: a new listener is told of all operators so.
void with_dispatcher_locked(std::function<void()> run) {
  class Once final : public c10::OpRegistrationListener {
   public:
    explicit Once(std::function<void()> run) : run_(std::move(run)) {}
    void onOperatorRegistered(const c10::OperatorHandle&) override {
      if (const auto run = std::exchange(run_, nullptr)) run();
    }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}

   private:
    std::function<void()> run_;
  };
  c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Once>(std::move(run)));
}

void notice_others() {
  static std::atomic<bool> noticed = false;
  if (!others_have_key() || noticed.exchange(true)) return;
  with_dispatcher_locked([] { kernels->stop_falling_through(); });
}

bool has_fake_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool found = false;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](c10::TensorImpl& tensor, std::uint16_t) {
      found |= tensor.key_set().has(kKey);
    });
  }
  return found;
}

// A thread that belonged to a scope, which another thread has left, may still have our bit.
bool is_for_others(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!Scope::active()) return !Scope::part_if_member();
  const bool ours = Scope::is_member() || in_backward();
  return !ours || fake_mode_is_on() || has_fake_argument(op, stack);
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

std::vector<std::string> kernels_of_others() {
  notice_others();
  std::vector<std::string> names;
  with_dispatcher_locked([&] { names = kernels->others(); });
  return names;
}

void register_interception() {
  static auto* library =  // Registrations live as long as the process.
      new torch::Library(torch::Library::FRAGMENT, "dtr_alloc", std::nullopt, __FILE__, __LINE__);
  library->def("has_no_kernel(Tensor x) -> Tensor");
  auto listener = std::make_unique<Kernels>();
  kernels = listener.get();
  static auto* all = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::move(listener)));
  static_cast<void>(all);
}

}  // namespace dtr
