// When memory that one stream freed may be used by another.
//
// A program frees a block while work that uses it still waits in a stream. The stream's own order
// protects it: what the same stream is given next comes after. Another stream must wait, and so
// must the host before it takes a page away. So every block carries a fence: for each stream that
// used its bytes, the number of an event of that stream that comes after those uses. Events of a
// stream are numbered in the order of their recording, and the number may be that of the next one,
// which has not been recorded yet: it is recorded when somebody has to wait for it, once for all
// blocks freed before. A program that stays on one stream records none.
//
// The invariant, which every member keeps:
//   for each stream s that used a byte of a free block, the fence of the block has a number k, and
//   event k of s is recorded after that use.
// Therefore stream t may use the block at once if, for each (s, k): s is t, or event k is complete,
// or t was made to wait for an event of s numbered k or later. Two holes that merge take the later
// number of each stream, which keeps the invariant without a call to the driver. A fence says too
// much rather than too little: a number covers all work up to the event, not only the block's.
//
// Pools of host memory have no StreamOrder: all their fences are 0.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace dtr {

// A stream as its driver calls it (CUstream); 0 is the default stream.
using Stream = std::uintptr_t;

// What a driver does about order. Members throw what the driver throws; nothing has then changed.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  StreamEvents() = default;
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // One name for a stream that has several. Throws std::invalid_argument for a name that does not
  // tell one stream from another.
  virtual Stream canonical(Stream stream) const = 0;
  virtual void* record(Stream stream) = 0;  // An event after all work the stream was given so far.
  virtual void wait(Stream stream, void* event) = 0;
  virtual bool done(void* event) = 0;
  virtual void synchronize(void* event) = 0;  // Blocks the host.
  virtual void give_back(void* event) = 0;    // To be recorded anew.
};

// Names a set of (stream, number) in the table of a StreamOrder; 0 is the empty set. Every other
// fence belongs to one block, or to one old place of pages that moved (backing.h).
using Fence = std::uint32_t;

class StreamOrder {
 public:
  explicit StreamOrder(std::unique_ptr<StreamEvents> events);
  ~StreamOrder();

  // The members below know a stream by a number of ours. Throws std::invalid_argument.
  std::int32_t index(Stream stream);
  // The stream is the runtime's own, for copies. It counts in the fences that name it and in
  // nothing else, so that nobody waits for copies that he has nothing to do with.
  void set_apart(Stream stream);

  // A live block's fence: the streams that use it, the one it was allocated on first. `now` is what
  // the block had before.
  Fence allocated(Fence now, std::int32_t stream);
  void used(Fence fence, std::int32_t stream);
  void shared(Fence fence);  // By any of the streams.
  // `stream` comes after all work that the users of a live block were given so far.
  void follow(Fence fence, std::int32_t stream);
  // `stream` comes after all that uses a live block: for whoever is next that one alone counts.
  void hand_over(Fence fence, std::int32_t stream) { fences_[fence].assign(1, {stream, 0}); }
  // Gives the streams of a live block their numbers. Records an event on those that did not
  // allocate it, since those seldom allocate and would be waited for late. Never throws: where the
  // event cannot be recorded, the number is that of the next one.
  void freed(Fence fence);
  Fence join(Fence a, Fence b);  // Takes both.

  // Whether the stream may use the block without waiting. No call to the driver.
  bool ready(Fence fence, std::int32_t stream) const;
  void poll();                                  // Asks which events are complete.
  void wait(Fence fence, std::int32_t stream);  // Makes the stream wait for the block.
  Fence settle(Fence fence);  // The host waits for the block: nothing uses it any more. Returns 0.

  // Records the events that only the next request would record: so `passed` comes true even if
  // nobody ever waits.
  void mark(Fence fence);
  Fence copy(Fence fence);
  void drop(Fence fence);
  bool passed(Fence fence) const;  // As far as poll() has seen.

  // The host gives a stream work that touches what others made and will touch what it makes: it
  // waits for all they were given, or they for all it was given. For rare events only: one call per
  // stream.
  void gather(std::int32_t stream);
  void spread(std::int32_t stream);
  std::size_t streams() const { return index_.size(); }  // Neither apart nor retired.
  std::size_t met() const { return streams_.size(); }    // With those.

  // The stream is about to be destroyed, and its name may then be another's. The host waits for its
  // work: a stream that comes later would not know what to wait for.
  void retire(Stream stream);

  std::int64_t waits() const { return waits_; }  // Times that a stream was made to wait.
  // Throws std::logic_error with a sentence unless these are all fences in use, each once.
  void check(const std::vector<Fence>& of_holes, const std::vector<Fence>& of_live) const;

 private:
  using Number = std::uint64_t;
  struct Use {
    std::int32_t stream;
    Number number;  // 0 in a live block: not freed yet.
  };
  // Events up to `done` are complete; outstanding[i] has number done + 1 + i.
  struct State {
    Stream name;
    bool retired = false;
    Number done = 0;
    std::deque<void*> outstanding;
    std::vector<Number> waited;  // By stream: the latest of its events that this one waited for.

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
  // Of streams that are not retired, and of those that are apart.
  std::unordered_map<Stream, std::int32_t> index_, apart_;
  std::vector<std::vector<Use>> fences_;
  std::vector<Fence> unused_;
  std::int64_t outstanding_ = 0;
  std::int64_t waits_ = 0;
};

}  // namespace dtr
