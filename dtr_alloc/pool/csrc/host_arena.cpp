// Makes an arena of host memory: one anonymous private mapping. The kernel backs a page when it is
// first touched, so commit has nothing to do and release is MADV_DONTNEED. MAP_NORESERVE keeps the
// range out of the kernel's overcommit count: an arena costs what is touched in it.
//
// The page size decides what "committed" means. Huge pages make the first touch of large blocks
// some ten times faster, but the kernel then backs 2 MiB for one byte, and releasing 4 KiB of a
// huge page gives the machine nothing back. So an arena with huge pages counts in huge pages. A
// small arena, for which 2 MiB is too coarse, asks for none even if the system's default is
// "always". Either way resident memory never exceeds the committed bytes.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "dtr_alloc/pool/csrc/arena.h"
#include "dtr_alloc/pool/csrc/lazy_array.h"
#include "dtr_alloc/pool/csrc/page_mover.h"

namespace dtr {
namespace {

constexpr Bytes kHugePage = Bytes{2} << 20;
// Of Linux 5.7 and 5.18; the headers of a system may be older.
constexpr int kDontUnmap = 4;      // MREMAP_DONTUNMAP
constexpr int kEvenIfLocked = 24;  // MADV_DONTNEED_LOCKED: after mlockall.
// Of Linux 5.17: PR_SET_VMA and PR_SET_VMA_ANON_NAME.
constexpr int kSetVma = 0x53564d41, kNameOfMemory = 0;
// Capacity at which one huge page is a small part of the whole. Huge pages also move for less, and
// make steady steps 0 to 2 % faster.
constexpr Bytes kHugeFrom = 256 * kHugePage;

MachineIsFull no_addresses(Bytes bytes) {
  return MachineIsFull(
      "this process cannot reserve " + std::to_string(bytes >> 30) +
      " GiB of addresses for another pool: lower the budget, raise the limit on addresses (ulimit "
      "-v, ulimit -d), or drop the tensors that earlier scopes left, which keep theirs");
}

class HostArena final : public Arena {
 public:
  explicit HostArena(Bytes capacity)
      : page_(host_page(capacity)),
        capacity_(round_up(capacity, page_)),
        reserved_(round_up(capacity_, kArenaAlignment)) {
    // mmap aligns to pages only: reserve one alignment too much and cut off both ends.
    const Bytes excess = reserved_ + kArenaAlignment;
    void* range =
        mmap(nullptr, excess, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw no_addresses(excess);
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(range);
    base_ = round_up(begin, kArenaAlignment);
    if (base_ > begin) munmap(range, base_ - begin);
    munmap(at(reserved_), begin + excess - (base_ + reserved_));

    // Addresses between the capacity and the next multiple of the alignment stay without access.
    if (mprotect(at(0), capacity_, PROT_READ | PROT_WRITE) != 0) {
      munmap(at(0), reserved_);
      throw no_addresses(excess);
    }
    // In /proc/PID/smaps, and thus in memray and gdb. A kernel without names refuses it.
    prctl(kSetVma, kNameOfMemory, base_, capacity_, "dtr_alloc pool");
    // Advice only: a kernel built without huge pages refuses it, and the arena works all the same.
    madvise(at(0), capacity_, page_ == kHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (page_ != kHugePage) mover_.emplace(base_, capacity_);
  }

  ~HostArena() override { munmap(at(0), reserved_); }

  const char* name() const override { return "host"; }
  std::uintptr_t base() const override { return base_; }
  Bytes capacity() const override { return capacity_; }
  Bytes page() const override { return page_; }

  void commit(Bytes, Bytes) override {}

  void release(Bytes begin, Bytes end) override {
    if (madvise(at(begin), end - begin, MADV_DONTNEED) != 0 &&
        madvise(at(begin), end - begin, kEvenIfLocked) != 0) {
      throw std::system_error(errno, std::generic_category(), "cannot give pages of the pool back");
    }
  }

  // A page that cannot move is released, and faulted in anew at its new place: perf/README.md, "The
  // pool", has the time of each way.
  void move(Bytes from, Bytes to, Bytes bytes) override {
    for (const Bytes end = from + bytes; from < end;) {
      Bytes done = 0, rest = end - from;
      if (page_ == kHugePage) {
        done = move_mapping(from, to) ? page_ : 0;
        rest = page_;
      } else if (mover_->usable()) {
        done = mover_->move(from, to, rest);
        rest = page_;
      }
      if (done == 0) {
        done = rest;
        release(from, from + done);
      }
      from += done, to += done;
    }
  }

  // Measured once a process for each kind of page and each way to move it.
  MovePrices move_prices() const override {
    if (page_ == kHugePage) return prices<kHugePage, false>();
    return mover_->usable() ? prices<0, true>() : prices<0, false>();
  }

 private:
  // Whether a huge page has moved. The old mapping stays, without a page.
  bool move_mapping(Bytes from, Bytes to) {
    constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | kDontUnmap;
    if (mremap(at(from), page_, page_, kFlags, at(to)) != MAP_FAILED) return true;
    // A failed call may have unmapped the new place.
    if (madvise(at(to), page_, MADV_DONTNEED) != 0) map(to);
    return false;
  }

  void map(Bytes begin) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(at(begin), page_, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) {
      throw std::system_error(errno, std::generic_category(), "cannot map pages of the pool again");
    }
    madvise(at(begin), page_, MADV_HUGEPAGE);
  }

  // Falls back to usual prices if a process has too few addresses left to measure with.
  template <Bytes kPage, bool kMoves>
  static MovePrices prices() {
    static const MovePrices found = [] {
      const Bytes page = std::max(kPage, host_page(1));
      try {
        return measure(page, kMoves);
      } catch (const std::bad_alloc&) {
      } catch (const std::system_error&) {
      }
      return MovePrices::usual(page);
    }();
    return found;
  }

  // The least of some rounds, for runs of two lengths, with a touch of every page afterwards.
  static MovePrices measure(Bytes page, bool moves) {
    constexpr int kRounds = 3;
    HostArena arena(page == kHugePage ? kHugeFrom : 1024 * page);
    if (arena.mover_ && !moves) arena.mover_->give_up();
    const std::int64_t few = page == kHugePage ? 1 : 16, many = 4 * few;
    const auto touch = [&](Bytes begin, std::int64_t pages) {
      for (std::int64_t i = 0; i < pages; i++) {
        *static_cast<volatile char*>(arena.at(begin + i * page)) = 1;
      }
    };
    const auto least = [&](std::int64_t pages) {
      Nanos best = Nanos::max();
      for (int round = 0; round < kRounds; round++) {
        arena.release(0, 2 * many * page);
        touch(0, pages);
        const auto begin = std::chrono::steady_clock::now();
        arena.move(0, many * page, pages * page);
        touch(many * page, pages);
        best = std::min<Nanos>(best, std::chrono::steady_clock::now() - begin);
      }
      return best;
    };
    const Nanos one = least(few), four = least(many);
    const Nanos each = std::max<Nanos>((four - one) / (many - few), 1ns);
    return {.call = std::max<Nanos>(one - few * each, 0ns), .page = each};
  }

  void* at(Bytes offset) const { return reinterpret_cast<void*>(base_ + offset); }

  const Bytes page_;
  const Bytes capacity_;
  const Bytes reserved_;
  std::uintptr_t base_ = 0;
  std::optional<PageMover> mover_;  // Of pages that are not huge.
};

}  // namespace

Bytes host_page(Bytes capacity) {
  return capacity >= kHugeFrom ? kHugePage : Bytes{sysconf(_SC_PAGESIZE)};
}

bool host_pages_move() {
  const LazyArray<char> page(sysconf(_SC_PAGESIZE));
  return PageMover(reinterpret_cast<std::uintptr_t>(page.data()), sysconf(_SC_PAGESIZE)).usable();
}

std::unique_ptr<Arena> make_host_arena(Bytes capacity) {
  check_capacity(capacity);
  return std::make_unique<HostArena>(capacity);
}

}  // namespace dtr
