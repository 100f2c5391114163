// Keeps tensors in memory while code reads them through pointers, past the dispatcher.
//
// Reading serves Python when it copies a tensor's content through a pointer (`tolist`), and
// composite kernels. The tensor does not become a constant.
//
// Hold serves torch.compile's kernels, which take the address of every tensor they get, and do the
// work of many operators without calling us. So all tensors are first brought back and locked. A
// tensor that the code drops, as compiled code drops arguments that it has read, is freed at once.
// Afterwards the tensors can be evicted again. A tensor that the code writes becomes a constant,
// and recipes that read it keep the old content (hand_out in by_hand.h). Nothing is recorded
// meanwhile: between two operators compiled code writes over its own buffers, so a recipe would
// read wrong content.
//
// On the tape (policy/tape.h) the code is one operator that accesses all the tensors, so that the
// next step can be predicted. Its cost is its time without the operators that it calls, which are
// counted themselves. This time is counted after theirs, because it is known only at the end.

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

// Must be destroyed in the thread that made it.
class Reading {
 public:
  // Throws torch.OutOfMemoryError if not all tensors fit at once.
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
  // `code` identifies the code. Equal code on arguments of equal sizes costs the same. Throws
  // torch.OutOfMemoryError if not all tensors fit at once, and then makes none a constant.
  Hold(Session& session, std::uint64_t code, c10::ArrayRef<at::Tensor> read,
       c10::ArrayRef<at::Tensor> written);
  ~Hold();
  Hold(const Hold&) = delete;

  void ended();  // Call if the code did not fail: its time counts.
  // Call for a tensor that the code returns. It may lie in an argument's memory: a compiled
  // backward graph may write over a saved tensor that nothing else holds, without declaring it.
  void returned(const at::Tensor& result);

  static bool here() { return innermost != nullptr; }  // Whether this thread runs such code.
  // Whether that code may read this value's tensor (null: a constant's) through a pointer.
  static bool covers(const Value* value);
  static void died(Value& value);  // Call when the program drops it, with the engine's lock.

  // For this thread's innermost Hold, in ticks. inside(): the time so far of its operators, of
  // Holds in it and of its searches for memory, counted elsewhere. ran(): an operator took
  // `passed`, and computed for `cost`; `inside` is what inside() returned when it began.
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
  // In another operator, whose cost and place on the tape include this code, or in a replay.
  const bool apart_ = InOperator::state.depth > 0;
  std::vector<Held> values_;              // One for each tensor, even of the same value.
  std::vector<c10::StorageImpl*> armed_;  // Constants to arm again. They may die before that.
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
