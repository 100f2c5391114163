// One operator on its way through a session (intercept.cpp), and the tensors among its arguments or
// results.

#pragma once

#include "runtime/csrc/live/session.h"

namespace dtr {

// Calls `visit(tensor, item)` for the tensor, or for each tensor of the list, in `value`.
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

// A constant up to this size is copied before it is written, a larger one retires its readers.
constexpr Bytes kLargestCopy = Bytes{64} << 10;

struct Session::Call {
  const OperatorInfo& info;
  c10::DispatchKeySet keys;  // Of the call below ours.
  TensorArguments arguments;
  c10::SmallVector<Value*, 8> sources;  // What each argument reads, once recording.
  Bytes bytes = 0;
  bool foreign = false;  // An argument is sparse, quantized, on another device, ...
  bool handled = false;  // By a mode or a subclass, which torch 2.11 calls below kKey.
  bool here = false;     // It runs on the session's device.
  bool tracked = false;
  bool recording = false;
  bool recordable = false;              // The same where nothing is recorded, for a trace.
  std::unique_ptr<RandomState> random;  // Before the call, if it is random and recorded.
  // The arguments' storages, for a trace: one may be gone after the call, by `set_` for example.
  c10::SmallVector<c10::intrusive_ptr<c10::StorageImpl>, 4> held;
  std::int64_t before_ticks = 0;
  std::int64_t remat_ticks = 0;  // Spent bringing arguments back.
  std::int64_t kernel_ticks = 0;
  Costs::Key cost = 0;
};

}  // namespace dtr
