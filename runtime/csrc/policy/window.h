// Which neighbours in memory to evict, so that one hole holds the request.
//
// Victims that are chosen one by one lie anywhere: they free bytes that the request cannot use, and
// the next victim pays again. A window is a run of free and evictable blocks; pinned ones break
// runs. For each block the shortest run that ends there and holds the request is looked at, by two
// pointers over sums in address order, and the cheapest is taken. Its score is that of one value
// (score.h) for the run as a whole, but for size, which is the request's: what all of it costs,
// missing neighbours that several members share counted once, over the staleness of its bytes in
// the mean. What is shared is only counted for runs that would be the cheapest without it, which
// are few. Cost: O(blocks and their neighbours), about 5 ns a block (perf/choice/decision_cost.py).
// Source: Zhang et al., Coop, NeurIPS 2023 (one pass); shared neighbours and the score of the whole
// are ours.

#pragma once

#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"

namespace dtr {

struct Window {
  std::vector<Value*> values;  // Empty where there is none.
  Nanos cost = 0ns;            // Of recomputing them.
};

// What a search reads. The engine's lock is held.
struct WindowSearch {
  const Pool& pool;
  const ScoreColumns& columns;
  Neighbourhood& neighbourhood;
  const Heuristic& heuristic;
  Nanos clock;
};

// To evict the window's values leaves a run of `bytes` or more, and the budget room for them.
Window cheapest_window(const WindowSearch& from, Bytes bytes);

}  // namespace dtr
