// Torch's CPU allocator while a scope is open: tensors come from the session's memory. It is
// installed once, at import, and never taken out, because storages remember their allocator;
// outside a scope it hands every request to torch's own.

#pragma once

#include <c10/core/Allocator.h>

namespace dtr {

void install_cpu_allocator();
at::Allocator& ordinary_cpu_allocator();  // The one that was there before.
// Of every ordinary tensor made in a scope; its context is the data pointer.
void scope_deleter(void* data);

}  // namespace dtr
