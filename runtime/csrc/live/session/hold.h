// Keeps tensors in memory while code reads them through pointers, past the dispatcher.
//
// Reading: Python copies a tensor's content through a pointer (`tolist`), or a composite kernel
// reads it, which is no reason to make the tensor a constant.
//
// Hold: torch.compile's kernels take the address of every tensor that they are given, and do the
// work of many operators without calling us. So all tensors are first brought back and locked. A
// tensor that the code itself drops, as compiled code drops arguments that it has read, is freed at
// once. Afterwards the tensors can be evicted again. A tensor that the code writes becomes a
// constant, and recipes that read it keep the old content (hand_out in by_hand.h). Nothing is
// recorded meanwhile: between two operators compiled code writes over its own buffers, so a recipe
// would read wrong content.
//
// On the tape (policy/tape.h) the code is one operator that accesses all the tensors, so that the
// next step can be predicted. Its cost is its time without the operators that it runs, which are
// counted themselves. It is counted after these, because their number is not known before.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/operator_costs.h"
#include "runtime/csrc/live/machine/ticks.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {

// It must be destroyed in the thread that made it.
class Reading {
 public:
  // Throws torch.OutOfMemoryError if the tensors do not fit together.
  Reading(Session& session, c10::ArrayRef<at::Tensor> tensors);
  ~Reading();
  Reading(const Reading&) = delete;
  static bool covers(const c10::StorageImpl* storage);  // Whether this thread reads it.

 private:
  static thread_local std::vector<const c10::StorageImpl*> storages;
  Session& session_;
  std::vector<c10::StorageImpl*> own_;
  std::vector<Held> held_;
};

class Hold {
 public:
  // `code` identifies the code, which costs the same on arguments of the same sizes. Throws
  // torch.OutOfMemoryError if the tensors do not fit together; then none has become a constant.
  Hold(Session& session, std::uint64_t code, c10::ArrayRef<at::Tensor> read,
       c10::ArrayRef<at::Tensor> written);
  ~Hold();
  Hold(const Hold&) = delete;

  void ended();  // The code did not fail, so its time counts.
  // The code returned `result`, perhaps in memory that it was given: a compiled backward graph may
  // write over a saved tensor that nothing else holds, and does not declare it.
  void returned(const at::Tensor& result);

  static bool here() { return innermost != nullptr; }  // Whether this thread runs such code.
  // Whether that may read a tensor of this value (null: of a constant) through a pointer.
  static bool covers(const Value* value);
  static void died(Value& value);  // The program dropped it. Needs the engine's lock.

  // For this thread's innermost Hold, in ticks. inside(): the time so far of its operators, of
  // Holds in it and of its searches for memory, which are counted themselves. ran(): an operator
  // took `passed`, and computed for `cost` of it; `inside` is inside() from when it began.
  static std::int64_t inside() { return innermost ? innermost->inside_ticks_ : 0; }
  static void ran(std::int64_t inside, std::int64_t passed, std::int64_t cost);
  static void searched(std::int64_t passed);

 private:
  static constinit thread_local Hold* innermost;
  void take(c10::ArrayRef<at::Tensor> tensors);
  void bring_back(Guard& guard);
  enum class Which { kConstants, kAll };
  void hand_out(c10::ArrayRef<at::Tensor> written, Which which, Guard& guard);
  void start_timing(std::uint64_t code);
  void count();
  std::int64_t own_ticks();
  bool has_ended() const { return passed_ > 0; }

  Session& session_;
  Hold* const outer_ = innermost;
  // Within an operator, which has its own cost and place on the tape, or is a replay.
  const bool apart_ = InOperator::state.depth > 0;
  std::vector<Held> values_;              // One for each tensor, even of the same value.
  std::vector<c10::StorageImpl*> armed_;  // Constants; they may die before the end.
  Bytes bytes_ = 0;
  bool on_tape_ = false;

  Costs::Key cost_;  // A hash of the code and the tensors' sizes.
  Costs::Sample sample_;
  Stream stream_{};
  bool first_run_ = false;
  const std::int64_t met_ = ticks(), outer_inside_ = inside();
  std::int64_t began_ = 0, passed_ = 0;
  std::int64_t inside_ticks_ = 0, inside_cost_ = 0;
  bool searched_ = false;
};

}  // namespace dtr
