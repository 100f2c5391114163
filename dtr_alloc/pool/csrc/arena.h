// Reserves one range of addresses (an arena), and commits, moves and releases its pages. The pool
// decides where blocks lie; the arena only knows pages, so the same pool runs on host memory, on
// CUDA's virtual memory, or on addresses without memory (the simulator). Addresses cost little,
// pages much. So the range is larger than the budget, and instead of evicting, the pool can move
// scattered free pages into one hole.

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

// Thrown if the machine lacks memory that a budget allows. The text gives the reason.
class MachineIsFull final : public std::bad_alloc {
 public:
  explicit MachineIsFull(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  const std::string text_;
};

// The time to move a run of pages and touch them at their new place: per call, and per page.
struct MovePrices {
  Nanos call, page;

  Nanos of(std::int64_t pages) const { return call + pages * page; }
  // Prices measured on a host with an AMD EPYC and Linux 6.18.
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

  // The events by which streams of this memory wait for each other; null if it has no streams.
  virtual std::unique_ptr<StreamEvents> stream_events() { return nullptr; }

  virtual const char* name() const = 0;     // "host", "virtual", "cuda"
  virtual std::uintptr_t base() const = 0;  // First address; a multiple of kArenaAlignment.
  virtual Bytes capacity() const = 0;       // Addresses reserved; a multiple of page().
  virtual Bytes page() const = 0;  // Unit of commit and release; a power of two, at least 512.

  // commit() gives pages to [begin, end), release() takes them away; offsets are multiples of
  // page(). New pages have unspecified contents. commit() throws std::bad_alloc and changes nothing
  // if the machine has no page left. If commit(), release() or move() throws anything else,
  // backed() tells which pages are there.
  virtual void commit(Bytes begin, Bytes end) = 0;
  virtual void release(Bytes begin, Bytes end) = 0;

  // Moves the pages of [from, from + bytes) to offset `to`, which has no pages. Overridden where
  // this saves clearing new pages. Work under way may use the pages at the old offset until the
  // pool calls leave() for that offset: before the next commit or move to it, and before releasing
  // the pages.
  virtual void move(Bytes from, Bytes to, Bytes bytes) {
    release(from, from + bytes);
    commit(to, to + bytes);
  }

  virtual void leave(Bytes /*begin*/, Bytes /*end*/) {}

  // Prices measured on this machine if possible, else MovePrices::usual.
  virtual MovePrices move_prices() const { return MovePrices::usual(page()); }

  // Tells the arena how long the host took, by now(), to move pages or to call leave() (0 pages).
  virtual void note_move(std::int64_t /*pages*/, Nanos /*took*/) {}
  virtual Nanos now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

  // Whether `offset` has a page after a failed call. `before`: whether it had one before that call.
  virtual bool backed(Bytes /*offset*/, bool before) const { return before; }
};

// Every arena starts at a multiple of this and owns all addresses up to the next multiple after its
// end, so that Pool::owner_of finds an address's arena by a bit shift.
constexpr Bytes kArenaAlignment = Bytes{1} << 30;

// Arenas with memory lie below kVirtualBegin, without memory in [kVirtualBegin, kVirtualEnd).
constexpr Bytes kVirtualBegin = Bytes{1} << 48;
constexpr Bytes kVirtualEnd = Bytes{1} << 49;

// The functions below round `capacity` up to a page and throw std::invalid_argument unless it is
// above 0 and at most kMaxCapacity. That is a quarter of a process's addresses on x86-64 (47 bits):
// a pool's tables take an eighth more, and pools of earlier scopes may still live.
constexpr Bytes kMaxCapacity = Bytes{32} << 40;

// Makes an arena of anonymous private memory, in pages of host_page(capacity).
std::unique_ptr<Arena> make_host_arena(Bytes capacity);
Bytes host_page(Bytes capacity);
// Whether this machine can move small pages of a host arena (page_mover.h).
bool host_pages_move();

// Makes an arena of addresses without memory. `page` is the page size to imitate (CUDA: 2 MiB), by
// default a granule.
std::unique_ptr<Arena> make_virtual_arena(Bytes capacity, Bytes page = 512);

// Who may use a device's pages besides its own kernels. Libraries that register memory need such
// uses, which must be chosen before a page is made.
struct PageUses {
  bool rdma = false;        // A network card may access pages (GPUDirect RDMA).
  bool exportable = false;  // Another process may map pages, by a POSIX file descriptor.
};

// Loads the driver, and makes an arena of a CUDA device's memory, in pages of 2 MiB. Throws
// std::runtime_error if there is no driver or the device does not support `uses`, and
// std::invalid_argument if there is no such device.
std::unique_ptr<Arena> make_cuda_arena(Bytes capacity, int device, PageUses uses = {});

inline void check_capacity(Bytes capacity) {
  if (capacity <= 0 || capacity > kMaxCapacity) {
    throw std::invalid_argument("an arena must have more than 0 and up to 32 TiB of addresses");
  }
}

}  // namespace dtr
