// Finds neighbours in memory to evict, so that one hole holds the request.
//
// Victims chosen one by one lie anywhere in memory: they free bytes that the request cannot use, so
// more follow. A window is a run of adjacent blocks that are free or evictable. For each block, two
// pointers find the shortest run that ends with the block and holds the request. We take the
// cheapest run. A run is scored as one value (score.h) of the request's size: the cost of its
// members, with shared missing neighbours counted once, over the mean staleness of its bytes.
// Shared neighbours only add to a run's cost, so we look them up only if the run would be cheapest
// without this cost: for few runs. Cost: O(blocks and their neighbours), about 5 ns a block
// (perf/choice/decision_cost.py). Source: Zhang et al., Coop, NeurIPS 2023 (one pass); shared
// neighbours and a run's score are ours.

#pragma once

#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"

namespace dtr {

struct Window {
  std::vector<Value*> values;  // Empty if there is no window.
  Nanos cost = 0ns;            // Of recomputing the values.
};

// The inputs of a search, made with the engine's lock held.
struct WindowSearch {
  const Pool& pool;
  const ScoreColumns& columns;
  Neighbourhood& neighbourhood;
  const Heuristic& heuristic;
  Nanos clock;
};

// Evicting the window's values leaves a hole of `bytes` or more, and as much room in the budget.
Window cheapest_window(const WindowSearch& from, Bytes bytes);

}  // namespace dtr
