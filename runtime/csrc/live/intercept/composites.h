// Composite operators whose kernels read memory through a pointer (operators/pointer_readers.h).
//
// A composite kernel runs at autograd's keys, above ours, or in inference mode at the backend's,
// below (torch 2.11 to 2.15). What it calls, we see. What it reads or writes through a pointer, we
// do not, and an evicted tensor has no memory there. So the operators of that table get kernels of
// ours at autograd's keys and at kKey, which keep in memory what torch's kernel reads, and call
// that. Outside of scopes they cost a boxed call. All other composite operators cost nothing.

#pragma once

namespace dtr {

void register_pointer_readers();

}  // namespace dtr
