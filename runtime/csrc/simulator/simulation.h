// What every simulation is asked, and what it tells.

#pragma once

#include <cstdint>
#include <optional>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Where the pool puts a block (paper/two_ended_placement.h).
enum class Placement { kBestFit, kTwoEnded };

// How a value leaves memory where there is a link to a second tier.
enum class Leaving { kDrop, kSwap, kBoth };

struct SimulationOptions {
  Bytes budget = 0;
  Heuristic heuristic;
  Policy policy = Policy::kEager;
  // The paper's simulator recomputes views as operators of their own, and keeps every record. Live,
  // views share their storage and need no operator, and a record that nothing can ask for goes.
  bool free_views = false;
  KeepRecords records = KeepRecords::kAll;
  Nanos remat_limit = 0ns;  // Thrash: more recomputation than this. 0 for no limit.
  bool remap = true;        // The arena has addresses to spare, so that pages can be moved.
  std::optional<MovePrices> prices;  // Of moving them; else the usual ones.
  Placement placement = Placement::kBestFit;
  std::int64_t layouts = 0;    // How many pictures of the pool to take, evenly over the run.
  bool logical_clock = false;  // Victims are chosen as if operators cost the bytes they touch.
  bool pin_outputs = true;  // What the program still holds at the end must be in memory together.
  bool log_events = false;  // Keep what was evicted and computed, in order.
  std::optional<Transfer> link;  // To a second tier, as large as need be.
  Leaving leaving = Leaving::kBoth;
};

struct SimulationCounts {
  Bytes usage = 0, peak = 0;
  Nanos base = 0ns, remat = 0ns;
  std::int64_t evictions = 0;  // Of them `eager` as the program let go.
  std::int64_t eager = 0;
  std::int64_t remats = 0, collateral = 0;  // Operators run again; other outputs they brought back.
  std::int64_t evaluations = 0, accesses = 0;

  // Of requests that the pool could not serve at once: how many; the sums of 1 - largest hole /
  // free before, and of free / budget after; bytes evicted beyond what was asked; time to find
  // room.
  std::int64_t misses = 0;
  double fragmentation = 0, free_after = 0;
  Bytes evicted_bytes = 0, wasted_bytes = 0;
  Nanos search_ns = 0ns;
  Nanos move_ns = 0ns;  // What moving pages would take, at SimulationOptions::prices.

  // Over the link: bytes each way, how often a value came back, how long the program waited.
  Bytes out = 0, in = 0;
  std::int64_t reloads = 0;
  Nanos waited = 0ns;
};

enum class SimulationStatus { kOk, kOutOfMemory, kThrash };

// What a log of events tells of a tensor.
enum SimulationEvent : std::int64_t { kComputed, kEvicted, kDropped };

}  // namespace dtr
