// Stores the bytes of tensors for which memory has no room, in a second tier: a file, for tensors
// on the host (live/machine/swap_file.h), or the host's page-locked memory, for tensors of a CUDA
// device (cuda/host_tier.cpp).
//
// On a device, a call only puts a copy into a stream, and the tier orders the copy among other
// work. A write's copy runs after the work that made the bytes, and the block may be freed at once.
// A read has two parts: begin_read() starts the copy, and work given to the stream `reader` after
// finish_read() finds the bytes there. On the host, a call returns when its copy is done.
//
// The device may be far behind the host. A write should not wait for all work in between. So mark()
// now and then records an event, and the time on a clock that never goes back. A write says when
// its bytes were made, and waits for the first mark of a later time. A mark of the same time may be
// older than the bytes.

#pragma once

#include <memory>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

class Tier {
 public:
  virtual ~Tier() = default;
  Tier() = default;
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  // Room for the bytes of one tensor.
  struct Room {
    Block* block = nullptr;   // Null if the tier is full.
    void* written = nullptr;  // On a device: the event after the copy out,
    void* read = nullptr;     // and the event after a copy in that was begun.
  };
  virtual Room reserve(Bytes bytes) = 0;  // Throws nothing.
  virtual void give_back(Room& room) = 0;

  static constexpr Nanos kUnknown = Nanos::max();  // For `made`: wait for all work so far.
  // These throw std::runtime_error if the system or the driver fails, and then change nothing.
  // `from` is the start of a live block; `to` is the start of a block that was allocated on the
  // stream arrives_on(reader) and may be freed before the read ends. A read may run beside any call
  // for another room.
  virtual void write(Room& room, const void* from, Bytes bytes, Nanos made) = 0;
  virtual void begin_read(Room& room, void* to, Bytes bytes) = 0;
  virtual void finish_read(Room&, void* /*to*/, Stream /*reader*/) {}
  virtual Stream arrives_on(Stream reader) const { return reader; }
  // Whether copies run while the host goes on.
  virtual bool runs_beside() const { return false; }
  // Marks all work so far of this stream. Does nothing if the pool knows several streams.
  virtual void mark(Stream, Nanos /*now*/) {}
  // Makes later work of any stream wait for copies out, so that it may overwrite the originals.
  virtual void let_overwrite() {}

  virtual Bytes capacity() const = 0;
  virtual Bytes used() const = 0;

  // For a write and a read together, measured when the tier was made.
  struct Speed {
    double nanoseconds_per_byte = 0;
    Nanos latency = 0ns;
  };
  Speed speed() const { return speed_; }

  struct Times {
    Nanos busy = 0ns;    // Of all transfers so far.
    Nanos waited = 0ns;  // The part of `busy` that readers waited for.
  };
  virtual Times times() = 0;

 protected:
  Speed speed_;
};

// Makes the second tier of a CUDA device's pool: memory of the host, page-locked at once, if
// possible on the device's NUMA node. The pool must outlive the tier. Throws std::runtime_error,
// which says what to do, if the driver or the machine refuses, and then changes nothing.
std::unique_ptr<Tier> make_host_tier(Pool& memory, int device, Bytes bytes);

}  // namespace dtr
