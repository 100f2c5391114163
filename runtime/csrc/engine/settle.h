// Turns values into constants, which are never evicted: those computed from a constant that is
// about to change or is lost; those whose recipes keep too much memory; and all, when a scope ends.
// All are called with the engine's lock held.

#pragma once

#include <functional>
#include <vector>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

void settle_together(Engine& engine, const std::vector<Value*>& values);

// Settles every value of the program that was computed from `constant`, even indirectly, so that
// the constant may change; with `since`, only values made or read from then on. An error about one
// value is thrown after the others are settled.
void retire(Engine& engine, Value& constant, Lock& lock, Nanos since = Nanos::min());

// The content of `lost` will not come back. Settles the resident values computed from it that the
// program holds. Missing ones cannot be recomputed any more.
void forsake(Engine& engine, const Value& lost);

// A constant that the program has dropped may stay in memory because recipes read it. If the
// program's values computed from it are resident and together no larger, settles these values,
// which runs no operator, so that the constant can be freed. Returns whether it settled any.
bool shed(Engine& engine, Value& constant);
// Calls shed() for each constant behind the value that only recipes hold.
bool shed_behind(Engine& engine, Value& value);

// Freezes everything the program holds: afterwards nothing is recomputable and no record is left.
// `spill` is called when a value cannot be brought back within the budget; it makes room, or
// returns false. An error about one value is thrown after the others are frozen.
void commit(Engine& engine, Lock& lock, const std::function<bool()>& spill);

// Brings back each value that the program holds if `has_room` for its bytes, and freezes none.
// Returns whether all are resident at the end. An error about one value is thrown after the others
// are back.
bool return_all(Engine& engine, Lock& lock, const std::function<bool(Bytes)>& has_room);

// Freezes the program's resident values, and calls `give_up`, which drops a value, for each missing
// value.
void freeze_resident(Engine& engine, const std::function<void(Value&)>& give_up);

}  // namespace dtr
