// Finds values side by side in memory whose eviction leaves one hole that holds the request.
//
// Victims chosen one by one lie anywhere in memory. Their holes are too small for the request, so
// more values must be evicted. A window is a run of adjacent blocks that are free or evictable.
// With two pointers we find, for each block, the shortest run that ends with the block and is large
// enough. We take the run of least score. A run is scored as if it were one value (score.h) of the
// request's size. Its cost is the sum over the run's values and their neighbourhoods; each evicted
// class counts once. Its staleness is the mean over the run's evictable bytes. Evicted classes only
// add to a cost. So we look them up only for the few runs that would be cheapest without them.
// Cost: O(blocks and their neighbours), about 5 ns a block (perf/choice/decision_cost.py). Source:
// Zhang et al., Coop, NeurIPS 2023, for the one pass; the score is ours.

#pragma once

#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"

namespace dtr {

struct Window {
  std::vector<Value*> values;  // In address order; empty if there is no window.
  Nanos cost = 0ns;            // The cost of recomputing the values.
};

// The inputs of a search. Hold the engine's lock while it runs.
struct WindowSearch {
  const Pool& pool;
  const ScoreColumns& columns;
  Neighbourhood& neighbourhood;
  const Heuristic& heuristic;
  Nanos clock;
};

// Returns the cheapest window. Its eviction leaves a hole of `bytes` or more, and `bytes` or more
// free in the budget.
Window cheapest_window(const WindowSearch& from, Bytes bytes);

}  // namespace dtr
