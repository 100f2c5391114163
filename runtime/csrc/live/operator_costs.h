// What an operator costs on a device, where the host's clock only sees the launch.
//
// The same operator on the same shapes costs the same, so its time is measured a few times and then
// known: two time stamps around it, read later, when the device has passed them. Nobody ever waits
// for the device, and a program in its steady state makes no stamp at all. Until a time is known,
// the caller's estimate stands in. The least of the samples is taken: the first run of an operator
// pays for loading its kernel, and a stamp on an idle device counts the launch as well.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "dtr_alloc/csrc/device_work.h"

namespace dtr {

class Costs {
 public:
  using Key = std::uint64_t;  // Of an operator and the shapes it sees.
  struct Sample {
    Key key = 0;
    void* first = nullptr;  // Null: this run is not measured.
  };
  static constexpr int kSamples = 3;
  static constexpr std::size_t kMostUnderWay = 256;  // Above that the device is far behind.

  explicit Costs(DeviceWork& work) : work_(work) {}
  ~Costs();

  // Around a run. They throw nothing: a run that cannot be measured is not.
  Sample begin(Key key, Stream stream);
  void end(const Sample& sample, Stream stream);
  void abandon(const Sample& sample);  // The run failed.

  Nanos cost(Key key, Nanos estimate) const;
  std::int64_t stamps() const;  // Made so far.

 private:
  struct Known {
    int samples = 0;    // Begun.
    Nanos least = 0ns;  // 0: none has arrived.
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
