// Decides when a stream may use memory that was freed on another stream.
//
// A program may free a block while work that uses it still waits in a stream. The same stream may
// reuse the block at once, since a stream runs its work in order. Another stream must wait for the
// work, and so must the host before it releases a page of the block. So every block has a fence.
// For each stream that used the block's bytes, the fence holds the number of an event that comes
// after these uses. A stream's events are numbered in the order of recording. The number may be
// that of the stream's next event. We record it only when another stream or the host must wait: it
// serves all blocks freed before. A program on one stream records no events.
//
// The invariant, which every member function keeps:
//   for each stream s that used a byte of a free block, the fence of the block has a number k, and
//   event k of s is recorded, now or later, after that use.
// Therefore stream t may use the block at once if, for each (s, k): s is t, or event k is complete,
// or t was made to wait for an event of s numbered k or later. When two holes merge, the fence of
// the new hole has the later number for each stream; this takes no driver call. A stream may wait
// too long, but never too short: an event follows all earlier work of its stream.
//
// Pools of host memory have no StreamOrder: all their fences are 0.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace dtr {

// A stream's handle in its driver (CUstream); 0 is the default stream.
using Stream = std::uintptr_t;

// The events of a driver. If a driver call fails, a member throws and changes nothing.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  StreamEvents() = default;
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // Returns the one handle that stands for all handles of a stream. Throws std::invalid_argument
  // for the handle of the per-thread default stream, which is another stream in every thread.
  virtual Stream canonical(Stream stream) const = 0;
  virtual void* record(Stream stream) = 0;  // Records an event after the stream's work so far.
  virtual void wait(Stream stream, void* event) = 0;
  virtual bool done(void* event) = 0;
  virtual void synchronize(void* event) = 0;  // Blocks the host.
  virtual void give_back(void* event) = 0;    // The event may be reused.
};

// The index of a set of pairs (stream, number) in the table of a StreamOrder; 0 is the empty set.
// Any other index belongs to one block, or to one old address of moved pages (backing.h).
using Fence = std::uint32_t;

class StreamOrder {
 public:
  explicit StreamOrder(std::unique_ptr<StreamEvents> events);
  ~StreamOrder();

  // Returns the stream's index, which the functions below take. Throws as canonical() does.
  std::int32_t index(Stream stream);
  // Sets apart a stream in which the runtime copies: shared(), gather() and spread() do not count
  // it among all streams, so that nobody waits for unrelated copies.
  void set_apart(Stream stream);

  // Returns the fence of a new block, whose only user is `stream`. `now`: its old fence, or 0.
  Fence allocated(Fence now, std::int32_t stream);
  void used(Fence fence, std::int32_t stream);  // Adds `stream` to the users of a live block.
  void shared(Fence fence);                     // Adds all streams that are not set apart.
  // Makes `stream` wait for all work so far of the streams that use a live block.
  void follow(Fence fence, std::int32_t stream);
  // Makes `stream` a live block's only user. It must already wait for all streams that used it.
  void hand_over(Fence fence, std::int32_t stream) { fences_[fence].assign(1, {stream, 0}); }
  // Sets the numbers in a freed block's fence: for the stream that allocated it, that of the next
  // event. For other streams, records an event now: one recorded when somebody waits would also
  // follow later work. Never throws: if recording fails, the number is that of the next event.
  void freed(Fence fence);
  Fence join(Fence a, Fence b);  // Returns the union, which replaces a and b.

  // Whether the stream may use the fence's block without waiting. Does not call the driver.
  bool ready(Fence fence, std::int32_t stream) const;
  void poll();                                  // Asks which events are complete now.
  void wait(Fence fence, std::int32_t stream);  // `stream` waits for the fence's events.
  Fence settle(Fence fence);  // The host waits until no work uses the block. Returns 0: no fence.

  // Records the fence's events not recorded yet: else passed() could stay false if nobody waits.
  void mark(Fence fence);
  Fence copy(Fence fence);
  void drop(Fence fence);
  bool passed(Fence fence) const;  // Whether all its events were complete at the last poll().

  // gather() makes `stream` wait for all work so far of the other streams, spread() makes these
  // wait for all its work so far. Call them seldom: both call the driver for every stream.
  void gather(std::int32_t stream);
  void spread(std::int32_t stream);
  std::size_t streams() const { return index_.size(); }  // Without those set apart or retired.
  std::size_t met() const { return streams_.size(); }    // All streams ever known.

  // Call it before a stream is destroyed: a later stream may get its handle. The host waits for the
  // stream's work, since no event can be recorded on it later.
  void retire(Stream stream);

  std::int64_t waits() const { return waits_; }  // How often a stream was made to wait.
  // Throws std::logic_error unless each fence in use is exactly once in the two lists together.
  void check(const std::vector<Fence>& of_holes, const std::vector<Fence>& of_live) const;

 private:
  using Number = std::uint64_t;
  struct Use {
    std::int32_t stream;
    Number number;  // 0 while the block is live.
  };
  // One stream. Its events up to number `done` are complete; outstanding[i] is event done + 1 + i.
  struct State {
    Stream name;
    bool retired = false;
    Number done = 0;
    std::deque<void*> outstanding;
    std::vector<Number> waited;  // By stream: its last event that this one waits for.

    Number recorded() const { return done + outstanding.size(); }
  };

  void record(State& state);
  void order(State& first, State& then);
  void complete(State& state, Number number);
  void reach(State& state, Number number);  // Records event `number` if it is not recorded yet.
  bool satisfied(const Use& use, std::int32_t stream) const;
  Fence make();

  const std::unique_ptr<StreamEvents> events_;
  std::vector<State> streams_;
  // Indices of streams that are not retired: apart_ has those set apart, index_ has all others.
  std::unordered_map<Stream, std::int32_t> index_, apart_;
  std::vector<std::vector<Use>> fences_;
  std::vector<Fence> unused_;
  std::int64_t outstanding_ = 0;
  std::int64_t waits_ = 0;
};

}  // namespace dtr
