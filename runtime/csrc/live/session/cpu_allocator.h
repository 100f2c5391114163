// Replaces torch's CPU allocator, so that tensors made in a scope lie in the session's memory. Our
// allocator is installed once, at import, and never removed, because storages remember their
// allocator. Outside a scope it passes every request to the replaced allocator.

#pragma once

#include <c10/core/Allocator.h>

namespace dtr {

void install_cpu_allocator();
at::Allocator& ordinary_cpu_allocator();  // The allocator that was replaced.
// The deleter of every untracked tensor made in a scope. `data` is the tensor's data pointer.
void scope_deleter(void* data);

}  // namespace dtr
