// Settles values: makes them movable to the swap or, without swap, constants, which are never
// evicted. We settle values computed from a constant that changes or is lost, and values whose
// recipes keep too much memory. When a scope ends, all become constants. The engine's lock is held.

#pragma once

#include <functional>
#include <vector>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

void settle_together(Engine& engine, const std::vector<Value*>& values);

// Recomputes and settles every value of the program that was computed from `constant`, even
// indirectly, so that the constant may change. With `since`, only values made or read from then on.
// An error is thrown after all other values are settled.
void retire(Engine& engine, Value& constant, Lock& lock, Nanos since = Nanos::min());

// Call when the content of `lost` never comes back. Settles the program's resident values that were
// computed from it. Missing values computed from it are lost, too.
void forsake(Engine& engine, const Value& lost);

// Frees a constant that is in memory only because recipes read it. If the program's values computed
// from it are resident, unlocked and together no larger, settles them and so erases their recipes.
// Runs no operator. Returns whether it settled any.
bool shed(Engine& engine, Value& constant);
// Calls shed() for each constant in the value's history (histories.h).
bool shed_behind(Engine& engine, Value& value);

// Makes all the program's values constants, so that no record is left. If a value cannot be brought
// back within the budget, calls `spill`, which makes room or returns false. An error is thrown
// after all other values are constants.
void commit(Engine& engine, Lock& lock, const std::function<bool()>& spill);

// Brings back each value that the program holds if `has_room` for its bytes, and leaves it
// evictable. Returns whether all are resident at the end. An error is thrown after all other values
// are back.
bool return_all(Engine& engine, Lock& lock, const std::function<bool(Bytes)>& has_room);

// Makes the program's resident values constants. Calls `give_up` for each missing value. `give_up`
// must make the program drop that value.
void freeze_resident(Engine& engine, const std::function<void(Value&)>& give_up);

}  // namespace dtr
