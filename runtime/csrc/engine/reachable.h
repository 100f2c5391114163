// Collects all values of the graph: those that the engine lists, and all that recipes link to them.

#pragma once

#include <unordered_set>
#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

// The engine's lists: resident values with a recipe; recomputable values that the program holds.
std::unordered_set<Value*> reachable(const ScoreColumns& candidates,
                                     const std::vector<Value*>& owned);

}  // namespace dtr
