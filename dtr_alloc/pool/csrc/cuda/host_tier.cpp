// Makes page-locked memory of the host the second tier of a device's memory (tier.h).
//
// Copies run in two streams, one for each direction, so that both directions of the bus and the
// device's own work go on side by side. Events order them. The host waits for an event only if the
// pool takes away pages that a copy still uses.
//
// A value that comes back takes first a free place that no work uses any more, so the copy may run
// while the device is still busy with earlier operators. For that, its memory is allocated on the
// stream of the copy (streams.h). If the place was just evicted, the copy waits for all work that
// the device was given so far.
//
// The host runs ahead of the device. So a copy out waits only for a part of the work that the
// device was given: what made the bytes, and up to 400 us of operators behind it. Then it ends long
// before the device comes to the work that needs the place. For that, we record an event in the
// program's stream each 400 us of its operators. More events cost the host more than they save the
// device (perf/cost/swap_overlap.py). With several streams there are no such events, and a copy out
// waits for all work that they were given.
//
// The rooms are blocks of a pool over the page-locked range. The fences of that pool protect a
// freed room while a copy still reads it. Page-locking costs some hundred milliseconds a GiB, so it
// happens once, when the tier is made.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/cuda/events.h"
#include "dtr_alloc/pool/csrc/cuda/spans.h"
#include "dtr_alloc/pool/csrc/tier.h"

namespace dtr {
namespace {

using cuda::Pointer;
using cuda::Scope;
using Context = std::shared_ptr<cuda::PrimaryContext>;

// Advice to the system: a failure is no error.
void prefer_node_of(const cuda::PrimaryContext& context, void* begin, Bytes bytes) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[16] = {};
  int node = -1;
  const cuda::Driver& driver = context.driver();
  const bool known =
      cuda::succeeds(driver.cuDeviceGetAttribute, &node, cuda::kHostNumaNode, context.device());
  if (!known || node < 0 || node >= 16 * kBits) return;
  nodes[node / kBits] |= 1ul << node % kBits;
  syscall(SYS_mbind, begin, bytes, kPreferred, nodes, 16ul * kBits, 0u);
}

// Host memory that is page-locked while it lives. All of its pages are always committed, and its
// pool has an order of streams.
class LockedArena final : public Arena {
 public:
  LockedArena(Context context, Bytes bytes)
      : context_(std::move(context)), host_(make_host_arena(bytes)) {
    prefer_node_of(*context_, begin(), capacity());
    madvise(begin(), capacity(), MADV_DONTFORK);  // Else a write after a fork would get new pages.
    const cuda::Driver& driver = context_->driver();
    const Scope scope(*context_);
    driver.call(driver.cuMemHostRegister_v2, begin(), static_cast<std::size_t>(capacity()),
                cuda::kHostPortable);
  }

  ~LockedArena() override {
    if (context_->forked()) {
      static_cast<void>(host_.release());  // In the child the range is unmapped, or reused.
      return;
    }
    const cuda::Driver& driver = context_->driver();
    cuda::act_at_last(*context_, [&] { driver.call(driver.cuMemHostUnregister, begin()); });
  }

  std::unique_ptr<StreamEvents> stream_events() override { return cuda::make_events(context_); }
  const char* name() const override { return "locked"; }
  std::uintptr_t base() const override { return host_->base(); }
  Bytes capacity() const override { return host_->capacity(); }
  Bytes page() const override { return host_->page(); }
  void commit(Bytes, Bytes) override {}
  void release(Bytes, Bytes) override {}

 private:
  void* begin() const { return reinterpret_cast<void*>(host_->base()); }

