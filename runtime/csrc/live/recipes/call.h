// Holds what a session knows of one operator call while Interception handles it (intercept.cpp),
// and visits the tensors among the call's arguments or results.

#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <exception>
#include <memory>

#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/operator_costs.h"
#include "runtime/csrc/live/operators/operators.h"
#include "runtime/csrc/live/recipes/random_state.h"
#include "runtime/csrc/live/recipes/recipe.h"

namespace dtr {

// Calls `visit(tensor, item)` for each tensor in `value`, which may be a tensor or a list.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (is_defined_tensor(value)) {
    visit(*value.unsafeToTensorImpl(), 0);
  } else if (value.isList()) {
    std::uint16_t item = 0;
    for (const c10::IValue& element : value.toListRef()) {
      if (is_defined_tensor(element)) visit(*element.unsafeToTensorImpl(), item);
      ++item;
    }
  }
}

// Whether a result is large enough to be evicted. A smaller result is a constant (engine/rules.h).
inline bool worth_evicting(const c10::TensorImpl& tensor) {
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  const bool index = c10::isIntegralType(type, /*includeBool=*/true);
  if (index && InOperator::state.indices_stay) return false;
  return large_enough(bytes_of(storage_of(tensor)), index);
}

struct Call {
  const OperatorInfo& info;
  c10::DispatchKeySet keys;  // The dispatch keys for the next kernel below ours.
  TensorArguments arguments;
  c10::SmallVector<Value*, 8> sources;  // By argument: the Value of its old content; null if none.
  Bytes bytes = 0;       // Bytes of arguments (a storage given twice counts twice) and new values.
  Bytes made_bytes = 0;  // The part of `bytes` in new values.
  bool foreign = false;  // An argument is sparse, quantized, on another device, ...
  bool handled = false;  // A Python mode or subclass will run it (only before torch 2.13).
  bool here = false;     // It runs on the session's device.
  bool tracked = false;  // An argument's storage is tracked.
  bool recording = false;
  bool first_run = false;          // It is the operator's first run, which loads or tunes kernels.
  bool too_small = false;          // All results are known to be too small for values.
  bool recordable = false;         // The call could be recorded; `recording`: it is recorded.
  const char* stays = nullptr;     // Why a library's operator or compiled graph is not recorded.
  c10::SmallVector<bool, 4> kept;  // By result: whether other code holds its memory, too.
  std::shared_ptr<const RandomState> random;  // The generator's state before a call that may draw.
  std::unique_ptr<RandomState> host_random;   // On a device: the state of the host's generator.
  // For a trace, keeps the arguments' storages alive, since a call such as `set_` may drop them.
  c10::SmallVector<StoragePtr, 4> held;
  // Written storages to make movable after the call (swap.h).
  c10::SmallVector<StoragePtr, 2> movable;
  std::int64_t begin_ticks = 0, inside_hold = 0;  // ticks() and Hold::inside() when it began.
  std::int64_t remat_ticks = 0;                   // Time spent to bring arguments back.
  std::int64_t inside_ticks = 0;                  // Time spent in the operator.
  std::int64_t kernel_ticks = 0;                  // `inside_ticks` without searches for memory.
  std::int64_t usual_ticks = 0;                   // The time that the recipe gets as its cost.
  Costs::Key key = 0;  // In Costs, UsualTimes and SmallResults; 0 for none.
  Costs::Sample sample;
  std::exception_ptr undeclared;  // Error about a write that the schema does not declare.

  Value* source(std::size_t i) const { return sources.empty() ? nullptr : sources[i]; }
  // Whether a result is larger than the generator's state that a recipe of the call would keep.
  bool outweighs_state(const SessionDevice& device, const c10::StorageImpl* result) const {
    return !info.random || !device.device.is_cpu() || bytes_of(result) >= kSmallestRandom;
  }
  // Whether `result` becomes a new value: it is no argument's memory, and large enough to evict.
  bool makes_value(const SessionDevice& device, const c10::TensorImpl& result) const {
    const auto is_over = [&](const auto& one) { return one.storage == storage_of(result); };
    return device.holds(result) && worth_evicting(result) &&
           outweighs_state(device, storage_of(result)) &&
           (info.listed || outweighs_records(bytes_of(storage_of(result)), arguments.size())) &&
           std::ranges::none_of(arguments, is_over);
  }
  // Valid until the call takes its arguments off the stack. results() is valid from then on.
  c10::ArrayRef<c10::IValue> stacked_arguments(const torch::jit::Stack& stack) const {
    return c10::ArrayRef<c10::IValue>(stack.data() + stack.size() - info.arguments, info.arguments);
  }
  c10::ArrayRef<c10::IValue> results(const torch::jit::Stack& stack) const {
    if (info.listed) return stack.back().toListRef();
    return c10::ArrayRef<c10::IValue>(stack.data() + stack.size() - info.returns, info.returns);
  }
  template <typename Visit>
  void for_each_result(const torch::jit::Stack& stack, const Visit& visit) const {
    for (const c10::IValue& result : results(stack)) {
      for_each_tensor(result, [&](c10::TensorImpl& tensor, std::uint16_t) { visit(tensor); });
    }
  }
};

}  // namespace dtr
