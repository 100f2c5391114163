#include "runtime/csrc/policy/device_scorer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace dtr {
namespace {

// As in kernels/ahead.py.
constexpr unsigned kThreads = 128, kSharedBytes = 1024;
constexpr std::size_t kRowsAtOnce = 16;  // Count rows up to a multiple: the rest is not evictable.

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

const char* kernel_of(const Heuristic& h) {
  constexpr const char* kPlain = "least_of_tiles_plain";
  constexpr const char* kGeneral = "least_of_tiles_general";
  return plain(h) ? kPlain : kGeneral;
}

// The numbers of the formula as the kernel's arguments.
std::vector<double> kernel_settings(const Heuristic& h) {
  std::vector<double> settings;
  for_each_number(h, [&](ParameterRole role, double value) {
    settings.push_back(role == ParameterRole::kFactor ? std::log2(value) : value);
  });
  return settings;
}

std::size_t up(std::size_t number, std::size_t unit) { return (number + unit - 1) / unit * unit; }

}  // namespace

std::size_t crossover(double host_row, std::size_t few, double device_few, std::size_t many,
                      double device_many) {
  double device_row = std::max(0.0, (device_many - device_few) / static_cast<double>(many - few));
  double begin = std::max(0.0, device_few - device_row * static_cast<double>(few));
  if (host_row <= device_row) return kNever;
  return static_cast<std::size_t>(std::ceil(begin / (host_row - device_row)));
}

LooseColumns::LooseColumns(const RowMemory& get_memory, std::size_t rows)
    : memory(get_memory(up(rows, kRowsAtOnce) * kRowBytes)), capacity(up(rows, kRowsAtOnce)) {
  std::byte* next = memory.get();
  for_each_column(*this, [&]<typename T>(T*& column) {
    column = reinterpret_cast<T*>(next);
    next += capacity * sizeof(T);
  });
}

DeviceScorer::DeviceScorer(int device, const std::string& image, const Heuristic& heuristic,
                           ScorerPlace place)
    : heuristic_(heuristic),
      settings_(kernel_settings(heuristic)),
      kernel_(std::make_unique<CudaKernel>(device, image, kernel_of(heuristic))) {
  if (place == ScorerPlace::kAuto) measure();
}

std::shared_ptr<std::byte[]> DeviceScorer::memory(std::size_t bytes) {
  return kernel_ ? kernel_->memory(bytes) : std::make_shared<std::byte[]>(bytes);
}

void DeviceScorer::measure() {
  constexpr std::size_t kFew = 1024, kMany = 1 << 16;
  constexpr int kRounds = 4;  // The first may load and allocate.
  LooseColumns columns([this](std::size_t bytes) { return memory(bytes); }, kMany);
  for (std::size_t row = 0; row < kMany; ++row) {
    auto number = static_cast<std::int64_t>(row);
    columns.size[row] = 512 * (1 + number % 1000);
    columns.last_access[row] = 1000 * number;
    columns.cost[row] = 5000 + 7 * number;
    columns.order[row] = row;
    columns.recomputes[row] = static_cast<std::int32_t>(row % 4);
    columns.evictable[row] = 1;
  }
  Scorer scorer(heuristic_);
  const Nanos clock{1000 * kMany};
  double host = std::numeric_limits<double>::infinity(), few = host, many = host;
  const auto time = [](double& least, auto way) {
    auto begin = std::chrono::steady_clock::now();
    way();
    least = std::min(least, seconds_since(begin));
  };
  for (int round = 0; round < kRounds; ++round) {
    time(host, [&] { scorer.choose(columns.view(kMany), clock); });
    for (auto [rows, least] : {std::pair{kFew, &few}, std::pair{kMany, &many}}) {
      bool found = true;
      time(*least, [&] { found = find_least(columns.view(rows), clock); });
      if (!found) throw std::runtime_error("the device cannot see the host's memory");
    }
  }
  host_row_ = host / static_cast<double>(kMany);
  threshold_ = crossover(host_row_, kFew, few, kMany, many);
}

// Device addresses of the columns that the kernel reads, and of its answer; 0 if it cannot see one.
std::vector<cuda::Pointer> DeviceScorer::seen_by_device(const ColumnsView& columns) const {
  std::vector<cuda::Pointer> seen;
  for_each_column(columns, [&](const auto* column) {
    const void* place = column;
    if (place != columns.order) seen.push_back(kernel_->seen(place));
  });
  seen.push_back(kernel_->seen(least_.get()));
  return seen;
}

// Fills `least_`. Returns false if the device cannot see the columns or the answer's place; throws
// what the driver throws.
bool DeviceScorer::find_least(const ColumnsView& columns, Nanos clock) {
  std::size_t tiles = up(columns.count, kScoreTile) / kScoreTile;
  if (tiles_ < tiles) {
    least_ = kernel_->memory(2 * tiles * sizeof(double));
    tiles_ = 2 * tiles;
  }
  std::vector<cuda::Pointer> seen = seen_by_device(columns);
  if (std::find(seen.begin(), seen.end(), 0) != seen.end()) return false;
  std::int64_t rows = static_cast<std::int64_t>(up(columns.count, kRowsAtOnce));
  std::int64_t now = clock.count(), epsilon = heuristic_.epsilon.count();
  cuda::Pointer scratch[2] = {};  // Required by Triton, without bytes.
  std::vector<void*> parameters;
  for (cuda::Pointer& place : seen) parameters.push_back(&place);
  for (std::int64_t* number : {&rows, &now, &epsilon}) parameters.push_back(number);
  for (double& setting : settings_) parameters.push_back(&setting);
  for (cuda::Pointer& place : scratch) parameters.push_back(&place);
  kernel_->run(static_cast<unsigned>(tiles), kThreads, kSharedBytes, parameters.data());
  return true;
}

std::optional<Scorer::Choice> DeviceScorer::choose(Scorer& scorer, const ColumnsView& columns,
                                                   Nanos clock) {
  if (!kernel_ || columns.count == 0 || columns.count < threshold_) return std::nullopt;
  auto begin = std::chrono::steady_clock::now();
  try {
    if (!find_least(columns, clock)) return std::nullopt;
  } catch (const std::exception&) {
    kernel_.reset();
    return std::nullopt;
  }
  ++choices_;
  Scorer::Choice choice =
      scorer.choose_near(columns, clock, reinterpret_cast<const double*>(least_.get()));
  if (host_row_ > 0) note_time(seconds_since(begin), columns.count);
  return choice;
}

// After three choices running that the host would have made sooner, raises the threshold.
void DeviceScorer::note_time(double seconds, std::size_t rows) {
  const bool late = seconds > host_row_ * static_cast<double>(rows);
  late_ = late ? late_ + 1 : 0;
  if (late_ < 3) return;
  threshold_ = 2 * rows;
  late_ = 0;
}

}  // namespace dtr
