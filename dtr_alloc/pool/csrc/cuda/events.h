// Records events of the driver: to order the pool's streams (streams.h), and as time stamps.
//
// An event is made once and recorded many times: creating one costs some microseconds, recording it
// about one. An event may be recorded again while a stream waits for it: this wait is for the
// earlier recording.

#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/streams.h"

namespace dtr::cuda {

// Gives events of one kind, and keeps returned ones for reuse. Thread-safe.
class EventStore {
 public:
  // `flags`: kEventDefault for time stamps, else kEventDisableTiming, which is cheaper to record.
  EventStore(std::shared_ptr<PrimaryContext> context, unsigned flags)
      : context_(std::move(context)), flags_(flags) {}
  ~EventStore();

  Event record(Stream stream);  // Records an event after the stream's work so far.
  void give_back(void* event);

 private:
  const std::shared_ptr<PrimaryContext> context_;
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<Event> idle_;
};

std::unique_ptr<StreamEvents> make_events(std::shared_ptr<PrimaryContext> context);

}  // namespace dtr::cuda
