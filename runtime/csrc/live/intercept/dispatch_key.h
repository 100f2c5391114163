// Brings every operator to intercept(): each has a kernel of ours on one dispatch key.
//
// DispatchKey::Fake lies below autograd and autocast, above every backend, and from torch 2.13 on
// below Python's modes. Torch's own C++ FakeTensor (pytorch #183776) and torchdistx register a
// fallback on it, and the dispatcher admits one fallback a key. An operator's own kernel precedes a
// fallback, so we register kernels. The dispatcher's listener tells us of every operator. An
// operator gets its kernel at import, when a scope opens or, if it is defined in a scope, at once.
// A missed operator would fall to somebody else's fallback, which makes tensors without memory.
//
// Pure views and composite operators get a fallthrough instead, which costs nothing. If another
// library has a fallback, they get a kernel that hands over to it, because a fallthrough would keep
// calls from it. If another library has a kernel for one operator, ours precedes it. We pass a call
// on to the other library if no scope is active, if torch's C++ fake mode is on, or if an argument
// is a fake tensor.
//
// Limits: a library's fallback that is registered after our kernels misses views and composite
// operators until we intercept an operator or a scope opens. Inside an operator of a scope the key
// is excluded, so no fake mode in C++ works there. Before torch 2.14, another library's fake mode,
// in any thread, makes ordinary tensors while a scope is open.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

// Call at import, while no other thread runs an operator. Pointer readers (pointer_readers.h) have
// their own kernels by then.
void register_interception();

// Whether somebody else has a fallback on the key. Costs two loads.
inline bool others_have_key() {
  return c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey);
}
// If the call is meant for that fallback, calls the fallback; else does nothing and returns false.
bool hand_over(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Puts our kernels in front of those that others registered on the key after ours. Takes some 100
// us, and the dispatcher's lock: the caller must not hold Python's.
void take_key();

}  // namespace dtr
