// Operators that are made of other operators, so that the dispatcher need not show them to us, and
// those of them that read memory through a pointer all the same.
//
// A composite kernel runs at autograd's keys, above ours, or in inference mode at the backend's, below
// (torch 2.11 to 2.15). What it calls, we see. What it reads or writes through a pointer, we do not,
// and an evicted tensor has no memory there. So the operators of a table get kernels of ours at
// autograd's keys and at kKey, which keep in memory what torch's kernel reads, and call that. Outside
// of scopes they cost a boxed call. All other composite operators cost nothing.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace dtr {

bool is_composite(const c10::OperatorHandle& op);

// Whether it is one of the table. Nothing else may be registered for it at our key.
bool reads_pointers(const c10::OperatorHandle& op);
void register_pointer_readers();

}  // namespace dtr
