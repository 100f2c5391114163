// Host memory as an arena: one anonymous private mapping. The kernel backs a page when it is first
// touched, so commit has nothing to do and release is MADV_DONTNEED. MAP_NORESERVE keeps the range
// out of the kernel's overcommit count: an arena costs what is touched in it.
//
// The unit of commit decides what "committed" is worth. Huge pages make the first touch of large
// blocks some ten times faster, but the kernel then backs 2 MiB for one byte, and taking 4 KiB out
// of a huge page gives the machine nothing back. So an arena that asks for huge pages counts in
// huge pages, and a small one, where 2 MiB is too coarse a unit to move, asks for none even where
// the system's default is "always". Both ways resident memory never passes the committed bytes.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <system_error>

#include "dtr_alloc/csrc/arena.h"

namespace dtr {
namespace {

constexpr Bytes kHugePage = Bytes{2} << 20;
// Capacity at which one huge page is a small part of the whole. Huge pages also move for less, and
// make steady steps 0 to 2 % faster.
constexpr Bytes kHugeFrom = 256 * kHugePage;

Bytes round_up(Bytes n, Bytes unit) { return (n + unit - 1) / unit * unit; }

struct NoAddresses final : std::bad_alloc {
  const char* what() const noexcept override {
    return "this process cannot reserve the addresses of another pool, twice its budget: lower the "
           "budget, raise the limit on addresses (ulimit -v, ulimit -d), or drop the tensors that "
           "earlier "
           "scopes left, which keep theirs";
  }
};

class HostArena final : public Arena {
 public:
  explicit HostArena(Bytes capacity)
      : page_(host_page(capacity)),
        capacity_(round_up(capacity, page_)),
        reserved_(round_up(capacity_, kArenaAlignment)) {
    // mmap aligns to pages only: reserve one alignment too much and cut both ends off.
    const Bytes excess = reserved_ + kArenaAlignment;
    void* range =
        mmap(nullptr, excess, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw NoAddresses();
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(range);
    base_ = round_up(begin, kArenaAlignment);
    if (base_ > begin) munmap(range, base_ - begin);
    munmap(at(reserved_), begin + excess - (base_ + reserved_));

    // What lies between the capacity and the next multiple of the alignment stays without access.
    if (mprotect(at(0), capacity_, PROT_READ | PROT_WRITE) != 0) {
      munmap(at(0), reserved_);
      throw NoAddresses();
    }
    // Advice only: a kernel built without huge pages refuses it, and the arena works as well.
    madvise(at(0), capacity_, page_ == kHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }

  ~HostArena() override { munmap(at(0), reserved_); }

  const char* name() const override { return "host"; }
  std::uintptr_t base() const override { return base_; }
  Bytes capacity() const override { return capacity_; }
  Bytes page() const override { return page_; }

  void commit(Bytes, Bytes) override {}

  void release(Bytes begin, Bytes end) override {
    if (madvise(at(begin), end - begin, MADV_DONTNEED) != 0) {
      throw std::system_error(errno, std::generic_category(), "cannot give pages of the pool back");
    }
  }

  // The kernel moves page tables, which costs less than to clear a released page and fault it in
  // again (perf/README.md, "The pool", has both). It moves one mapping at a time, and every move
  // makes another one: a range of several is halved until a piece is too short to be worth a call,
  // which is released, and so becomes part of one mapping again.
  void move(Bytes from, Bytes to, Bytes bytes) override {
    if (bytes >= worth_a_call() * page_) {
      constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED;
      const bool moved = mremap(at(from), bytes, bytes, kFlags, at(to)) != MAP_FAILED;
      map(moved ? from : to,
          bytes);  // A call that fails may have unmapped where it was to move to.
      if (moved) return;
      if (const Bytes half = bytes / page_ / 2 * page_; half > 0) {
        move(from, to, half);
        move(from + half, to + half, bytes - half);
        return;
      }
    }
    release(from, from + bytes);
  }

  MovePrices move_prices() const override {
    // Once a process, on pages of its own.
    if (page_ == kHugePage) {
      static const MovePrices huge = measured_or_usual(kHugePage);
      return huge;
    }
    static const MovePrices normal = measured_or_usual(host_page(1));
    return normal;
  }

 private:
  void map(Bytes begin, Bytes bytes) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(at(begin), bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) {
      throw std::system_error(errno, std::generic_category(), "cannot map pages of the pool again");
    }
    madvise(at(begin), bytes, page_ == kHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }

  std::int64_t worth_a_call() const { return MovePrices::usual(page_).worth_a_call; }

  // A process may have too few addresses left to measure with.
  static MovePrices measured_or_usual(Bytes page) {
    try {
      return measure(page);
    } catch (const std::bad_alloc&) {
    } catch (const std::system_error&) {
    }
    return MovePrices::usual(page);
  }

  // The least of some rounds: moving two lengths of runs, and giving pages back; each with a touch
  // of every page afterwards.
  static MovePrices measure(Bytes page) {
    constexpr int kRounds = 3;
    HostArena arena(page == kHugePage ? kHugeFrom : 1024 * page);
    const std::int64_t few = arena.worth_a_call(), many = 4 * few;
    const auto touch = [&](Bytes begin, std::int64_t pages) {
      for (std::int64_t i = 0; i < pages; i++) {
        *static_cast<volatile char*>(arena.at(begin + i * page)) = 1;
      }
    };
    const auto least = [&](std::int64_t pages, const auto& act) {
      Nanos best = Nanos::max();
      for (int round = 0; round < kRounds; round++) {
        arena.release(0, 2 * many * page);
        touch(0, pages);
        const auto begin = std::chrono::steady_clock::now();
        const Bytes place = act(pages);
        touch(place, pages);
        best = std::min<Nanos>(best, std::chrono::steady_clock::now() - begin);
      }
      return best;
    };
    const auto move = [&](std::int64_t pages) {
      arena.move(0, many * page, pages * page);
      return many * page;
    };
    const auto renew = [&](std::int64_t pages) {
      arena.release(0, pages * page);
      return Bytes{0};
    };
    const Nanos one = least(few, move), four = least(many, move);
    MovePrices prices{.worth_a_call = few};
    prices.page = std::max<Nanos>((four - one) / (many - few), 1ns);
    prices.call = std::max<Nanos>(one - few * prices.page, 0ns);
    prices.page_anew = least(few, renew) / few;
    return prices;
  }

  void* at(Bytes offset) const { return reinterpret_cast<void*>(base_ + offset); }

  const Bytes page_;
  const Bytes capacity_;
  const Bytes reserved_;
  std::uintptr_t base_ = 0;
};

}  // namespace

Bytes host_page(Bytes capacity) {
  return capacity >= kHugeFrom ? kHugePage : Bytes{sysconf(_SC_PAGESIZE)};
}

std::unique_ptr<Arena> make_host_arena(Bytes capacity) {
  check_capacity(capacity);
  return std::make_unique<HostArena>(capacity);
}

}  // namespace dtr
