// Measures how long work took in CUDA streams: a swap's copies (tier.h), and streams' waits for
// them. Before and after each copy or wait we record a timed event. The host reads the events when
// the device has passed them, and never waits. A failed measurement adds nothing.

#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <optional>

#include "dtr_alloc/pool/csrc/device_work.h"

namespace dtr {

class Spans {
 public:
  static constexpr std::size_t kMostUnderWay = 1024;  // The most spans that wait to be read.

  explicit Spans(int device) : work_(make_cuda_work(device)) {}
  ~Spans() {
    for (const Span& span : under_way_) drop(span);
  }

  // Runs `act`, which puts work into the stream. A later collect() adds the work's time to `sum`.
  template <class Act>
  void measure(Stream stream, Nanos& sum, const Act& act) {
    collect();
    void* const first = under_way_.size() < kMostUnderWay ? stamp(stream) : nullptr;
    try {
      act();
    } catch (...) {
      if (first) work_->give_back(first);
      throw;
    }
    void* const last = first ? stamp(stream) : nullptr;
    if (last) {
      under_way_.push_back({first, last, &sum});
    } else if (first) {
      work_->give_back(first);
    }
  }

  void collect() {  // Adds up the spans that the device has passed.
    while (!under_way_.empty()) {
      const Span span = under_way_.front();
      std::optional<Nanos> passed;
      try {
        passed = work_->between(span.first, span.last);
        if (!passed) return;
      } catch (const std::exception&) {
      }
      under_way_.pop_front();
      drop(span);
      if (passed) *span.sum += *passed;
    }
  }

 private:
  struct Span {
    void *first, *last;
    Nanos* sum;
  };

  void* stamp(Stream stream) {
    try {
      return work_->stamp(stream);
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  void drop(const Span& span) {
    work_->give_back(span.first);
    work_->give_back(span.last);
  }

  const std::unique_ptr<DeviceWork> work_;
  std::deque<Span> under_way_;
};

}  // namespace dtr
