// Stores the bytes of tensors for which memory has no room, in a second tier. For tensors on the
// host this is a file (live/machine/swap_file.h), for tensors on a CUDA device it is page-locked
// memory of the host (cuda/host_tier.cpp).
//
// On the host, a call returns when its copy is done. On a device, a call only puts a copy into a
// stream. The copy of write() runs after the work that made the bytes, and the block may be freed
// as soon as write() returns. A read has two parts: begin_read() starts the copy, and finish_read()
// makes later work of the stream `reader` wait for it.
//
// The device may be far behind the host. A write should wait only for the work that made its bytes,
// not for all work given to the device since. So after some operators mark() records an event with
// the time, by a clock that never goes back. A write gets the time when its bytes were made. Its
// copy waits for the first event of a later time (one of the same time may be too early).

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

  // A place in the tier for the bytes of one tensor.
  struct Room {
    Block* block = nullptr;   // Null if the tier is full.
    void* written = nullptr;  // On a device: the event after the copy of write().
    void* read = nullptr;     // On a device: the event after the copy of begin_read().
  };
  virtual Room reserve(Bytes bytes) = 0;  // Throws nothing.
  virtual void give_back(Room& room) = 0;

  static constexpr Nanos kUnknown = Nanos::max();  // For `made`: wait for all work so far.
  // The next three throw std::runtime_error if the system or the driver fails, and then change
  // nothing. `from` is the start of a live block. `to` is the start of a block that was allocated
  // on the stream arrives_on(reader); a device's block may be freed before the copy ends. While a
  // thread reads, another may make any call for another room.
  virtual void write(Room& room, const void* from, Bytes bytes, Nanos made) = 0;
  virtual void begin_read(Room& room, void* to, Bytes bytes) = 0;
  virtual void finish_read(Room&, void* /*to*/, Stream /*reader*/) {}
  virtual Stream arrives_on(Stream reader) const { return reader; }
  // Whether a call may return before its copy is done.
  virtual bool runs_beside() const { return false; }
  // Marks the end of the stream's work so far. Does nothing if the pool knows several streams.
  virtual void mark(Stream, Nanos /*now*/) {}
  // Makes all later work wait for write()'s copies, so that it may overwrite what they read.
  virtual void let_overwrite() {}

  virtual Bytes capacity() const = 0;
  virtual Bytes used() const = 0;

  // The time of a write and a read together, as measured when the tier was made.
  struct Speed {
    double nanoseconds_per_byte = 0;
    Nanos latency = 0ns;
  };
  Speed speed() const { return speed_; }

  struct Times {
    Nanos busy = 0ns;    // The time of all copies so far.
    Nanos waited = 0ns;  // How long readers waited for copies so far.
  };
  virtual Times times() = 0;

 protected:
  Speed speed_;
};

// Makes the second tier of a CUDA device's pool: host memory, all of it page-locked at once, and on
// the device's NUMA node if possible. The pool must outlive the tier. If the driver or the machine
// refuses, throws std::runtime_error, whose text says what to do, and changes nothing.
std::unique_ptr<Tier> make_host_tier(Pool& memory, int device, Bytes bytes);

}  // namespace dtr
