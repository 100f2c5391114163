// Composite operators whose kernels read memory through a pointer (operators/pointer_readers.h).
//
// A composite kernel runs at autograd's keys, above ours, or in inference mode at the backend's,
// below (torch 2.11 to 2.15). What it calls, we see. What it reads or writes through a pointer, we
// do not, and an evicted tensor has no memory there. So the operators of that table get kernels of
// ours at autograd's keys and at kKey, which keep in memory what torch's kernel reads, and call
// that. Outside of scopes they cost a boxed call. All other composite operators cost nothing.

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/max_pool1d_native.h>
#include <ATen/ops/max_pool1d_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/csrc/live/intercept/dispatch_key.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/operators/pointer_readers.h"
#include "runtime/csrc/live/recipes/call.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {
namespace {

using torch::Library;

constexpr std::string_view kNamespace = "aten::";

// The tensors among the arguments on the stack that lie at the bits of `which`.
std::vector<at::Tensor> tensors_of(const OperatorInfo& info, std::uint64_t which,
                                   const torch::jit::Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < info.arguments; ++i) {
    if (!info.is(which, i)) continue;
    const c10::IValue& argument = stack[stack.size() - info.arguments + i];
    for_each_tensor(argument, [&](c10::TensorImpl& tensor, std::uint16_t) {
      tensors.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&tensor));
    });
  }
  return tensors;
}

void run_on_indices(Session& session, const OperatorInfo& info, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  std::vector<at::Tensor> read = tensors_of(info, info.tensors, *stack);
  std::erase_if(read, [](const at::Tensor& tensor) {
    return !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  });
  const Reading reading(session, read);
  // It may convert them first, and read what that made.
  const Meanwhile stay(InOperator::state.indices_stay, true);
  info.handle.redispatchBoxed(keys, stack);
}

void run_on_content(Session& session, const OperatorInfo& info, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  Hold hold(session, reinterpret_cast<std::uintptr_t>(&info),
            tensors_of(info, info.tensors & ~info.writes, *stack),
            tensors_of(info, info.writes, *stack));
  info.handle.redispatchBoxed(keys, stack);
  hold.ended();
}

// Where the kernel of ours is called.
enum class At { kAutograd, kKey };

// A composite kernel takes no keys, and calls others at all keys of this thread. So from autograd's
// key the backend's entry, which is the same kernel, is the one to call.
template <Reads reads, At at>
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (at == At::kKey && others_have_key() && hand_over(op, keys, stack)) return;
  const bool seen = keys.has(kKey);
  keys = at == At::kAutograd ? c10::DispatchKeySet(c10::DispatchKey::CPU)
                             : keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  Session* session = seen ? Session::active() : nullptr;
  if (!session) return op.redispatchBoxed(keys, stack);
  const OperatorInfo& info = operator_info(op);
  constexpr auto run = reads == Reads::kIndices ? &run_on_indices : &run_on_content;
  try {
    run(*session, info, keys, stack);
  } catch (const c10::OutOfMemoryError& error) {
    session->notes().told_by_error();
    rethrow_with_advice(error, info.name);
  }
}

// Where torch's kernel would take the pointer, this one goes on to kKey, and thence to torch's.
at::Tensor max_pool1d(c10::DispatchKeySet keys, const at::Tensor& self, at::IntArrayRef kernel_size,
                      at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                      bool ceil_mode) {
  const bool differentiated =
      (self.requires_grad() && at::GradMode::is_enabled()) || self._fw_grad(/*level=*/0).defined();
  if (!keys.has(kKey) || !Session::active() || differentiated || at::isTensorSubclassLike(self)) {
    return at::native::max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode);
  }
  return at::_ops::max_pool1d::redispatch(keys & c10::after_autograd_keyset, self, kernel_size,
                                          stride, padding, dilation, ceil_mode);
}

template <Reads reads>
void implement(std::vector<Library>& libraries, const char* name) {
  const auto at = [&](c10::DispatchKey key, torch::CppFunction kernel) {
    libraries.emplace_back(Library::IMPL, "aten", key, __FILE__, __LINE__);
    libraries.back().impl(name, std::move(kernel));
  };
  for (auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    at(key, torch::CppFunction::makeFromBoxedFunction<&run<reads, At::kAutograd>>());
  }
  at(kKey, torch::CppFunction::makeFromBoxedFunction<&run<reads, At::kKey>>());
}

}  // namespace

void register_pointer_readers() {
  static auto* libraries = new std::vector<Library>;  // Registrations live as long as the process.
  libraries->emplace_back(Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
  libraries->back().impl("max_pool1d", TORCH_FN(max_pool1d));
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    const PointerReader* row = op ? pointer_reader(*op) : nullptr;
    if (!row) continue;
    const std::string own = c10::toString(name).substr(kNamespace.size());
    if (row->reads == Reads::kIndices) {
      implement<Reads::kIndices>(*libraries, own.c_str());
    } else {
      implement<Reads::kContent>(*libraries, own.c_str());
    }
  }
}

}  // namespace dtr
