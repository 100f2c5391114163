// Records CUDA events: as time stamps, or to let streams wait for each other (streams.h).
//
// An event is created once and recorded many times: to create one takes some microseconds, to
// record it about one. An event may be recorded again while a stream still waits for it. That
// stream then waits only for the earlier recording.

#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/streams.h"

namespace dtr::cuda {

// Records events that have the same flags, and keeps events given back for reuse. Thread-safe.
class EventStore {
 public:
  // `flags` is kEventDefault for time stamps. Else it is kEventDisableTiming, cheaper to record.
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
