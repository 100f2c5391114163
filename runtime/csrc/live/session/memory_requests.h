// How a session gets memory, and how much it may have: a request, which evicts where the budget or
// the machine has no room; the budget, which may change at any time (resize.cpp); and the streams
// for whose work memory is.

#pragma once

#include <atomic>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/notes.h"
#include "runtime/csrc/live/session/options.h"
#include "runtime/csrc/live/storages/swap.h"
#include "runtime/csrc/live/trace/trace_recorder.h"

namespace dtr {

class MemoryRequests {
 public:
  // `swap` may be null.
  MemoryRequests(const SessionOptions& options, Locks& locks, Notes& notes, Swap* swap,
                 const std::atomic<TraceRecorder*>& recorder)
      : options_(options),
        locks_(locks),
        notes_(notes),
        swap_(swap),
        recorder_(recorder),
        budget_(options.budget) {}

  // For work of a stream. Throws torch.OutOfMemoryError.
  void* allocate(std::size_t bytes, Stream stream);
  // The same without evicting. Null where there is no room; `shortage`: what the machine said.
  Block* take(Bytes asked, Fit fit, Stream stream, std::string& shortage);
  void fail_allocation(std::int64_t k) { allocations_to_failure_ = k; }  // For tests: the k-th.
  std::int64_t search_ticks() const { return search_ticks_; }
  Nanos moving() const { return moving_; }  // Of the search: pages.

  // A new limit, up to the largest that the memory can have (resize.cpp). Evicts what is above it.
  // Throws torch.OutOfMemoryError, and the budget is as before, where too much may not be evicted
  // now.
  void resize(Bytes budget);
  void lend(Bytes bytes);  // The same, relative to the budget there is. Below 0: takes back.
  void bound(Bytes most);  // Whatever the budget is: a second limit.
  Bytes give_back();       // Evicts all that may be, and returns the bytes of pages given back.

  // While a graph is captured nothing is evicted for a request (Session::begin_capture).
  void capture_began() { ++captures_; }
  void capture_ended() { --captures_; }
  bool capturing() const { return captures_ > 0; }

  bool follow_stream();     // This thread's. Whether the memory has met several.
  void meet_this_stream();  // Who is handed memory may use it there.
  bool may_be_new() const;  // This thread's stream.
  void read_on_stream(const Value& value);
  void retire_stream(Stream stream);  // It is about to be destroyed.

 private:
  class Resizing;
  struct Resizes {
    std::recursive_mutex mutex;  // Whoever has it may set a limit that is then refused.
    std::atomic<int> under_way{0};
    std::atomic<std::int64_t> ended{0};
  };

  Block* find_room(Bytes asked, Stream stream, std::string& shortage, Guard& guard);
  Block* make_room(Bytes asked, Stream stream, std::string& shortage, Lock& lock);
  MovePrices move_prices(const Pool& pool) const;
  [[noreturn]] void out_of_memory(Bytes asked, const std::string& shortage);
  bool give_up_ahead() { return swap_ && swap_->give_up_ahead(); }  // Whether there was any.
  void refuse_what_cannot_fit(Bytes budget);
  void insist_on(Bytes budget, Bytes stays) const;
  void shrink(Bytes budget);
  bool clear_pages(Bytes budget);
  void trim();

  const SessionOptions& options_;
  Locks& locks_;
  Engine& engine_ = locks_.engine;
  StorageTable& storages_ = locks_.storages;
  Memory& memory_ = storages_.memory();
  const SessionDevice& device_ = storages_.device();
  Notes& notes_;
  Swap* const swap_;
  const std::atomic<TraceRecorder*>& recorder_;

  Bytes budget_, most_ = std::numeric_limits<Bytes>::max();  // The limit is the smaller of them.
  Resizes resizes_;
  std::int64_t search_ticks_ = 0;
  Nanos moving_{0};
  static constexpr Stream kNoStream = ~Stream{0};
  std::vector<Stream> streams_;                   // That have run operators,
  std::atomic<Stream> latest_stream_{kNoStream};  // and the one that did last.
  std::atomic<int> captures_{0};
  std::atomic<std::int64_t> allocations_to_failure_{0};  // 0: none is to fail.
};

}  // namespace dtr
