// Defines the options and the results of every simulation.

#pragma once

#include <cstdint>
#include <optional>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// Where the pool puts a block (two_ended_placement.h).
enum class Placement { kBestFit, kTwoEnded };

// How values leave memory, given a link to a second tier: dropped, moved, or as is cheaper.
enum class Leaving { kDrop, kSwap, kBoth };

struct SimulationOptions {
  Bytes budget = 0;
  Heuristic heuristic;
  Policy policy = Policy::kEager;
  // The defaults are the paper's: a view is computed like any result, and all records of operators
  // are kept. In the live runtime, views share their storage, and unneeded records are freed.
  bool free_views = false;
  KeepRecords records = KeepRecords::kAll;
  Nanos remat_limit = 0ns;  // With more recomputation, the run ends (kThrash). 0: no limit.
  bool remap = true;        // The arena has addresses to spare, so that pages can be moved.
  std::optional<MovePrices> prices;  // Prices of moving pages; else the arena's.
  Placement placement = Placement::kBestFit;
  std::int64_t layouts = 0;      // How many pictures of the pool to take, at even intervals.
  bool logical_clock = false;    // In scores, an operator costs the bytes that it touches.
  bool pin_outputs = true;       // What the program holds at the end must be in memory together.
  bool log_events = false;       // Keep evictions and computations, in order.
  std::optional<Transfer> link;  // To a second tier of any size.
  Leaving leaving = Leaving::kBoth;
};

// The results of a run, with the names that they also have in Python. In the order of the list:
//   The peak of memory in bytes; the time of first runs; the time of reruns.
//   Values that lost their content, and how many of them the program dropped. Reruns of operators,
//   and the further outputs that they brought back. Scores computed; records visited for scores.
//   For requests that the pool could not serve at once: their number; the sum of 1 - (largest hole
//   / free bytes) before each; the sum of free bytes / budget after each; bytes evicted; how many
//   of these exceeded the requests; time to find room; time to move pages (at `prices`).
//   Over the link: bytes out; bytes in; how often a value came back; how long the program waited.
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
