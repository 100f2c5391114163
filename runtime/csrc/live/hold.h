// What code reads past the dispatcher, through pointers, for as long as it runs.
//
// Session::Reading: Python copies a tensor's content through a pointer (`tolist`), which is no
// reason to make it a constant.
//
// Session::Hold: torch.compile's kernels take the address of every tensor that they are given, and
// run many operators' work between two looks at us. All of it is brought back first and locked.
// What the code itself lets go, as compiled code does with its arguments once it has read them, is
// free at once. Afterwards it can be evicted again. What the code writes becomes a constant, and
// recipes that read it keep the old content, as where memory is handed out. On the tape the code is
// an operator that reads all of it, so that the next step is foretold. Nothing is recorded
// meanwhile: between two operators compiled code writes over its own buffers, and a recipe would
// read what is there then.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/live/session.h"

namespace dtr {

class Session::Reading {
 public:
  // Throws torch.OutOfMemoryError where the tensor does not fit.
  Reading(Session& session, const at::Tensor& tensor);
  ~Reading();
  Reading(const Reading&) = delete;
  static thread_local int depth;

 private:
  Session& session_;
  Held held_;
};

class Session::Hold {
 public:
  // Throws torch.OutOfMemoryError where they do not fit together.
  Hold(Session& session, c10::ArrayRef<at::Tensor> read, c10::ArrayRef<at::Tensor> written);
  ~Hold();
  Hold(const Hold&) = delete;

  // The code returned `result`, perhaps over memory that it was given: a compiled backward graph may
  // write over a saved tensor that nobody else has, and says so nowhere.
  void returned(const at::Tensor& result);

  static bool here() { return innermost != nullptr; }  // This thread runs such code.
  // ... and may read a tensor of this value, null for a constant, through a pointer.
  static bool covers(const Value* value);
  static void died(Value& value);  // The program let it go. The engine's lock is held.

 private:
  static thread_local Hold* innermost;
  void note_use(c10::ArrayRef<at::Tensor> read, c10::ArrayRef<at::Tensor> written);
  Nanos own_time() const;

  Session& session_;
  Hold* const outer_ = innermost;
  std::vector<Held> values_;  // Once for each time that a value is there.
  Bytes bytes_ = 0;
  std::int64_t began_ = 0;  // In ticks.
  Nanos clock_ = 0ns;       // The engine's, then.
};

}  // namespace dtr
