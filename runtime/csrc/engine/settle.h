// How values become constants, which are never evicted: one with all that rests on it, before it is
// changed or after it is lost; what would keep too much for its recipe alone; or everything, at the
// end of a scope. The engine's lock is held.

#pragma once

#include <functional>
#include <vector>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

void settle_together(Engine& engine, const std::vector<Value*>& values);

// Settles every live value that reads `constant`, however indirectly, so that the constant may be
// changed. With `since`, those alone that were made or read from then on. An error about one of
// them is thrown when the others are settled.
void retire(Engine& engine, Value& constant, Lock& lock, Nanos since = Nanos::min());

// The content of `lost` will not come back. Freezes what rests on it, is resident and held by the
// program. The rest cannot be recomputed.
void forsake(Engine& engine, const Value& lost);

// What the program has let go may live on because recipes read it: an input, a copy. Where no
// more than its size rests on it, and all that is resident, that becomes constant instead, for
// which nothing need be run. Returns whether anything did.
bool shed(Engine& engine, Value& constant);
// The same for each constant behind the value that only recipes hold.
bool shed_behind(Engine& engine, Value& value);

// Freezes everything the program holds: afterwards nothing is recomputable and no record is left.
// `spill` is called when a value cannot be brought back within the budget; it makes room and
// returns true, or gives up. An error about one value is thrown when the others are frozen.
void commit(Engine& engine, Lock& lock, const std::function<bool()>& spill);

// Brings back what the program holds, of each value if there is room for its bytes, and freezes
// nothing. Whether all of it is there together. An error about one value is thrown when the
// others are back.
bool return_all(Engine& engine, Lock& lock, const std::function<bool(Bytes)>& has_room);

// Freezes what the program holds and is in memory, and calls `give_up` for the rest, which drops
// it.
void freeze_resident(Engine& engine, const std::function<void(Value&)>& give_up);

}  // namespace dtr
