// Finds neighbours in memory to evict, so that one hole holds the request.
//
// Victims chosen one by one lie anywhere in memory: they free bytes that the request cannot use,
// and more must follow. A window is a run of free and evictable blocks; a pinned block ends a run.
// For each block we look at the shortest run that ends there and holds the request, by two pointers
// over sums in address order, and take the cheapest run. A run is scored as one value (score.h),
// with the request's size: the cost of its members, with shared missing neighbours counted once,
// over the mean staleness of its bytes. Shared neighbours are looked up only for runs that would be
// cheapest without them, which are few. Cost: O(blocks and their neighbours), about 5 ns a block
// (perf/choice/decision_cost.py). Source: Zhang et al., Coop, NeurIPS 2023 (one pass); shared
// neighbours and the score of the whole are ours.

#pragma once

#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"

namespace dtr {

struct Window {
  std::vector<Value*> values;  // Empty if there is no window.
  Nanos cost = 0ns;            // Of recomputing them.
};

// The inputs of a search. The engine's lock is held.
struct WindowSearch {
  const Pool& pool;
  const ScoreColumns& columns;
  Neighbourhood& neighbourhood;
  const Heuristic& heuristic;
  Nanos clock;
};

// Evicting the window's values leaves a hole of `bytes` or more, and room for it in the budget.
Window cheapest_window(const WindowSearch& from, Bytes bytes);

}  // namespace dtr
