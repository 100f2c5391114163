// A table from operator and shapes to nanoseconds, and a queue of samples that the device has not
// reached yet. Looking a cost up takes a lock and one probe, 20 to 30 ns.

#include "runtime/csrc/live/machine/operator_costs.h"

#include <algorithm>
#include <exception>

namespace dtr {

Costs::~Costs() {
  for (const UnderWay& sample : under_way_) {
    work_.give_back(sample.first);
    work_.give_back(sample.last);
  }
}

Costs::Sample Costs::begin(Key key, Stream stream, std::int64_t step) {
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

void Costs::end(const Sample& sample, Stream stream, bool disturbed) {
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

void Costs::abandon(const Sample& sample) {
  if (sample.first != nullptr) work_.give_back(sample.first);
}

// Samples of one stream arrive in order; of several, the first in the queue may hold others up,
// which costs nothing but time.
void Costs::collect() {
  while (!under_way_.empty()) {
    const UnderWay sample = under_way_.front();
    std::optional<Nanos> passed;
    try {
      passed = work_.between(sample.first, sample.last);
      if (!passed) return;
    } catch (const std::exception&) {
      // The device reports an error of its own; whoever ran the work is told.
    }
    under_way_.pop_front();
    work_.give_back(sample.first);
    work_.give_back(sample.last);
    if (!passed) continue;
    Known& known = known_[sample.key];
    const Nanos nanos = std::max<Nanos>(*passed, 1ns);
    known.least = known.least == 0ns ? nanos : std::min(known.least, nanos);
  }
}

Nanos Costs::cost(Key key, Nanos estimate) const {
  const std::lock_guard lock(mutex_);
  const auto at = known_.find(key);
  return at == known_.end() || at->second.least == 0ns ? estimate : at->second.least;
}

std::int64_t Costs::stamps() const {
  const std::lock_guard lock(mutex_);
  return stamps_;
}

}  // namespace dtr
