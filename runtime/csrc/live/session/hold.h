// What code reads past the dispatcher, through pointers, for as long as it runs.
//
// Reading: Python copies a tensor's content through a pointer (`tolist`), or a composite
// kernel reads one, which is no reason to make it a constant.
//
// Hold: torch.compile's kernels take the address of every tensor that they are given, and
// run many operators' work between two looks at us. All of it is brought back first and locked.
// What the code itself lets go, as compiled code does with its arguments once it has read them, is
// free at once. Afterwards it can be evicted again. What the code writes becomes a constant, and
// recipes that read it keep the old content, as where memory is handed out. Nothing is recorded
// meanwhile: between two operators compiled code writes over its own buffers, and a recipe would
// read what is there then.
//
// On the tape the code is an operator that accesses all of it, so that the next step is foretold.
// Its cost is what it takes beside the operators that it runs, which count for themselves, and it
// counts once they have: how many they are is not known before.

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

// It ends in the thread in which it began.
class Reading {
 public:
  // Throws torch.OutOfMemoryError where the tensors do not fit together.
  Reading(Session& session, c10::ArrayRef<at::Tensor> tensors);
  ~Reading();
  Reading(const Reading&) = delete;
  static bool covers(const c10::StorageImpl* storage);  // This thread reads it.

 private:
  static thread_local std::vector<const c10::StorageImpl*> storages;
  Session& session_;
  std::vector<c10::StorageImpl*> own_;
  std::vector<Held> held_;
};

class Hold {
 public:
  // `code` names it: on arguments of the same sizes it costs the same. Throws
  // torch.OutOfMemoryError; where they do not fit together, no tensor has become a constant.
  Hold(Session& session, std::uint64_t code, c10::ArrayRef<at::Tensor> read,
       c10::ArrayRef<at::Tensor> written);
  ~Hold();
  Hold(const Hold&) = delete;

  void ended();  // The code did not fail: what it took counts.
  // It returned `result`, perhaps over memory that it was given: a compiled backward graph may
  // write over a saved tensor that nobody else has, and says so nowhere.
  void returned(const at::Tensor& result);

  static bool here() { return innermost != nullptr; }  // This thread runs such code.
  // ... and may read a tensor of this value, null for a constant, through a pointer.
  static bool covers(const Value* value);
  static void died(Value& value);  // The program let it go. The engine's lock is held.

  // For this thread's innermost call, in ticks. inside(): what its operators, its calls and its
  // searches for memory have taken so far, which count for themselves. ran(): an operator took
  // `passed`, and computed for `cost` of it; `inside` is from when it began.
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
  // Within an operator, which has its own cost and is an operator on the tape, or is a replay.
  const bool apart_ = InOperator::state.depth > 0;
  std::vector<Held> values_;              // Once for each time that a value is there.
  std::vector<c10::StorageImpl*> armed_;  // Constants, which may be gone by the end.
  Bytes bytes_ = 0;
  bool on_tape_ = false;

  Costs::Key cost_;  // Of the code and the sizes that it sees.
  Costs::Sample sample_;
  Stream stream_{};
  bool first_run_ = false;
  const std::int64_t met_ = ticks(), outer_inside_ = inside();
  std::int64_t began_ = 0, passed_ = 0;
  std::int64_t inside_ticks_ = 0, inside_cost_ = 0;
  bool searched_ = false;
};

}  // namespace dtr
