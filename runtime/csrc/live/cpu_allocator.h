// Torch's CPU allocator while a scope is open: tensors come from the session's pool. It is
// installed once, at import, and never taken out, because storages remember their allocator;
// outside a scope it hands every request to torch's own.

#pragma once

namespace dtr {

void install_cpu_allocator();
void pool_deleter(
    void* data);  // Deleter of every ordinary pool tensor; its context is the data pointer.

}  // namespace dtr
