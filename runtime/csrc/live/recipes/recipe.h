// Keeps what is needed to run one torch operator again: the live executor's part of an Op.
//
// Kernels look at more than the data of their arguments, so a recipe also restores geometry, conj
// and neg bits, wrapped numbers, requires_grad, grad mode, the thread's dispatch keys, the switches
// of process and thread (switches.h), and the state of the random generator. Data that many recipes
// share (CallState; a tensor's key set, dtype and device) is stored once, and a recipe has its
// 16-bit index.

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

// One tensor among the arguments of a call. The pointers are valid until the operator runs and
// consumes the arguments.
struct TensorArgument {
  c10::TensorImpl* tensor = nullptr;
  c10::StorageImpl* storage = nullptr;
  Value* value = nullptr;  // Null if the storage is not tracked.
  std::uint8_t argument = 0;
  bool written = false;
  bool scratch = false;    // Written, and no result depends on it (kRunningStatistics).
  std::uint16_t item = 0;  // Position in its list.
  bool armed = false;      // A constant with an access hook (storage_access.h).

  bool writes_constant() const { return written && !value && !scratch; }
  // Whether a recipe keeps the content itself instead of reading a Value.
  bool inlined() const {
    return !value && !written && tensor->is_cpu() && kept_in_recipe(bytes_of(storage));
  }
};
inline bool is_defined_tensor(const c10::IValue& value) {
  return value.isTensor() && value.unsafeToTensorImpl() != c10::UndefinedTensorImpl::singleton();
}
using TensorArguments = c10::SmallVector<TensorArgument, 8>;

// The types that autocast casts to, on the host and on CUDA. Only replays of other libraries'
// operators set them: torch's own run below autocast, but a library's may call operators above it.
using AutocastTypes = std::array<c10::ScalarType, 2>;

// What influences an operator besides its arguments.
struct CallState {
  c10::DispatchKeySet keys, included, excluded;
  bool grad_mode;
  AutocastTypes autocast;
  Switches::Number switches;  // Set by Replayer, which may have to run alone (under_way.h).
  ThreadSwitches thread;
  bool operator==(const CallState&) const = default;
};

// A recipe, ready to run.
struct Replay {
  const OperatorInfo* info;
  CallState state;
  torch::jit::Stack stack;                  // The arguments.
  c10::SmallVector<at::Tensor, 4> written;  // The tensors of written arguments, in order.
  // If a random operator takes no generator: the default generator and its recorded state.
  at::Generator default_generator;
  std::optional<RandomState> recorded_state;

  // Runs the operator; afterwards `stack` holds its returns. Throws what the operator throws.
  void run();
};

class Recipe {
 public:
  // Builds the Op for a call whose arguments are the last `info.arguments` of `stack`. Its uses are
  // the `arguments` that are neither inlined nor scratch, in order, or none for an operator that
  // reads only shapes; the caller links them. Outputs are the returns, then the written arguments.
  // Returns null if the call cannot be recorded. Called with the engine's lock, as is prepare().
  static Op* record(Engine& engine, const OperatorInfo& info, c10::DispatchKeySet keys,
                    const torch::jit::Stack& stack, const TensorArguments& arguments,
                    std::shared_ptr<const RandomState> random, Switches::Number switches);

  // Call after the operator has run: it may have set this thread's number of threads.
  void has_run();

  // The generator's state before a random call, for record(). If the call is not given a generator,
  // takes the device's default. Called without the engine's lock, because kernels allocate memory
  // while they hold the generator's lock.
  static std::shared_ptr<const RandomState> snapshot(const OperatorInfo& info,
                                                     const torch::jit::Stack& stack,
                                                     const SessionDevice& device);
  static Recipe& of(Op& op) { return *static_cast<Recipe*>(op.payload()); }
  void destroy();

  const OperatorInfo& info() const { return *info_; }
  bool writes() const { return info_->writes != 0; }
  bool writes(std::uint32_t use) const;  // Whether the operator writes what Use number `use` reads.

  // The sizes of scratch arguments. Their content does not matter to a replay.
  c10::SmallVector<Bytes, 2> scratch() const;

  // Makes a replay's arguments. `storages`: one for each of the `uses` (the same for uses of one
  // value), then one for each scratch() argument.
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
  std::shared_ptr<const RandomState> random_;  // Before the call; null if it is not random.
  std::uint16_t state_;                        // The index of the CallState.
  std::uint16_t tensors_;
  // Number of arguments that are not tensors. A list of tensors counts as one: its length.
  std::uint16_t plain_;
};

}  // namespace dtr
