// What every simulation is asked, and what it tells.

#pragma once

#include <cstdint>
#include <optional>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Where the pool puts a block (two_ended_placement.h).
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

// What a run is measured by: type, and name for Python, too. In their order:
//   Bytes at most at once; time of the operators, and of those that ran again.
//   Values that lost their content, and those of them that the program let go. Operators that ran
//   again, and other outputs that these brought back. Scores computed, and what was visited.
//   Of requests that the pool could not serve at once: how many; the sums of 1 - largest hole /
//   free before, and of free / budget after; bytes evicted, and beyond what was asked; time to
//   find room; what moving pages would take, at SimulationOptions::prices.
//   Over the link: bytes each way, how often a value came back, how long the program waited.
#define DTR_SIMULATION_COUNTS(X)      \
  X(Bytes, peak_bytes)                \
  X(Nanos, base_compute)              \
  X(Nanos, remat_compute)             \
  X(std::int64_t, evictions)          \
  X(std::int64_t, eager_evictions)    \
  X(std::int64_t, rematerializations) \
  X(std::int64_t, collateral)         \
  X(std::int64_t, evaluations)        \
  X(std::int64_t, accesses)           \
  X(std::int64_t, misses)             \
  X(double, fragmentation)            \
  X(double, free_after)               \
  X(Bytes, evicted_bytes)             \
  X(Bytes, wasted_bytes)              \
  X(Nanos, search_ns)                 \
  X(Nanos, move_ns)                   \
  X(Bytes, swapped_out_bytes)         \
  X(Bytes, swapped_in_bytes)          \
  X(std::int64_t, reloads)            \
  X(Nanos, waited_ns)

struct SimulationCounts {
  Bytes usage = 0;
#define DTR_COUNT(type, name) type name{};
  DTR_SIMULATION_COUNTS(DTR_COUNT)
#undef DTR_COUNT
};

enum class SimulationStatus { kOk, kOutOfMemory, kThrash };

// What a log of events tells of a tensor.
enum SimulationEvent : std::int64_t { kComputed, kEvicted, kDropped };

}  // namespace dtr
