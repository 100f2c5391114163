// Measures what an operator costs on a device, where the host's clock only sees the launch.
//
// The same operator on the same shapes costs the same, so it is measured only a few times: by two
// time stamps around it, which we read later, when the device has passed them. No thread ever waits
// for the device, and a program in its steady state makes no stamp at all. Until a time is known,
// the caller's estimate is used.
//
// Between two stamps the device may be idle because the host is busy. Three rules exclude such
// times. The first run of an operator is not measured: it loads the kernel. A run in which the host
// made or moved pages or evicted does not count, unless nearly all runs are such. The cost is the
// least of samples from different steps, since all layers of one step may be disturbed alike.
//
// Looking a cost up takes a lock and one probe of a hash table, 20 to 30 ns.

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
  using Key = std::uint64_t;  // A hash of an operator and its shapes.
  struct Sample {
    Key key = 0;
    void* first = nullptr;  // Null: this run is not measured.
  };
  static constexpr int kSamples = 3;
  static constexpr int kRunsApart = 64;  // Runs between samples, in a program without steps.
  static constexpr int kPatience = 8;    // The last of so many disturbed runs in a row counts.
  static constexpr std::size_t kMostUnderWay = 256;  // Unread samples; then we take no more.
  static constexpr std::size_t kMost = 1 << 16;      // Keys. At so many, all are erased.

  explicit Costs(DeviceWork& work) : work_(work) {}
  ~Costs() {
    for (const UnderWay& sample : under_way_) {
      work_.give_back(sample.first);
      work_.give_back(sample.last);
    }
  }

  // Call begin() and end() around a run. Neither throws: they skip what they cannot measure.
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
      known.step = -1;  // The next run may be better.
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

  void abandon(const Sample& sample) {  // The run failed.
    if (sample.first != nullptr) work_.give_back(sample.first);
  }

  Nanos cost(Key key, Nanos estimate) const {
    const std::lock_guard lock(mutex_);
    const auto at = known_.find(key);
    return at == known_.end() || at->second.least == 0ns ? estimate : at->second.least;
  }
  std::int64_t stamps() const {  // Number made so far.
    const std::lock_guard lock(mutex_);
    return stamps_;
  }

 private:
  struct Known {
    int runs = 0;  // Counted until there are enough samples.
    int samples = 0, disturbed = 0;
    int run = 0;             // The last run with a sample.
    std::int64_t step = -1;  // The step of this run.
    Nanos least = 0ns;       // The least sample; 0: none yet.
  };
  struct UnderWay {
    Key key;
    void* first;
    void* last;
  };

  // Reads the samples that the device has passed. With several streams, the first sample in the
  // queue may hold up others, which does no harm.
  void collect() {
    while (!under_way_.empty()) {
      const UnderWay sample = under_way_.front();
      Nanos passed{};  // 0: a failed measurement.
      try {
        const std::optional<Nanos> measured = work_.between(sample.first, sample.last);
        if (!measured) return;
        passed = std::max<Nanos>(*measured, 1ns);
      } catch (const std::exception&) {
        // The code that ran the work gets the device's error.
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
