// What an operator costs on a device, where the host's clock only sees the launch.
//
// The same operator on the same shapes costs the same, so its time is measured a few times and then
// known: two time stamps around it, read later, when the device has passed them. Nobody ever waits
// for the device, and a program in its steady state makes no stamp at all. Until a time is known,
// the caller's estimate stands in.
//
// Between two stamps the device may stand idle because the host is busy; the stamps cannot tell.
// Three rules keep that out. The first run of an operator is not measured: it loads the kernel. A
// run in which the host made or moved pages or evicted does not count, unless nearly all runs are
// such. The samples come from different steps, since all layers of one step may be disturbed alike;
// the least of them is taken.

#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "dtr_alloc/pool/csrc/device_work.h"

namespace dtr {

class Costs {
 public:
  using Key = std::uint64_t;  // Of an operator and the shapes it sees.
  struct Sample {
    Key key = 0;
    void* first = nullptr;  // Null: this run is not measured.
  };
  static constexpr int kSamples = 3;
  static constexpr int kRunsApart = 64;  // In a program that knows no steps.
  static constexpr int kPatience = 8;    // Disturbed runs, until one that is disturbed counts.
  static constexpr std::size_t kMostUnderWay = 256;  // Above that the device is far behind.
  static constexpr std::size_t kMost = 1 << 16;      // Keys. Then all is forgotten.

  explicit Costs(DeviceWork& work) : work_(work) {}
  ~Costs();

  // Around a run. They throw nothing: a run that cannot be measured is not.
  Sample begin(Key key, Stream stream, std::int64_t step);
  void end(const Sample& sample, Stream stream, bool disturbed);
  void abandon(const Sample& sample);  // The run failed.

  Nanos cost(Key key, Nanos estimate) const;
  std::int64_t stamps() const;  // Made so far.

 private:
  struct Known {
    int runs = 0;  // Until there are enough samples.
    int samples = 0, disturbed = 0;
    int run = 0;             // Of the last sample.
    std::int64_t step = -1;  // Likewise.
    Nanos least = 0ns;       // 0: none has arrived.
  };
  struct UnderWay {
    Key key;
    void* first;
    void* last;
  };
  void collect();

  DeviceWork& work_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, Known> known_;
  std::deque<UnderWay> under_way_;
  std::int64_t stamps_ = 0;
};

}  // namespace dtr
