// Keeps tensors in memory while code reads them through pointers, which the dispatcher cannot see.
//
// Class Reading serves code that only reads: Python's `tolist`, which copies a tensor's content
// through a pointer, and some composite kernels. The tensor does not become a constant.
//
// Class Hold serves torch.compile's kernels, which take the address of every tensor they get, and
// do the work of many operators without calling us. So Hold first brings all the tensors back and
// locks them. If the code drops a tensor, as compiled code drops arguments that it has read, the
// tensor is freed at once. When the code ends, the others can be evicted again. A tensor that the
// code writes becomes a constant, and recipes that read it keep the old content (hand_out in
// by_hand.h). Operators that the code calls are not recorded: compiled code writes over its own
// buffers between two operators, so a recipe would read wrong content.
//
// On the tape (policy/tape.h), the code is one operator that accesses all the tensors, so that the
// next step can be predicted. Its cost is its time without the operators that it calls, which are
// counted themselves. This cost is known only when the code ends; then the clock advances by it.

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

// A Reading must be destroyed in the thread that made it.
class Reading {
 public:
  // Throws torch.OutOfMemoryError if not all tensors fit at once.
  Reading(Session& session, c10::ArrayRef<at::Tensor> tensors);
  ~Reading();
  Reading(const Reading&) = delete;
  static bool covers(const c10::StorageImpl* storage);  // Whether a Reading of this thread has it.

 private:
  static thread_local std::vector<const c10::StorageImpl*> storages;
  Session& session_;
  std::vector<c10::StorageImpl*> own_;
  std::vector<Held> held_;
};

class Hold {
 public:
  // `code` identifies the code: the same code on arguments of the same sizes costs the same. If not
  // all tensors fit at once, throws torch.OutOfMemoryError, and none becomes a constant.
  Hold(Session& session, std::uint64_t code, c10::ArrayRef<at::Tensor> read,
       c10::ArrayRef<at::Tensor> written);
  ~Hold();
  Hold(const Hold&) = delete;

  void ended();  // Call if the code did not fail, so that its time counts.
  // Call for each tensor that the code returns. It may lie in an argument's memory: a compiled
  // backward graph may write over a saved tensor that nothing else holds, without declaring it.
  void returned(const at::Tensor& result);

  static bool here() { return innermost != nullptr; }  // Whether this thread is in a Hold.
  // Whether a Hold of this thread lets code read the value (null: any constant) by a pointer.
  static bool covers(const Value* value);
  static void died(Value& value);  // Call when the program drops the value, with the engine's lock.

  // For this thread's innermost Hold. inside(): the ticks so far of its operators, of Holds in it
  // and of its searches for memory, all of which are counted elsewhere. ran(): an operator took
  // `passed` ticks and costs `cost`; `inside` is what inside() returned when the operator began.
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
  // True in a replay, or in an operator, whose cost and place on the tape include this code.
  const bool apart_ = InOperator::state.depth > 0;
  std::vector<Held> values_;              // One for each tensor, even if two tensors share a value.
  std::vector<c10::StorageImpl*> armed_;  // Constants to arm again at the end, if they then live.
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
