// Places for the bytes of tensors in a file, when memory has none.
//
// The file has no name: the system takes it back when the process ends, however it ends. All of it
// is reserved at the start, so that a full disk is an error then, and not when a tensor must go. A
// place is a block of a pool whose addresses are those of the file (pool.h). Bytes go through the
// system's own cache, which keeps as much of the file in memory as the machine has to spare.
//
// The session's lock is held in all calls but begin_read().

#pragma once

#include <atomic>
#include <string>

#include "dtr_alloc/pool/csrc/tier.h"

namespace dtr {

class SwapFile final : public Tier {
 public:
  // A file of so many bytes, rounded up to granules, in `folder`. Throws std::runtime_error with a
  // text that says what to do where the system refuses.
  SwapFile(const std::string& folder, Bytes asked);
  ~SwapFile() override;

  Room reserve(Bytes bytes) override;
  void give_back(Room& room) override { rooms_->free(room.block); }
  void write(Room& room, const void* from, Bytes bytes, Nanos made) override;
  void begin_read(Room& room, void* to, Bytes bytes) override;

  Bytes capacity() const override { return rooms_->budget(); }
  Bytes used() const override { return rooms_->live(); }
  Times times() override { return {Nanos{busy_}, Nanos{busy_}}; }

 private:
  void measure();

  const std::string folder_;
  int file_ = -1;
  Pool::Handle rooms_;
  std::atomic<std::int64_t> busy_ = 0;  // Nanoseconds.
};

}  // namespace dtr
