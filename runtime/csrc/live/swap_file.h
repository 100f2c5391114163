// Places for the bytes of tensors in a file, when memory has none.
//
// The file has no name: the system takes it back when the process ends, however it ends. All of it
// is reserved at the start, so that a full disk is an error then, and not when a tensor must go. A
// place is a block of a pool whose addresses are those of the file (pool.h). Bytes go through the
// system's own cache, which keeps as much of the file in memory as the machine has to spare.
//
// Not thread-safe: the session's lock is held in all calls.

#pragma once

#include <string>

#include "dtr_alloc/csrc/pool.h"

namespace dtr {

class SwapFile {
 public:
  // A file of so many bytes, rounded up to granules, in `folder`. Throws std::runtime_error with a
  // text that says what to do where the system refuses.
  SwapFile(const std::string& folder, Bytes asked);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  using Place = Block;
  Place* reserve(Bytes bytes);  // Null where the file is full.
  void give_back(Place* place) { places_->free(place); }
  // Throw std::runtime_error where the system fails to, with nothing else changed.
  void write(const Place& place, const void* from, Bytes bytes);
  void read(const Place& place, void* to, Bytes bytes) const;

  Bytes capacity() const { return places_->budget(); }
  Bytes used() const { return places_->live(); }
  // What a byte took to be written and read again, when the file was made.
  double nanoseconds_per_byte() const { return nanoseconds_per_byte_; }

 private:
  void measure();

  const std::string folder_;
  int file_ = -1;
  Memory::Handle places_owner_;
  Pool* places_ = nullptr;
  double nanoseconds_per_byte_ = 0;
};

}  // namespace dtr
