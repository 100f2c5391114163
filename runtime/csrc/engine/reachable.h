// Collects all values of the graph, following recipes from those that the engine lists.

#pragma once

#include <unordered_set>
#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

// Starts from the candidates and `owned`, the recomputable values that the program holds.
std::unordered_set<Value*> reachable(const ScoreColumns& candidates,
                                     const std::vector<Value*>& owned);

}  // namespace dtr
