// Scores candidates for eviction on a CUDA device, if there are so many candidates that the device
// is faster than the host.
//
// The engine's columns lie in memory that the device can read. One launch of a Triton kernel,
// compiled ahead of time (kernels/ahead.py), finds the least score of each tile of rows. The host
// scores only the tiles whose least score is near the lowest one, and chooses among their rows as
// it would among all rows. So the victim is the one that the host alone would choose, even if the
// device rounds powers in another way.
//
// Which is faster depends on the bus and the heuristic: without powers, the host scores a row
// faster than the bus carries it; with powers, several times slower. So the constructor times both,
// and the device scores from a certain count of rows on, the crossover, where it is faster. Later,
// the program's kernels may delay ours: if it is slower than the host three times in a row, the
// crossover becomes twice the present row count. After a failed driver call only the host scores.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/kernel.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/score.h"
#include "runtime/csrc/policy/scorer.h"

namespace dtr {

enum class ScorerPlace { kAuto, kHost, kDevice };

constexpr std::size_t kNever = SIZE_MAX;

// Returns the row count above which the device is faster; it was timed with `few` and `many` rows.
std::size_t crossover(double host_row, std::size_t few, double device_few, std::size_t many,
                      double device_many);

// Columns that belong to no Values, for measurements and tests.
struct LooseColumns : ColumnPointers {
  LooseColumns(const RowMemory& get_memory, std::size_t rows);
  ColumnsView view(std::size_t rows) const { return view_of(*this, rows); }

  std::shared_ptr<std::byte[]> memory;
  std::size_t capacity;  // A multiple of 16.
};

class DeviceScorer {
 public:
  // The device scores from the crossover on, or always if `place` is kDevice. Throws if a driver
  // call fails.
  DeviceScorer(int device, const std::string& image, const Heuristic& heuristic, ScorerPlace place);

  std::shared_ptr<std::byte[]> memory(std::size_t bytes);  // For columns.

  // Returns nothing if the host must choose: if rows are too few, or the driver has failed.
  std::optional<Scorer::Choice> choose(Scorer& scorer, const ColumnsView& columns, Nanos clock);

  std::int64_t choices() const { return choices_; }
  std::int64_t scores_from() const {  // The fewest rows that the device scores; -1: never.
    return kernel_ && threshold_ != kNever ? static_cast<std::int64_t>(threshold_) : -1;
  }

 private:
  void measure();
  std::vector<cuda::Pointer> seen_by_device(const ColumnsView& columns) const;
  bool find_least(const ColumnsView& columns, Nanos clock);
  void note_time(double seconds, std::size_t rows);

  const Heuristic heuristic_;
  std::vector<double> settings_;        // The formula's numbers, as kernel arguments.
  std::unique_ptr<CudaKernel> kernel_;  // Null after a failure.
  std::shared_ptr<std::byte[]> least_;  // The least score of each tile, a double.
  std::size_t tiles_ = 0;               // For how many tiles least_ has room.
  std::size_t threshold_ = 0;
  double host_row_ = 0;  // The host's seconds per row; 0: not timed.
  int late_ = 0;         // How often in a row the device was slower.
  std::int64_t choices_ = 0;
};

}  // namespace dtr
