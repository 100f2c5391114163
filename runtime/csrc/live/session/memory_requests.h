// Serves a session's requests for memory, and evicts if the budget or the machine has no room.
// Knows the budget, which may change at any time (resize.cpp), and the streams whose work uses the
// memory.

#pragma once

#include <atomic>
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
      : options_(options), locks_(locks), notes_(notes), swap_(swap), recorder_(recorder) {}

  // Allocates for a stream's work, and evicts for it. Throws torch.OutOfMemoryError if that fails.
  void* allocate(std::size_t bytes, Stream stream);
  // Allocates without evicting; null if there is no room. Sets `shortage` to the system's error.
  Block* take(Bytes asked, Fit fit, Stream stream, std::string& shortage);
  // For tests: the k-th request from now on fails, and no other.
  void fail_allocation(std::int64_t k) { allocations_to_failure_ = k; }
  std::int64_t search_ticks() const { return search_ticks_; }
  Nanos moving() const { return moving_; }  // Part of search_ticks() in which pages moved.

  // Sets the budget (at most the memory's largest_budget()), and evicts what exceeds it.
  // If too much must stay in memory, throws torch.OutOfMemoryError, and the old budget holds
  // (resize.cpp).
  void resize(Bytes budget);
  void lend(Bytes bytes);  // Reduces the budget by `bytes`; a negative number increases it.
  void bound(Bytes most);  // Sets a second limit; the smaller of it and the budget holds.
  Bytes give_back();       // Evicts all that can be evicted; returns the bytes of freed pages.

  // While a CUDA graph is captured, requests evict nothing (Session::begin_capture).
  void capture_began() { ++captures_; }
  void capture_ended() { --captures_; }
  bool capturing() const { return captures_ > 0; }

  bool follow_stream();     // Notes this thread's stream. Returns whether several are in use.
  void meet_this_stream();  // As follow_stream(), if on a device and outside a capture.
  bool may_be_new() const;  // Whether this thread's stream may be new to us.
  void read_on_stream(const Value& value);
  void retire_stream(Stream stream);  // Call before the stream is destroyed.

 private:
  class Resizing;
  struct Resizes {
    std::recursive_mutex mutex;  // Held while a resize is tried, which may be refused.
    std::atomic<int> under_way{0};
    std::atomic<std::int64_t> ended{0};
  };

  Block* find_room(Bytes asked, Stream stream, std::string& shortage, Guard& guard);
  Block* make_room(Bytes asked, Stream stream, std::string& shortage, Lock& lock);
  MovePrices move_prices(const Pool& pool) const;
  [[noreturn]] void out_of_memory(Bytes asked, const std::string& shortage);
  bool give_up_ahead() { return swap_ && swap_->give_up_ahead(); }  // Cancels the swap's copies.
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

  Bytes budget_ = memory_.budget();
  Bytes most_ = kLargestBudget;  // The memory's limit is min(budget_, most_).
  Resizes resizes_;
  std::int64_t search_ticks_ = 0;
  Nanos moving_{0};
  static constexpr Stream kNoStream = ~Stream{0};
  std::vector<Stream> streams_;                   // Streams that ran operators.
  std::atomic<Stream> latest_stream_{kNoStream};  // The last stream that ran one.
  std::atomic<int> captures_{0};
  std::atomic<std::int64_t> allocations_to_failure_{0};  // 0: no request is to fail.
};

}  // namespace dtr
