// Keeps in a file the bytes of tensors for which memory has no room.
//
// The file has no name, so the system deletes it when the process ends, even in a crash. The
// constructor reserves the whole file, so that a full disk is an error then, not at an eviction. A
// pool (pool.h) divides the file into blocks: a block's offset is a tensor's place in the file. The
// system's page cache keeps as much of the file in memory as fits.
//
// All functions but begin_read() are called with the engine's lock held.

#pragma once

#include <atomic>
#include <string>

#include "dtr_alloc/pool/csrc/tier.h"

namespace dtr {

class SwapFile final : public Tier {
 public:
  // Makes a file of `asked` bytes, rounded up to granules, in `folder`. If the system refuses,
  // throws a std::runtime_error whose text says what to do.
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
  std::atomic<std::int64_t> busy_ = 0;  // Nanoseconds spent in reads and writes.
};

}  // namespace dtr
