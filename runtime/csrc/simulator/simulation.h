// Defines the options and the results of every simulation.

#pragma once

#include <cstdint>
#include <optional>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Where the pool puts a block (two_ended_placement.h).
enum class Placement { kBestFit, kTwoEnded };

// How a value leaves memory if there is a link to a second tier.
enum class Leaving { kDrop, kSwap, kBoth };

struct SimulationOptions {
  Bytes budget = 0;
  Heuristic heuristic;
  Policy policy = Policy::kEager;
  // The paper's simulator recomputes views by separate operators, and keeps every record. In the
  // live runtime, views share their storage and need no operator, and unneeded records are freed.
  bool free_views = false;
  KeepRecords records = KeepRecords::kAll;
  Nanos remat_limit = 0ns;  // More recomputation than this is thrash. 0: no limit.
  bool remap = true;        // The arena has addresses to spare, so that pages can be moved.
  std::optional<MovePrices> prices;  // Of moving pages; else the usual ones.
  Placement placement = Placement::kBestFit;
  std::int64_t layouts = 0;      // How many pictures of the pool to take, evenly over the run.
  bool logical_clock = false;    // Victims are chosen as if operators cost the bytes they touch.
  bool pin_outputs = true;       // Outputs held at the end must be in memory together.
  bool log_events = false;       // Keep evictions and computations, in order.
  std::optional<Transfer> link;  // To a second tier of any size.
  Leaving leaving = Leaving::kBoth;
};

// The results of a run: type, and name, also in Python. In their order:
//   The most bytes at once; the time of the operators, and of their reruns.
//   Values that lost their content, and how many of them the program dropped. Reruns of operators,
//   and other outputs that the reruns brought back. Scores computed, and records visited.
//   For requests that the pool could not serve at once: how many; the sums of 1 - largest hole /
//   free bytes before, and of free bytes / budget after; bytes evicted, and bytes evicted beyond
//   the request; time to find room; time to move pages, at SimulationOptions::prices.
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

// What happened to a tensor, in a log of events.
enum SimulationEvent : std::int64_t { kComputed, kEvicted, kDropped };

}  // namespace dtr
