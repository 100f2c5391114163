// Whose content lies in a block of the pool. The pool knows nothing of values: it keeps an address
// that it never follows, and hands it out. That the address is a Value's, only this file knows.

#pragma once

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

// Each may be null: then nobody may be evicted from the block.
inline void set_owner(Block& block, Value* value) { block.owner = value; }
inline Value* as_value(void* owner) { return static_cast<Value*>(owner); }  // As the pool tells it.
inline Value* owner_of(const Block& block) { return as_value(block.owner); }

}  // namespace dtr
