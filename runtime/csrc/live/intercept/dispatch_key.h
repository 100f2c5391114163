// Brings every operator to intercept(): each has a kernel of ours on one dispatch key.
//
// DispatchKey::Fake lies below autograd and autocast, above every backend, and from torch 2.13 on
// below Python's modes. Torch's own C++ FakeTensor (pytorch #183776) and torchdistx register a
// fallback on it, and the dispatcher admits one fallback a key. An operator's own kernel precedes a
// fallback, so we register none: the dispatcher's listener tells us of every operator, and each gets
// its kernel: at import, as a scope opens, or as it is defined within one. A missed operator would
// fall to somebody else's fallback, which makes tensors without memory.
//
// Pure views and composite operators get a fallthrough instead, which costs nothing. Where another
// fallback is there, they get a kernel that hands over to it, because a fallthrough would hide them
// from it. Another library's kernel for one operator gets ours in front of it. Whoever else has the
// key gets a call where no scope is active, where torch's C++ fake mode is on, or where an argument
// is a fake tensor.
//
// Limits: a library that registers its fallback after us misses views and composite operators until
// an operator that we intercept, or a scope, shows it to us. Inside an operator of a scope the key
// is excluded, so no fake mode in C++ works there. Before torch 2.14 another library's fake mode
// that is on in any thread while a scope is open gets ordinary tensors.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

// At import, while no other thread runs an operator. Pointer readers (pointer_readers.h) have their
// own kernels by then.
void register_interception();

// Whether somebody else has a fallback on the key. Costs two loads.
inline bool others_have_key() {
  return c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey);
}
// Calls that fallback where the call is meant for it; false, with nothing done, where it is ours.
bool hand_over(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Puts our kernels in front of those that others have registered on the key since. Takes some
// 100 us, and the dispatcher's lock: the caller does not hold Python's.
void take_key();

}  // namespace dtr
