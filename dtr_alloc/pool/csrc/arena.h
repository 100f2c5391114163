// Reserves one range of addresses (an arena), and commits, moves and releases its physical pages.
// The pool decides where blocks lie; the arena knows only pages. So the same pool runs on host
// memory, on CUDA's virtual memory, or, in the simulator, on addresses without memory. Addresses
// cost almost nothing, so an arena reserves more of them than the budget has bytes. Then the pool
// can gather scattered free pages in one hole (free block) instead of evicting tensors.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "dtr_alloc/pool/csrc/streams.h"
#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

// Thrown if the machine has no memory for a request within the budget. The text gives the reason.
class MachineIsFull final : public std::bad_alloc {
 public:
  explicit MachineIsFull(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  const std::string text_;
};

// The host's time to move n adjacent pages and touch them at their new addresses: call + n * page.
struct MovePrices {
  Nanos call, page;

  Nanos of(std::int64_t pages) const { return call + pages * page; }
  // Returns prices measured on an AMD EPYC host with Linux 6.18, for small or for 2 MiB pages.
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

  // Makes the events that let streams wait for each other; null for memory that no stream uses.
  virtual std::unique_ptr<StreamEvents> stream_events() { return nullptr; }

  virtual const char* name() const = 0;     // "host", "virtual", "cuda"
  virtual std::uintptr_t base() const = 0;  // First address; a multiple of kArenaAlignment.
  virtual Bytes capacity() const = 0;       // Addresses reserved; a multiple of page().
  virtual Bytes page() const = 0;  // Unit of commit and release; a power of two, at least 512.

  // commit() gives pages to [begin, end), release() takes them away; offsets are multiples of
  // page(). New pages have unspecified contents. If the machine has no page left, commit() throws
  // std::bad_alloc and changes nothing. If commit(), release() or move() throws another exception,
  // backed() tells which addresses have a page now.
  virtual void commit(Bytes begin, Bytes end) = 0;
  virtual void release(Bytes begin, Bytes end) = 0;

  // Moves the pages of [from, from + bytes) to offset `to`, where there are no pages yet. An arena
  // that can move pages without clearing new ones overrides this member. Work in a stream may use
  // the pages at the old addresses until the pool calls leave() for these. The pool does so before
  // it commits or moves other pages to the old addresses, and before it releases the moved pages.
  virtual void move(Bytes from, Bytes to, Bytes bytes) {
    release(from, from + bytes);
    commit(to, to + bytes);
  }

  virtual void leave(Bytes /*begin*/, Bytes /*end*/) {}

  // Returns prices measured on this machine if the arena could measure, else MovePrices::usual.
  virtual MovePrices move_prices() const { return MovePrices::usual(page()); }

  // Tells the arena how long, by now(), the host took to move `pages` pages, or for leave() (if 0).
  virtual void note_move(std::int64_t /*pages*/, Nanos /*took*/) {}
  virtual Nanos now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

  // Returns whether `offset` has a page after a call failed. `before`: whether it had one before.
  virtual bool backed(Bytes /*offset*/, bool before) const { return before; }
};

// Every arena starts at a multiple of kArenaAlignment and owns all addresses up to the next
// multiple after its end. So Pool::owner_of finds the pool of an address by a bit shift.
constexpr Bytes kArenaAlignment = Bytes{1} << 30;

// Arenas with memory lie below kVirtualBegin; virtual arenas lie in [kVirtualBegin, kVirtualEnd).
constexpr Bytes kVirtualBegin = Bytes{1} << 48;
constexpr Bytes kVirtualEnd = Bytes{1} << 49;

// The make functions below round `capacity` up to a page, and throw std::invalid_argument unless it
// is above 0 and at most kMaxCapacity: a quarter of a process's addresses on x86-64 (47 bits),
// since tables of pools, and earlier scopes' pools that are still in use, need addresses, too.
constexpr Bytes kMaxCapacity = Bytes{32} << 40;

// With this budget, a scope's pool can still reserve twice as many addresses as the budget's bytes.
constexpr Bytes kLargestBudget = kMaxCapacity / 2;

// Returns how many bytes of addresses a pool reserves for a budget: twice as many and some more, so
// that it can make a hole from scattered pages (pool.h).
constexpr Bytes usual_addresses(Bytes budget) {
  return std::min(2 * budget + (Bytes{64} << 20), kMaxCapacity);
}

// Makes an arena of the host's anonymous private memory, in pages of host_page(capacity) bytes.
std::unique_ptr<Arena> make_host_arena(Bytes capacity);
Bytes host_page(Bytes capacity);
// Returns whether this machine can move pages of a host arena that are not huge (page_mover.h).
bool host_pages_move();

// Makes an arena of addresses without memory. `page` is the page size to imitate (CUDA: 2 MiB).
std::unique_ptr<Arena> make_virtual_arena(Bytes capacity, Bytes page = 512);

// Says who may access a device's pages besides the device itself. Libraries that register memory
// may need these flags. The driver must know them when a page is made.
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