  const Context context_;
  std::unique_ptr<Arena> host_;
};

// A stream of the tier's own.
class CopyStream {
 public:
  explicit CopyStream(Context context) : context_(std::move(context)) {
    const cuda::Driver& driver = context_->driver();
    const Scope scope(*context_);
    driver.call(driver.cuStreamCreateWithPriority, &stream_, cuda::kStreamNonBlocking, 0);
  }
  ~CopyStream() {
    if (!context_->forked()) cuda::release_at_last(context_->driver().cuStreamDestroy_v2, stream_);
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  Stream name() const { return reinterpret_cast<Stream>(stream_); }
  void synchronize() const {
    const Scope scope(*context_);
    context_->driver().call(context_->driver().cuStreamSynchronize, stream_);
  }

 private:
  const Context context_;
  cuda::StreamHandle stream_ = nullptr;
};

class HostTier final : public Tier {
 public:
  HostTier(Pool& memory, int device, Bytes bytes)
      : memory_(memory),
        context_(std::make_shared<cuda::PrimaryContext>(cuda::load(), device)),
        out_(context_),
        in_(context_),
        events_(cuda::make_events(context_)),
        spans_(device),
        rooms_(rooms_of(bytes)) {
    for (const Stream stream : {out(), in()}) memory_.set_stream_apart(stream);
    try {
      measure();
    } catch (...) {
      leave();
      throw;
    }
  }

  ~HostTier() override { leave(); }

  // Never throws: the caller has just run an operator, and must not fail for a driver error.
  Room reserve(Bytes bytes) override {
    try {
      return {.block = rooms_->allocate(bytes, Fit::kCommitted, out())};
    } catch (const std::exception&) {
      return {};
    }
  }

  void give_back(Room& room) override {
    if (context_->forked()) return;
    const std::lock_guard lock(mutex_);
    for (void* event : {room.written, room.read}) {
      if (event) events_->give_back(event);
    }
    rooms_->free(room.block);
    room = {};
  }

  void mark(Stream stream, Nanos now) override {
    const std::lock_guard lock(mutex_);
    if (memory_.many_streams() || (!passed_.empty() && now < passed_.back().at + kApart)) return;
    if (passed_.size() == kMostPassed) forget_oldest_mark();
    passed_.push_back({now, nullptr});
    try {
      passed_.back().event = events_->record(stream);
    } catch (...) {
      passed_.pop_back();
      throw;
    }
  }

  void write(Room& room, const void* from, Bytes bytes, Nanos made) override {
    const std::lock_guard lock(mutex_);
    Block* const block = memory_.find(from);
    const auto after = std::ranges::upper_bound(passed_, made, {}, &Passed::at);
    if (after == passed_.end()) {
      memory_.follow_users(block, out());
    } else {
      events_->wait(out(), after->event);
    }
    memory_.record_stream(block, out());
    copy(context_->driver().cuMemcpyDtoHAsync_v2, rooms_->data(room.block),
         reinterpret_cast<Pointer>(from), bytes, out());
    room.written = events_->record(out());
  }

  void begin_read(Room& room, void* to, Bytes bytes) override {
    const std::lock_guard lock(mutex_);
    rooms_->record_stream(room.block, in());
    events_->wait(in(), room.written);
    copy(context_->driver().cuMemcpyHtoDAsync_v2, reinterpret_cast<Pointer>(to),
         rooms_->data(room.block), bytes, in());
    void* const before = std::exchange(room.read, events_->record(in()));
    if (before) events_->give_back(before);
  }

  // The reader waits for the copy. So later users of the block need only wait for the reader.
  void finish_read(Room& room, void* to, Stream reader) override {
    const std::lock_guard lock(mutex_);
    spans_.measure(reader, times_.waited, [&] { events_->wait(reader, room.read); });
    memory_.hand_over(memory_.find(to), reader);
    events_->give_back(std::exchange(room.read, nullptr));
  }

  bool runs_beside() const override { return true; }
  Stream arrives_on(Stream) const override { return in(); }
  void let_overwrite() override { memory_.spread_stream(out()); }
  Bytes capacity() const override { return rooms_->budget(); }
  Bytes used() const override { return rooms_->live(); }

