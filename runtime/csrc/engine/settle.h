// Settles values: frees them of their recipes. A settled value is movable to the swap or, if no
// swap can take it, a constant, which is never evicted. We settle a value if a constant that it was
// computed from changes or is lost, or if its recipes keep too much memory. When a scope ends, all
// its values become constants. Hold the engine's lock in all calls.

#pragma once

#include <functional>
#include <vector>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

void settle_together(Engine& engine, const std::vector<Value*>& values);

// Recomputes and settles every value of the program that was computed from `constant`, even
// indirectly, so that the constant may change. With `since`, only values made or read from then on.
// If a value cannot be recomputed, settles the others, then throws the error.
void retire(Engine& engine, Value& constant, Lock& lock, Nanos since = Nanos::min());

// Call when the content of the constant `lost` never comes back. Settles the program's resident
// values computed from it. Missing values computed from it can never be recomputed.
void forsake(Engine& engine, const Value& lost);

// Frees a constant that is in memory only because recipes read it, if the program's values that
// were computed from it are resident, unlocked, and together no larger than the constant. Settles
// these values, which erases the recipes. Runs no operator. Returns whether it settled any.
bool shed(Engine& engine, Value& constant);
// Calls shed() for each constant in the value's history that only recipes keep (histories.h).
bool shed_behind(Engine& engine, Value& value);

// Brings back all the program's values and makes them constants, so that no recipe is left. If this
// fails for a value, calls `spill`, and tries again if that made room and returned true. If it
// returned false, makes all other values constants, then throws the error.
void commit(Engine& engine, Lock& lock, const std::function<bool()>& spill);

// Brings back each missing value that the program holds, if has_room(its bytes), and leaves it
// evictable. Returns whether all the program's values are then resident. If a value cannot be
// recomputed, brings back the others, then throws the error.
bool return_all(Engine& engine, Lock& lock, const std::function<bool(Bytes)>& has_room);

// Makes the program's resident values constants. For each missing value calls `give_up`, which must
// call Engine::dropped() for it.
void freeze_resident(Engine& engine, const std::function<void(Value&)>& give_up);

}  // namespace dtr
