// Collects all values of the graph, starting from those that the engine lists.

#pragma once

#include <unordered_set>
#include <vector>

#include "runtime/csrc/policy/columns.h"

namespace dtr {

// `owned`: recomputable values that the program holds. Others are candidates or linked to one.
std::unordered_set<Value*> reachable(const ScoreColumns& candidates,
                                     const std::vector<Value*>& owned);

}  // namespace dtr