  Times times() override {
    if (context_->forked()) return times_;
    const std::lock_guard lock(mutex_);
    spans_.collect();
    return times_;
  }

 private:
  struct Passed {
    Nanos at;
    void* event;  // After all work that the program's stream was given until then.
  };
  static constexpr Nanos kApart = 400us;
  static constexpr std::size_t kMostPassed = 1024;

  void forget_oldest_mark() {
    events_->give_back(passed_.front().event);
    passed_.pop_front();
  }

  Stream out() const { return out_.name(); }
  Stream in() const { return in_.name(); }

  Pool::Handle rooms_of(Bytes asked) const {
    const Bytes bytes = round_to_granule(asked);
    try {
      return Pool::create(std::make_unique<LockedArena>(context_, bytes), bytes);
    } catch (const std::exception& error) {
      throw std::runtime_error("swap of " + std::to_string(bytes) +
                               " bytes cannot be page-locked: " + error.what() + "; ask for less");
    }
  }

  template <class Call, class To, class From>
  void copy(const Call& call, To to, From from, Bytes bytes, Stream stream) {
    const Scope scope(*context_);
    spans_.measure(stream, times_.busy, [&] {
      context_->driver().call(call, to, from, static_cast<std::size_t>(bytes),
                              cuda::handle(stream));
    });
  }

  // Measures the least of some rounds, with a small copy and a large one. If the pool has no room
  // for them, the assumed speed of a bus stays.
  void measure() {
    constexpr Bytes kLarge = Bytes{16} << 20;
    constexpr int kRounds = 3;
    const cuda::Driver& driver = context_->driver();
    const Bytes bytes = std::min({kLarge, capacity(), memory_.budget()});
    speed_ = {.nanoseconds_per_byte = 2.0 / 25, .latency = 20us};
    Block* const block = take(bytes);
    if (!block) return;
    const auto device = reinterpret_cast<Pointer>(memory_.data(block));
    const auto host = reinterpret_cast<void*>(rooms_->arena().base());
    const auto least = [&](Bytes bytes) {
      Nanos best = Nanos::max();
      for (int round = 0; round < kRounds; ++round) {
        const Nanos begin = driver.now();
        copy(driver.cuMemcpyDtoHAsync_v2, host, device, bytes, out());
        out_.synchronize();
        copy(driver.cuMemcpyHtoDAsync_v2, device, host, bytes, in());
        in_.synchronize();
        best = std::min(best, driver.now() - begin);
      }
      return best;
    };
    try {
      speed_.latency = least(kGranule);
      const Nanos more = std::max(least(bytes) - speed_.latency, 1ns);
      speed_.nanoseconds_per_byte = static_cast<double>(more.count()) / static_cast<double>(bytes);
    } catch (...) {
      memory_.free(block);
      throw;
    }
    memory_.free(block);
    memory_.reset_peak();
    spans_.collect();
    times_ = {};
  }

  Block* take(Bytes bytes) {
    try {
      return memory_.allocate(bytes, Fit::kCommitted, in());
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  // No room is in use any more. Blocks of the pool may still name the streams.
  void leave() {
    if (context_->forked()) return;
    while (!passed_.empty()) forget_oldest_mark();
    for (const CopyStream* stream : {&out_, &in_}) {
      cuda::act_at_last(*context_, [&] {
        stream->synchronize();
        memory_.retire_stream(stream->name());
      });
    }
  }

  Pool& memory_;
  const Context context_;
  const CopyStream out_, in_;
  std::mutex mutex_;
  const std::unique_ptr<StreamEvents> events_;
  Spans spans_;
  Times times_;
  std::deque<Passed> passed_;  // In order of time.
  const Pool::Handle rooms_;
};

}  // namespace

std::unique_ptr<Tier> make_host_tier(Pool& memory, int device, Bytes bytes) {
  return std::make_unique<HostTier>(memory, device, bytes);
}

}  // namespace dtr
