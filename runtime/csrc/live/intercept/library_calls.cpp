// A call of another library's operator on its way through a session: whether it is recorded, what
// it may draw, and what of its results stays in memory. The rules stand in libraries.h.

#include <ATen/CPUGeneratorImpl.h>

#include <memory>
#include <mutex>

#include "runtime/csrc/live/intercept/interception.h"
#include "runtime/csrc/live/operators/libraries.h"

namespace dtr {
namespace {

bool is_held_once(const c10::TensorImpl& tensor) {
  const auto holders = c10::raw::intrusive_ptr::use_count(const_cast<c10::TensorImpl*>(&tensor));
  const c10::impl::PyObjectSlot& python = *tensor.pyobj_slot();
  const bool wrapped = python.load_pyobj();  // A kernel in Python made it: each holds the other.
  return holders == (wrapped ? 2 : 1) && (!wrapped || python.has_unique_reference());
}

}  // namespace

bool is_shared(const at::TensorBase& tensor) {
  if (!is_held_once(*tensor.unsafeGetTensorImpl())) return true;
  const bool view = tensor.is_view();
  if (view && !is_held_once(*tensor._base().unsafeGetTensorImpl())) return true;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().use_count() > (view ? 2 : 1);
}

// Why no recipe of another library's operator would be right, for all that is known; or null.
const char* Interception::distrusts(const OperatorInfo& info) const {
  if (info.obstacle) return info.obstacle;
  if (info.promised || is_named(session_.options().recordable, info.name)) return nullptr;
  return "has no pt2_compliant_tag; `recordable` vouches for it";
}

bool Interception::library_keeps(const at::Tensor& result) const {
  const c10::TensorImpl& tensor = *result.unsafeGetTensorImpl();
  return session_.device().holds(tensor) && worth_evicting(tensor) && is_shared(result);
}

// An operator that draws may put the generator back, as torch.random.fork_rng does, so a library's
// gets a state in any case: the last one, where the generator has not moved since.
void Interception::snapshot(Call& call, const torch::jit::Stack& stack) {
  if (!call.info.others) {
    call.random = Recipe::snapshot(call.info, stack, session_.device());
    if (!call.info.listed || !call.info.random) return;  // A compiled graph may draw from both.
  } else {
    at::Generator generator = session_.device().generator(session_.device().device);
    std::lock_guard guard(generator.mutex());
    call.random = session_.random_state(generator);
  }
  if (session_.device().device.is_cpu()) return;
  at::Generator host = at::detail::getDefaultCPUGenerator();
  std::lock_guard guard(host.mutex());
  call.host_random = std::make_unique<RandomState>(host);
}

// Another library's operator is over, or a compiled graph. One that drew from the host's generator
// beside the device's gets no recipe. Without the engine's lock: a kernel allocates while it holds
// a generator's, and who looks at a tensor that Python has seen takes Python's.
void Interception::look_at_what_it_did(Call& call, const torch::jit::Stack& stack) const {
  for (const c10::IValue& result : call.results(stack)) {
    if (!call.info.others) break;
    call.kept.push_back(is_defined_tensor(result) && library_keeps(result.toTensor()));
  }
  if (!call.host_random) return;
  at::Generator host = at::detail::getDefaultCPUGenerator();
  std::lock_guard guard(host.mutex());
  if (!call.host_random->is_of(host)) call.stays = "draws from the host's generator";
}

// Of other libraries' operators and compiled graphs, those whose results would be worth evicting.
void Interception::tell_what_stays(Call& call, const torch::jit::Stack& stack, bool lacks_recipe) {
  if (call.info.listed && call.recordable && !call.stays && lacks_recipe) {
    call.stays = "writes a tensor of over 64 KiB, or two tensors over one memory";
  }
  if (!call.stays || !session_.options().record) return;
  bool worth = false;
  call.for_each_result(stack, [&](const c10::TensorImpl& tensor) {
    worth |= call.makes_value(session_.device(), tensor);
  });
  if (worth) session_.notes().note_stayed(call.info.name + ": " + call.stays);
}

}  // namespace dtr
