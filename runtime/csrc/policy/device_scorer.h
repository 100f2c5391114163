// Scoring on a CUDA device, where candidates are so many that it pays.
//
// The engine's columns lie in memory that the device sees, and one launch of a Triton kernel that
// was compiled ahead (kernels/ahead.py) finds the least score of each tile. The host scores the
// tiles that are near the least of all, and chooses among those rows as it would among all: so the
// victim is the host's, whatever the last bits of the device's powers are.
//
// Whether it pays depends on the bus and on the score: a row without powers takes the host less
// time than the bus does to carry it, one with powers several times more. So both are timed at the
// start, and from the crossover on the device is asked. What the program's own kernels do to it
// cannot be timed beforehand; where the device is later than the host would be three times running,
// rows must be twice as many from then on. A call of the driver that fails ends it: the host scores
// from then on.

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

// From how many rows on the device is faster. It was timed with `few` and with `many` rows.
std::size_t crossover(double host_row, std::size_t few, double device_few, std::size_t many,
                      double device_many);

// Columns without values, for measurements and tests.
struct LooseColumns : ColumnPointers {
  LooseColumns(const RowMemory& get_memory, std::size_t rows);
  ColumnsView view(std::size_t rows) const { return view_of(*this, rows); }

  std::shared_ptr<std::byte[]> memory;
  std::size_t capacity;  // A multiple of 16.
};

class DeviceScorer {
 public:
  // The device is asked from the crossover on, or always where `place` is kDevice. Throws what the
  // driver throws.
  DeviceScorer(int device, const std::string& image, const Heuristic& heuristic, ScorerPlace place);

  std::shared_ptr<std::byte[]> memory(std::size_t bytes);  // For rows.

  // Nothing where the host is to choose by itself: rows are few, or the driver has failed.
  std::optional<Scorer::Choice> choose(Scorer& scorer, const ColumnsView& columns, Nanos clock);

  std::int64_t choices() const { return choices_; }
  // How many rows there must be; -1: never.
  std::int64_t scores_from() const {
    return kernel_ && threshold_ != kNever ? static_cast<std::int64_t>(threshold_) : -1;
  }

 private:
  void measure();
  std::vector<cuda::Pointer> seen_by_device(const ColumnsView& columns) const;
  bool find_least(const ColumnsView& columns, Nanos clock);
  void note_time(double seconds, std::size_t rows);

  const Heuristic heuristic_;
  std::vector<double> settings_;        // As the kernel wants them.
  std::unique_ptr<CudaKernel> kernel_;  // Null after a failure.
  std::shared_ptr<std::byte[]> least_;  // A double for each tile.
  std::size_t tiles_ = 0;               // That there is room for.
  std::size_t threshold_ = 0;
  double host_row_ = 0;  // Seconds; 0 where the host is not to be compared with.
  int late_ = 0;         // Times running.
  std::int64_t choices_ = 0;
};

}  // namespace dtr
