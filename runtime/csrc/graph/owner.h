// Tells which value's content lies in a block of the pool. The pool knows nothing of values: it
// stores a void pointer with each block. Only this file casts the pointer to Value*.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

// In these functions, a null value means that the block has no content that can be evicted.
inline void set_owner(Block& block, Value* value) { block.owner = value; }
inline Value* as_value(void* owner) { return static_cast<Value*>(owner); }  // Takes Block::owner.
inline Value* owner_of(const Block& block) { return as_value(block.owner); }

}  // namespace dtr
