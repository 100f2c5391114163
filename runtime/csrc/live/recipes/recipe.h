// Keeps what is needed to run one call of an operator again, as the payload of its Op (graph.h).
//
// A kernel's result depends on more than the data of its arguments. So a recipe also restores
// geometry, conj and neg bits, wrapped numbers, requires_grad, grad mode, the thread's dispatch
// keys, the switches of process and thread (switches.h), and the random generator's state. Data
// that many recipes have in common (CallState; a tensor's key set, dtype and device) is stored
// once, and each of these recipes has its 16-bit index.

#pragma once

#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/machine/switches.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/recipes/random_state.h"
#include "runtime/csrc/live/recipes/recipe_layout.h"

namespace dtr {

class Engine;

// Describes one tensor among a call's arguments. The pointers are valid until the call takes the
// arguments off the stack.
struct TensorArgument {
  c10::TensorImpl* tensor = nullptr;
  c10::StorageImpl* storage = nullptr;
  Value* value = nullptr;  // Null if the storage is not tracked.
  std::uint8_t argument = 0;
  bool written = false;
  bool scratch = false;    // Written, but no result depends on it (kRunningStatistics).
  std::uint16_t item = 0;  // Its position, if the argument is a list.
  bool armed = false;      // It is a constant with our access hook (storage_access.h).

  bool writes_constant() const { return written && !value && !scratch; }
  // Whether a recipe keeps a copy of the tensor's content instead of reading a Value.
  bool inlined() const {
    return !value && !written && tensor->is_cpu() && kept_in_recipe(bytes_of(storage));
  }
};
inline bool is_defined_tensor(const c10::IValue& value) {
  return value.isTensor() && value.unsafeToTensorImpl() != c10::UndefinedTensorImpl::singleton();
}
using TensorArguments = c10::SmallVector<TensorArgument, 8>;

// The types that autocast casts to, on the host and on CUDA; zeros if autocast sees no operator in
// the recorded one. Some of torch's (bilinear, pinv) call others through autocast.
using AutocastTypes = std::array<c10::ScalarType, 2>;
AutocastTypes autocast_types_now();

// The state of process and thread that influences an operator besides its arguments.
struct CallState {
  c10::DispatchKeySet keys, included, excluded;
  bool grad_mode;
  AutocastTypes autocast;
  Switches::Number switches;  // Restored by Replayer, which must then run alone (under_way.h).
  ThreadSwitches thread;
  bool operator==(const CallState&) const = default;
};

// A recipe that is ready to run.
struct Replay {
  const OperatorInfo* info;
  CallState state;
  torch::jit::Stack stack;                  // The arguments.
  c10::SmallVector<at::Tensor, 4> written;  // The tensors of written arguments, in order.
  // For a random operator without a Generator argument: the default generator, its recorded state.
  at::Generator default_generator;
  std::optional<RandomState> recorded_state;

  // Runs the operator, which leaves its results on `stack`. Throws what the operator throws.
  void run();
};

class Recipe {
 public:
  // Builds the Op for a call whose arguments are the last `info.arguments` of `stack`. The caller
  // links its uses: in order, one for each of `arguments` that is neither inlined nor scratch, or
  // none if the operator reads only shapes. Its outputs are the results, then the written
  // arguments. Returns null if it cannot record the call. Needs the engine's lock, like prepare().
  static Op* record(Engine& engine, const OperatorInfo& info, c10::DispatchKeySet keys,
                    const torch::jit::Stack& stack, const TensorArguments& arguments,
                    std::shared_ptr<const RandomState> random, Switches::Number switches);

  // Call after the run, which may have set this thread's number of threads: notes that number.
  void has_run();

  // Returns the generator's state before a random call, for record(). The generator is the call's
  // argument, or else the device's default. Called without the engine's lock, because kernels
  // allocate memory while they hold the generator's lock.
  static std::shared_ptr<const RandomState> snapshot(const OperatorInfo& info,
                                                     const torch::jit::Stack& stack,
                                                     const SessionDevice& device);
  static Recipe& of(Op& op) { return *static_cast<Recipe*>(op.payload()); }
  void destroy();

  const OperatorInfo& info() const { return *info_; }
  bool writes() const { return info_->writes != 0; }
  bool writes(std::uint32_t use) const;  // Whether it writes the value of Use number `use`.

  // Returns the sizes of scratch arguments, whose content does not matter to a replay.
  c10::SmallVector<Bytes, 2> scratch() const;

  // Makes a replay's arguments. `storages`: one for each of the `uses`, then one for each scratch()
  // argument. Uses of the same value get the same storage.
  Replay prepare(c10::ArrayRef<c10::Storage> storages, std::size_t uses,
                 const SessionDevice& device) const;

 private:
  Recipe(const OperatorInfo& info, std::shared_ptr<const RandomState> random, std::uint16_t state,
         std::uint16_t tensors, std::uint16_t plain)
      : info_(&info), random_(std::move(random)), state_(state), tensors_(tensors), plain_(plain) {}
  RecipeParts parts() const { return {const_cast<Recipe*>(this) + 1, tensors_, plain_}; }
  RecipeReader reader() const { return {parts(), tensors_}; }
  c10::ArrayRef<TensorRecipe> tensors() const { return {parts().tensor, tensors_}; }

  const OperatorInfo* info_;
  std::shared_ptr<const RandomState> random_;  // The generator's state before the call, or null.
  std::uint16_t state_;                        // The index of the CallState.
  std::uint16_t tensors_;
  // Number of arguments that are no tensors. A list of tensors counts: its length is kept.
  std::uint16_t plain_;

 public:
  std::uint16_t made_at = 0;  // The line of the program (EventLog::Site), if events are logged.
};

}  // namespace dtr
