// Keeps a bit for each page of an arena, set while the page is committed. A second array has a bit
// for each word of 64 such bits, set while all 64 are set. Also stores the limit on pages.
//
// The limit is the budget rounded up to a page; the pool decides when to exceed it. A page may be
// released only if it lies wholly inside a hole (free block), so pages that live blocks touch are
// always committed. Pages of holes stay committed, too, until the pool needs them elsewhere or
// trims them, because each release or commit calls the operating system or the driver. To check
// that a block's pages are committed, we read one word of each array per 4,096 pages.

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
  // Whether commit(run) adds no page beyond the limit.
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
  // Moves up to `most` committed pages of `from`, highest first, into gaps of `to`, which must lack
  // `most` or more. Returns how many moved. Before each run of pages moves, calls about(run).
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
  Bytes peak_bytes() const { return peak_ << shift_; }  // The most since reset_peak().
  void reset_peak() { peak_ = committed_; }
  Bytes bytes(std::int64_t pages) const { return pages << shift_; }
  std::vector<std::pair<Bytes, Bytes>> runs() const;  // Ranges of offsets of committed pages.
  void check() const;                                 // Throws std::logic_error if a bit is wrong.

 private:
  // Returns the first page of the run with that state (`committed` or not), or the run's end.
  std::int64_t next(bool committed, Run run) const;
  Run last_committed(Run run, std::int64_t most) const;  // The last ones, at most `most`.
  // Returns one past the last page of the run with that state, or the run's begin.
  std::int64_t last_end(bool committed, Run run) const;
  // Counts pages of the run that are not committed; stops early if the count exceeds `enough`.
  std::int64_t missing(Run run, std::int64_t enough) const;
  void commit_missing(Run run);
  void set(Run run, bool committed);
  // After a failed call: asks the arena which pages of the run have memory, and sets their bits.
  void look_again(Run run, bool before);

  Arena& arena_;
  const int shift_;
  std::int64_t limit_;
  std::int64_t committed_ = 0, peak_ = 0;
  std::atomic<std::int64_t> calls_ = 0;
  std::int64_t top_ = 0;  // No page with this number or above was ever committed.
  const LazyArray<std::uint64_t> bits_;
  const LazyArray<std::uint64_t> full_;  // Bit i is set if all bits of bits_[i] are.
};

}  // namespace dtr
