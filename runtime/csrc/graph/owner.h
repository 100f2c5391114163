// Tells which value's content lies in a block of the pool. The pool knows nothing of values: it
// stores a pointer that it never follows. Only this file knows that the pointer is a Value's.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

// Null, here and below: nothing can be evicted from the block.
inline void set_owner(Block& block, Value* value) { block.owner = value; }
inline Value* as_value(void* owner) { return static_cast<Value*>(owner); }  // From the pool.
inline Value* owner_of(const Block& block) { return as_value(block.owner); }

}  // namespace dtr
