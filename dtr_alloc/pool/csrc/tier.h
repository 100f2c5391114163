// A second tier of memory: where the bytes of tensors go when there is no room for them. There are
// two: a file, for tensors on the host (live/machine/swap_file.h), and the host's page-locked
// memory, for those of a CUDA device (cuda/host_tier.cpp).
//
// A copy of a device is only given to a stream. Its order among other work is the tier's business.
// A write comes after all that made the bytes, and the block may be freed at once. A read has two
// parts: begin_read() starts the copy, and work that the stream `reader` is given after
// finish_read() finds the bytes there. On the host a call returns when all is done.
//
// The device may be far behind the host. So that a write need not come after all that the device
// was given meanwhile, mark() notes at times how far the program is, by a clock that never goes
// back. A write tells a time by which its bytes had been made, and comes after the first mark of a
// later time. A mark of the same time may be older than the bytes.

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
    Block* block = nullptr;   // Null where the tier is full.
    void* written = nullptr;  // On a device: the events after the copy out,
    void* read = nullptr;     // and after the copy in that was begun.
  };
  virtual Room reserve(Bytes bytes) = 0;  // Throws nothing.
  virtual void give_back(Room& room) = 0;

  static constexpr Nanos kUnknown = Nanos::max();  // Such a write comes after all work so far.
  // Throw std::runtime_error where the system or the driver fails to, with nothing else changed.
  // What is written is the start of a live block; what is read goes to one that was allocated for
  // work of `arrives_on(reader)`, which may be freed before the read is finished. A read may run
  // beside any other call, but not one of its room.
  virtual void write(Room& room, const void* from, Bytes bytes, Nanos made) = 0;
  virtual void begin_read(Room& room, void* to, Bytes bytes) = 0;
  virtual void finish_read(Room&, void* /*to*/, Stream /*reader*/) {}
  virtual Stream arrives_on(Stream reader) const { return reader; }
  // Whether a copy runs beside what the host does next.
  virtual bool runs_beside() const { return false; }
  // All work of the program so far was given to the stream, if the pool has met no other.
  virtual void mark(Stream, Nanos /*now*/) {}
  // What was written may be overwritten where it lay: work of any stream comes after the copies.
  virtual void let_overwrite() {}

  virtual Bytes capacity() const = 0;
  virtual Bytes used() const = 0;

  // To write and to read, as measured when the tier was made.
  struct Speed {
    double nanoseconds_per_byte = 0;
    Nanos latency = 0ns;
  };
  Speed speed() const { return speed_; }

  struct Times {
    Nanos busy = 0ns;    // Of transfers so far.
    Nanos waited = 0ns;  // Of it, what readers waited for.
  };
  virtual Times times() = 0;

 protected:
  Speed speed_;
};

// The host's memory for what lies in the pool of a CUDA device: page-locked now, all of it, and by
// preference on the device's own NUMA node. The pool must live longer. Throws std::runtime_error
// that says what to do where the driver or the machine refuses; nothing has then changed.
std::unique_ptr<Tier> make_host_tier(Pool& memory, int device, Bytes bytes);

}  // namespace dtr
