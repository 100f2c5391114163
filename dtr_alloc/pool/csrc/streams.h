// Decides when a stream may use memory that was freed on another stream.
//
// A program may free a block while work that uses it still waits in a stream. The same stream may
// reuse the block at once, since a stream runs its work in order. Another stream must wait, and so
// must the host before it releases a page. So every block has a fence: for each stream that used
// the block's bytes, the number of an event in this stream after these uses. A stream's events are
// numbered in the order of recording. A fence may hold the number of the next event, which is
// recorded only when a stream or the host must wait, once for all blocks freed before. A program
// that stays on one stream records no events.
//
// The invariant, which every member function keeps:
//   for each stream s that used a byte of a free block, the fence of the block has a number k, and
//   event k of s is recorded after that use.
// Therefore stream t may use the block at once if, for each (s, k): s is t, or event k is complete,
// or t was made to wait for an event of s numbered k or later. When two holes merge, the new hole
// takes the later number of each stream, without a call to the driver. A fence may wait too long,
// never too short: an event follows all work so far, not only the block's.
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

// A driver's events. If a driver call fails, members throw and change nothing.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  StreamEvents() = default;
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // Returns one handle for a stream that has several. Throws std::invalid_argument for a handle
  // that names a different stream in every thread.
  virtual Stream canonical(Stream stream) const = 0;
  virtual void* record(Stream stream) = 0;  // Records an event after the work so far.
  virtual void wait(Stream stream, void* event) = 0;
  virtual bool done(void* event) = 0;
  virtual void synchronize(void* event) = 0;  // Blocks the host.
  virtual void give_back(void* event) = 0;    // For reuse.
};

// Index of a set of pairs (stream, number) in the table of a StreamOrder; 0 is the empty set. Every
// other fence belongs to one block, or to one old place of pages that moved (backing.h).
using Fence = std::uint32_t;

class StreamOrder {
 public:
  explicit StreamOrder(std::unique_ptr<StreamEvents> events);
  ~StreamOrder();

  // The index of a stream for the functions below. Throws std::invalid_argument as canonical().
  std::int32_t index(Stream stream);
  // Sets apart a stream that the runtime uses for copies: shared(), gather() and spread() leave it
  // out, so that nobody waits for unrelated copies.
  void set_apart(Stream stream);

  // The fence of a block that is allocated on `stream`, its first user. `now` is the fence of the
  // hole.
  Fence allocated(Fence now, std::int32_t stream);
  void used(Fence fence, std::int32_t stream);
  void shared(Fence fence);  // By all streams not set apart.
  // Makes `stream` wait for all work so far of the users of a live block.
  void follow(Fence fence, std::int32_t stream);
  // `stream` already waits for all users of a live block, so later users wait for `stream` alone.
  void hand_over(Fence fence, std::int32_t stream) { fences_[fence].assign(1, {stream, 0}); }
  // Sets the numbers in a freed block's fence. Records an event at once on streams that did not
  // allocate the block: they seldom allocate, so their next event would come late. Never throws: if
  // an event cannot be recorded, the fence names the next event.
  void freed(Fence fence);
  Fence join(Fence a, Fence b);  // Returns the union; drops both.

  // Whether the stream may use the block without waiting. No call to the driver.
  bool ready(Fence fence, std::int32_t stream) const;
  void poll();                                  // Asks which events are complete.
  void wait(Fence fence, std::int32_t stream);  // Makes the stream wait for it.
  Fence settle(Fence fence);  // The host waits until no work uses the block. Returns 0.

  // Records the events of the fence that are not recorded yet, so that `passed` becomes true even
  // if nobody ever waits.
  void mark(Fence fence);
  Fence copy(Fence fence);
  void drop(Fence fence);
  bool passed(Fence fence) const;  // Whether it is done, by the last poll().

  // gather() makes a stream wait for all work given to the other streams so far, spread() makes the
  // others wait for its work. For rare events only: each costs driver calls for every stream.
  void gather(std::int32_t stream);
  void spread(std::int32_t stream);
  std::size_t streams() const { return index_.size(); }  // Without apart or retired ones.
  std::size_t met() const { return streams_.size(); }    // All ever known.

  // Call it before a stream is destroyed: a later stream may get its handle. The host waits for the
  // stream's work, since no event can be recorded on it later.
  void retire(Stream stream);

  std::int64_t waits() const { return waits_; }  // How often a stream was made to wait.
  // Throws std::logic_error unless these are all fences in use, each listed once.
  void check(const std::vector<Fence>& of_holes, const std::vector<Fence>& of_live) const;

 private:
  using Number = std::uint64_t;
  struct Use {
    std::int32_t stream;
    Number number;  // 0 while the block is live.
  };
  // Events up to `done` are complete; outstanding[i] has number done + 1 + i.
  struct State {
    Stream name;
    bool retired = false;
    Number done = 0;
    std::deque<void*> outstanding;
    std::vector<Number> waited;  // By stream: its latest event that this stream waits for.

    Number recorded() const { return done + outstanding.size(); }
  };

  void record(State& state);
  void order(State& first, State& then);
  void complete(State& state, Number number);
  void reach(State& state, Number number);  // Records the event of that number if it is the next.
  bool satisfied(const Use& use, std::int32_t stream) const;
  Fence make();

  const std::unique_ptr<StreamEvents> events_;
  std::vector<State> streams_;
  // Indices of streams that are not retired: ordinary streams, and those set apart.
  std::unordered_map<Stream, std::int32_t> index_, apart_;
  std::vector<std::vector<Use>> fences_;
  std::vector<Fence> unused_;
  std::int64_t outstanding_ = 0;
  std::int64_t waits_ = 0;
};

}  // namespace dtr
