// An arena is one reserved range of addresses whose pages can be given to it and taken away. The
// pool decides where blocks lie; the arena only knows pages, so the same pool runs on host memory,
// on CUDA's virtual memory, or on addresses alone (the simulator). Addresses are cheap and pages
// are not: a range larger than the budget lets the pool form a hole out of scattered free pages
// instead of evicting for it.

#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "dtr_alloc/pool/csrc/streams.h"
#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

// The machine has no memory for what a budget allows, in the words of whoever was asked.
class MachineIsFull final : public std::bad_alloc {
 public:
  explicit MachineIsFull(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  const std::string text_;
};

// What it takes to move a run of pages and use them at their new place: a call, and each page.
struct MovePrices {
  Nanos call, page;

  Nanos of(std::int64_t pages) const { return call + pages * page; }
  // Of a host, measured on an AMD EPYC with Linux 6.18.
  static MovePrices usual(Bytes page) {
    return page < Bytes{2} << 20 ? MovePrices{1us, 150ns} : MovePrices{0us, 10us};
  }
};

constexpr Nanos kCannotMove = Nanos::max();

class Arena {
 public:
  virtual ~Arena() = default;
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // How streams that use this memory wait for each other; null where nothing runs in streams.
  virtual std::unique_ptr<StreamEvents> stream_events() { return nullptr; }

  virtual const char* name() const = 0;     // "host", "virtual", "cuda"
  virtual std::uintptr_t base() const = 0;  // First address; a multiple of kArenaAlignment.
  virtual Bytes capacity() const = 0;       // Addresses reserved; a multiple of page().
  virtual Bytes page() const = 0;  // Unit of commit and release; a power of two, at least 512.

  // Gives pages to [begin, end) / takes them away; offsets are multiples of page(). Contents of
  // committed pages are unspecified. commit throws std::bad_alloc where the machine has no page
  // left; the pages it was asked for are then as they were. Where any of the three throws something
  // else, backed() tells what became of each page.
  virtual void commit(Bytes begin, Bytes end) = 0;
  virtual void release(Bytes begin, Bytes end) = 0;

  // Takes the pages of `bytes` from one offset to another, where there are none. Pages that are
  // moved need not be cleared and touched for the first time again. Work that is under way may use
  // them at the old place until `leave` is called for that place. The call comes before the next
  // commit or move to there, and before the pages are released.
  virtual void move(Bytes from, Bytes to, Bytes bytes) {
    release(from, from + bytes);
    commit(to, to + bytes);
  }

  virtual void leave(Bytes /*begin*/, Bytes /*end*/) {}

  // Measured on this machine; the usual ones where nothing can be.
  virtual MovePrices move_prices() const { return MovePrices::usual(page()); }

  // What the host's part of a move took, by the clock below: of so many pages, or of leaving an old
  // place, which counts none.
  virtual void note_move(std::int64_t /*pages*/, Nanos /*took*/) {}
  virtual Nanos now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

  // Whether there is a page at `offset`, after a call about it has thrown; `before`: whether there
  // was one before the call.
  virtual bool backed(Bytes /*offset*/, bool before) const { return before; }
};

// Every arena starts at a multiple of this and keeps others out of all addresses up to the next
// multiple after its end, so that an address names its arena by a shift (Pool::owner_of).
constexpr Bytes kArenaAlignment = Bytes{1} << 30;

// Arenas with memory lie below kVirtualBegin, those without in [kVirtualBegin, kVirtualEnd).
constexpr Bytes kVirtualBegin = Bytes{1} << 48;
constexpr Bytes kVirtualEnd = Bytes{1} << 49;

// All round `capacity` up to a page and throw std::invalid_argument unless it is above 0 and up to
// kMaxCapacity: a quarter of the addresses that x86-64 gives a process (47 bits), as the tables of
// a pool take an eighth of an arena's once more, and a scope's may outlive it.
constexpr Bytes kMaxCapacity = Bytes{32} << 40;

// Anonymous private memory of this process, in pages of host_page(capacity).
std::unique_ptr<Arena> make_host_arena(Bytes capacity);
Bytes host_page(Bytes capacity);
// Whether small pages of a host can be moved here and now (page_mover.h).
bool host_pages_move();

// Addresses without memory. `page` is the page size to imitate (CUDA: 2 MiB); the default moves
// every granule by itself.
std::unique_ptr<Arena> make_virtual_arena(Bytes capacity, Bytes page = 512);

// What a device's pages are made for, besides its own kernels. Libraries that register memory ask
// for it, and a page cannot get it later.
struct PageUses {
  bool rdma = false;        // A network card reads and writes them (GPUDirect RDMA).
  bool exportable = false;  // Another process maps them, by a POSIX file descriptor.
};

// Memory of a CUDA device, in pages of 2 MiB; the driver is loaded now. Throws std::runtime_error
// that says what is missing where there is no driver, or no such use of a page;
// std::invalid_argument where it sees no such device.
std::unique_ptr<Arena> make_cuda_arena(Bytes capacity, int device, PageUses uses = {});

inline void check_capacity(Bytes capacity) {
  if (capacity <= 0 || capacity > kMaxCapacity) {
    throw std::invalid_argument("an arena must have more than 0 and up to 32 TiB of addresses");
  }
}

}  // namespace dtr
