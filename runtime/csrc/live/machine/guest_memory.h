// Memory that torch's own CPU allocator keeps, and that is only counted here. For programs whose
// tensors must stay ordinary ones, each an allocation of its own.
//
// A block is what that allocator gave, and is freed by the deleter that it came with. In between
// the tensor carries our deleter (cpu_allocator.h), which finds the block by its address in a
// table: a DataPtr's context must stay the data pointer, which torch compares, and a header before
// the data would break whoever frees by the pointer alone. While a session tracks the tensor, from
// adopt() to disown(), the context is the value, which knows the block. All scopes share the table,
// since tensors outlive scopes.
//
// The budget bounds bytes, rounded to granules as a pool rounds them. It does not bound what malloc
// holds besides: its headers, and what it keeps of freed blocks. Nothing is known of holes.
//
// All is thread-safe. One mutex for the table, never held while memory is asked for or given back.

#pragma once

#include <c10/core/Allocator.h>

#include "dtr_alloc/pool/csrc/memory.h"

namespace dtr {

// A guest of a budget up to LARGEST_BUDGET (size.py).
Memory::Handle make_guest(at::Allocator& allocator, Bytes budget);

// Whether a live block of any guest starts there, which no session tracks.
bool guest_holds(const void* data);
void free_of_guest(const void* data);  // ... which must be so.
// Around fork(), so that a child does not inherit the table's lock.
void lock_guests();
void unlock_guests();

}  // namespace dtr
