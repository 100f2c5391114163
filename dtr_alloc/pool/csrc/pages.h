// Keeps a bit for each page of an arena, set while the page is committed, and a bit for each full
// word of 64 pages. Keeps the limit on committed pages, too.
//
// The limit is the budget rounded up to a page; the pool decides when to exceed it. A page may be
// released only if it lies wholly inside a hole, so pages that live blocks touch are always
// committed. Pages of holes stay committed, too, until the pool needs them elsewhere or trims them,
// because each release or commit calls the kernel or the driver. Cost: a look at one word for every
// 4,096 committed pages of a block.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/arena.h"
#include "dtr_alloc/pool/csrc/lazy_array.h"
#include "dtr_alloc/pool/csrc/memory.h"

namespace dtr {

class Pages {
 public:
  // The pages with numbers in [begin, end).
  struct Run {
    std::int64_t begin, end;
    std::int64_t size() const { return begin < end ? end - begin : 0; }
    bool meets(Run other) const { return begin < other.end && other.begin < end; }
    Run common(Run other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
  };

  Pages(Arena& arena, Bytes budget);

  Run touched(Bytes begin, Bytes end) const {  // Pages that hold some byte of the range.
    return {begin >> shift_, (end + (Bytes{1} << shift_) - 1) >> shift_};
  }
  Run touched(const Block& block) const { return touched(block.offset, block.offset + block.size); }
  Run inside(const Block& block) const {  // Pages wholly inside the block.
    const Bytes end = block.offset + block.size;
    return {(block.offset + (Bytes{1} << shift_) - 1) >> shift_, end >> shift_};
  }

  bool all_committed(Run run) const {
    if (run.size() == 1) return (bits_[run.begin >> 6] >> (run.begin & 63) & 1) != 0;
    return next(false, run) == run.end;
  }
  // Whether committing the run keeps to the limit.
  bool fits(Run run) const {
    const std::int64_t headroom = limit_ - committed_;
    if (run.size() <= headroom || all_committed(run)) return true;
    return headroom > 0 && missing(run, headroom) <= headroom;
  }
  std::int64_t committed(Run run) const;  // Committed pages in the run.
  // Splits the run into committed and missing parts; calls `visit(part, committed)` for each.
  template <class Visit>
  void each_run(Run run, const Visit& visit) const {
    while (run.begin < run.end) {
      const bool committed = (bits_[run.begin >> 6] >> (run.begin & 63) & 1) != 0;
      const Run part{run.begin, next(!committed, run)};
      visit(part, committed);
      run.begin = part.end;
    }
  }

  void commit(Run run) {
    if (!all_committed(run)) commit_missing(run);
  }
  // Moves up to `most` committed pages of `from`, highest first, to gaps in `to`, which must lack
  // that many. Returns how many moved. Calls `about(run)` before each run moves.
  std::int64_t move(Run from, Run to, std::int64_t most, const std::function<void(Run)>& about);
  void leave(Run old) {
    ++calls_;
    arena_.leave(bytes(old.begin), bytes(old.end));
  }
  // Releases up to `most` pages of the run, highest first; returns how many.
  std::int64_t release(Run run, std::int64_t most);

  std::int64_t calls() const { return calls_.load(std::memory_order_relaxed); }  // Arena calls.
  std::int64_t limit() const { return limit_; }
  void set_limit(Bytes bytes) { limit_ = touched(0, bytes).end; }
  std::int64_t committed() const { return committed_; }
  Bytes committed_bytes() const { return committed_ << shift_; }
  Bytes bytes(std::int64_t pages) const { return pages << shift_; }
  std::vector<std::pair<Bytes, Bytes>> runs() const;  // Offsets of committed pages.
  void check() const;                                 // Throws std::logic_error if inconsistent.

 private:
  // The first page of the run whose bit is `committed`, or the run's end.
  std::int64_t next(bool committed, Run run) const;
  Run last_committed(Run run, std::int64_t most) const;  // The highest, up to `most`.
  // One past the last page of the run whose bit is `committed`, or the run's begin.
  std::int64_t last_end(bool committed, Run run) const;
  // Counts pages of the run that are not committed, until there are more than `enough`.
  std::int64_t missing(Run run, std::int64_t enough) const;
  void commit_missing(Run run);
  void set(Run run, bool committed);
  // After a failed call: asks the arena which pages of the run are committed now.
  void look_again(Run run, bool before);

  Arena& arena_;
  const int shift_;
  std::int64_t limit_;
  std::int64_t committed_ = 0;
  std::atomic<std::int64_t> calls_ = 0;
  std::int64_t top_ = 0;  // No page from here on was ever committed.
  const LazyArray<std::uint64_t> bits_;
  const LazyArray<std::uint64_t> full_;  // Bit i: all bits of bits_[i] are set.
};

}  // namespace dtr
