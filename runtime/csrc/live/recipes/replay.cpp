// Runs a recipe again under the state of process and thread that its first run had. Each part of
// this state is set by an object, whose destructor puts back what there was.

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/csrc/live/recipes/recipe.h"

namespace dtr {
namespace {

constexpr c10::DeviceType kAutocast[] = {c10::kCPU, c10::kCUDA};

// Autocast casts to these types, and remembers no tensor that it has cast: a replay's go at once.
class Autocasting {
 public:
  explicit Autocasting(const AutocastTypes& types)
      : before_(autocast_types_now()), remembered_(at::autocast::is_autocast_cache_enabled()) {
    put(types);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~Autocasting() {
    put(before_);
    at::autocast::set_autocast_cache_enabled(remembered_);
  }
  Autocasting(const Autocasting&) = delete;

 private:
  static void put(const AutocastTypes& types) {
    for (std::size_t i = 0; i < types.size(); ++i) {
      at::autocast::set_autocast_dtype(kAutocast[i], types[i]);
    }
  }
  const AutocastTypes before_;
  const bool remembered_;
};

// Without the `torch.overrides.TorchFunctionMode`s of whoever touches the result: Python code that
// made it ran without those that its caller had.
class NoModes {
  using Modes = at::impl::PythonTorchFunctionTLS;

 public:
  NoModes() : before_(Modes::get_state()) { Modes::set_state(Modes()); }
  ~NoModes() { Modes::set_state(before_); }
  NoModes(const NoModes&) = delete;

 private:
  const Modes before_;
};

// What a replay must not enter: it runs below autograd, and neither we nor torch.jit.trace record it.
const c10::DispatchKeySet kAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(kKey) |
    c10::DispatchKeySet(c10::DispatchKey::Tracer) | c10::DispatchKeySet(c10::DispatchKey::Python) |
    c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot);

}  // namespace

AutocastTypes autocast_types_now() {
  return {at::autocast::get_autocast_dtype(kAutocast[0]),
          at::autocast::get_autocast_dtype(kAutocast[1])};
}

void Replay::run() {
  c10::impl::ForceDispatchKeyGuard dispatch(state.included, state.excluded | kAbove);
  c10::AutoGradMode grad(state.grad_mode);
  std::optional<Autocasting> autocasting;
  if (state.autocast != AutocastTypes()) autocasting.emplace(state.autocast);
  std::optional<NoModes> no_modes;
  if (info->others || info->listed) no_modes.emplace();
  const ThreadSwitchesPut switches(state.thread);
  DrawingFrom drawing(default_generator, recorded_state ? &*recorded_state : nullptr);
  info->handle.redispatchBoxed(state.keys, &stack);
}

}  // namespace dtr
