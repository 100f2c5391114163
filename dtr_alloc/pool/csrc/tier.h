// Stores bytes of tensors for which the memory has no room (in a second tier). There are two kinds:
// a file, for tensors on the host (live/machine/swap_file.h), and the host's page-locked memory,
// for tensors of a CUDA device (cuda/host_tier.cpp).
//
// On a device, a call only puts a copy into a stream, and the tier orders it among other work. A
// write runs after all work that made the bytes, and the block may be freed at once. A read has two
// parts: begin_read() starts the copy, and work that the stream `reader` is given after
// finish_read() finds the bytes there. On the host, a call returns when all is done.
//
// The device may be far behind the host. A write should not wait for all work that the device was
// given meanwhile. So mark() notes at times how far the program is, by a clock that never goes
// back. A write tells a time at which its bytes were made, and waits for the first mark of a later
// time. A mark of the same time may be older than the bytes.

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
    void* read = nullptr;     // and the one after the copy in that was begun.
  };
  virtual Room reserve(Bytes bytes) = 0;  // Throws nothing.
  virtual void give_back(Room& room) = 0;

  static constexpr Nanos kUnknown = Nanos::max();  // As `made`: wait for all work so far.
  // Throw std::runtime_error if the system or the driver fails, and then change nothing else.
  // `from` is the start of a live block. `to` is that of a block allocated on the stream
  // arrives_on(reader), which may be freed before the read is finished. A read may run beside any
  // other call, except one for the same room.
  virtual void write(Room& room, const void* from, Bytes bytes, Nanos made) = 0;
  virtual void begin_read(Room& room, void* to, Bytes bytes) = 0;
  virtual void finish_read(Room&, void* /*to*/, Stream /*reader*/) {}
  virtual Stream arrives_on(Stream reader) const { return reader; }
  // Whether copies run while the host goes on.
  virtual bool runs_beside() const { return false; }
  // Marks all work so far, given to this stream. Does nothing if the pool has met several streams.
  virtual void mark(Stream, Nanos /*now*/) {}
  // Makes later work of any stream wait for the copies out, so that it may overwrite the originals.
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

// Makes the second tier of a CUDA device's pool: memory of the host, all page-locked now, if
// possible on the device's own NUMA node. The pool must live longer. Throws std::runtime_error,
// which says what to do, if the driver or the machine refuses, and then changes nothing.
std::unique_ptr<Tier> make_host_tier(Pool& memory, int device, Bytes bytes);

}  // namespace dtr
