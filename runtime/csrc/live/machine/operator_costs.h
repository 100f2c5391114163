// Measures how long an operator runs on a device. (The host's clock would measure only the launch.)
//
// The same operator on the same shapes takes the same time, so only a few runs are measured. We put
// one time stamp into the stream before the run and one after it, and read both later, when the
// device has passed them. No thread ever waits for the device, and a program in its steady state
// makes no stamps. Until a time is known, cost() returns the caller's estimate. A look-up takes a
// lock and one probe of a hash table, 20 to 30 ns.
//
// Between two stamps the device may idle because the host is busy. Three rules keep such runs out.
// The first run is not measured: it loads the kernel. A run during which the host evicted, or made
// or moved pages, is "disturbed" and does not count, unless nearly all runs are. The cost is the
// least of samples from different steps, since all layers of one step may be slowed alike.

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "dtr_alloc/pool/csrc/device_work.h"

namespace dtr {

class Costs {
 public:
  using Key = std::uint64_t;  // A hash of an operator and its arguments' shapes.
  struct Sample {
    Key key = 0;
    void* first = nullptr;  // The first time stamp; null if this run is not measured.
  };
  static constexpr int kSamples = 3;
  static constexpr int kRunsApart = 64;  // Runs between two samples, if there are no steps.
  static constexpr int kPatience = 8;    // If so many runs in a row are disturbed, the last counts.
  static constexpr std::size_t kMostUnderWay = 256;  // At so many unread samples, we take no more.
  static constexpr std::size_t kMost = 1 << 16;      // At so many keys, all are erased.

  explicit Costs(DeviceWork& work) : work_(work) {}
  ~Costs() {
    for (const UnderWay& sample : under_way_) {
      work_.give_back(sample.first);
      work_.give_back(sample.last);
    }
  }

  // Call begin() before a run and end() after it. Neither throws; a run may stay unmeasured.
  Sample begin(Key key, Stream stream, std::int64_t step) {
    const std::lock_guard lock(mutex_);
    collect();
    if (known_.size() >= kMost && !known_.contains(key)) known_.clear();
    Known& known = known_[key];
    if (known.samples >= kSamples || known.runs++ == 0) return {};
    const bool long_after = step == 0 && known.runs - known.run >= kRunsApart;
    const bool apart = known.step != step || long_after;
    if (!apart || under_way_.size() >= kMostUnderWay) return {};
    try {
      void* first = work_.stamp(stream);
      known.step = step;
      known.run = known.runs;
      stamps_++;
      return {key, first};
    } catch (const std::exception&) {
      return {};
    }
  }

  void end(const Sample& sample, Stream stream, bool disturbed) {
    if (sample.first == nullptr) return;
    const std::lock_guard lock(mutex_);
    Known& known = known_[sample.key];
    if (disturbed && ++known.disturbed < kPatience) {
      known.step = -1;  // So that the next run is measured.
      return work_.give_back(sample.first);
    }
    try {
      under_way_.push_back({sample.key, sample.first, work_.stamp(stream)});
      known.samples++;
      known.disturbed = 0;
      stamps_++;
    } catch (const std::exception&) {
      work_.give_back(sample.first);
    }
  }

  void abandon(const Sample& sample) {  // Call if the run failed.
    if (sample.first != nullptr) work_.give_back(sample.first);
  }

  Nanos cost(Key key, Nanos estimate) const {
    const std::lock_guard lock(mutex_);
    const auto at = known_.find(key);
    return at == known_.end() || at->second.least == 0ns ? estimate : at->second.least;
  }
  std::int64_t stamps() const {
    const std::lock_guard lock(mutex_);
    return stamps_;
  }

 private:
  struct Known {
    int runs = 0;  // Counted until there are enough samples.
    int samples = 0, disturbed = 0;
    int run = 0;             // The number of the last measured run.
    std::int64_t step = -1;  // The step of that run.
    Nanos least = 0ns;       // The least time of all samples; 0 if there is none yet.
  };
  struct UnderWay {
    Key key;
    void* first;
    void* last;
  };

  // Reads the samples whose stamps the device has passed, in the order of the runs. So a slow
  // stream may delay the samples of other streams, which does no harm.
  void collect() {
    while (!under_way_.empty()) {
      const UnderWay sample = under_way_.front();
      Nanos passed{};  // 0 if the measurement failed.
      try {
        const std::optional<Nanos> measured = work_.between(sample.first, sample.last);
        if (!measured) return;
        passed = std::max<Nanos>(*measured, 1ns);
      } catch (const std::exception&) {
        // We ignore the device's error: the code that ran the work gets it.
      }
      under_way_.pop_front();
      work_.give_back(sample.first);
      work_.give_back(sample.last);
      if (passed == 0ns) continue;
      Known& known = known_[sample.key];
      known.least = known.least == 0ns ? passed : std::min(known.least, passed);
    }
  }

  DeviceWork& work_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, Known> known_;
  std::deque<UnderWay> under_way_;
  std::int64_t stamps_ = 0;
};

}  // namespace dtr
