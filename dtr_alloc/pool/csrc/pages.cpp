// Searches the bits of pages, a word of 64 at a time. Releases start at the high end of a hole,
// since blocks are cut from the low end: the next block finds its pages still committed.

#include "dtr_alloc/pool/csrc/pages.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace dtr {
namespace {

// Bits [begin, end) of word `word`, where both count from bit 0 of word 0.
std::uint64_t mask(std::int64_t word, std::int64_t begin, std::int64_t end) {
  std::uint64_t bits = ~std::uint64_t{0};
  if (begin > word * 64) bits &= ~std::uint64_t{0} << (begin & 63);
  if (end < word * 64 + 64) bits &= ~(~std::uint64_t{0} << (end & 63));
  return bits;
}

int page_shift(Bytes page) {
  if (page < 512 || !std::has_single_bit(static_cast<std::uint64_t>(page))) {
    throw std::invalid_argument("the page of an arena must be a power of two, at least 512");
  }
  return std::countr_zero(static_cast<std::uint64_t>(page));
}

}  // namespace

Pages::Pages(Arena& arena, Bytes budget)
    : arena_(arena),
      shift_(page_shift(arena.page())),
      limit_(touched(0, budget).end),
      bits_(((arena.capacity() >> shift_) + 63) / 64),
      full_(((arena.capacity() >> shift_) + 4095) / 4096) {}

std::int64_t Pages::next(bool committed, Run run) const {
  for (std::int64_t word = run.begin >> 6; word * 64 < run.end; word++) {
    const std::uint64_t bits =
        (committed ? bits_[word] : ~bits_[word]) & mask(word, run.begin, run.end);
    if (bits != 0) return word * 64 + std::countr_zero(bits);
    if (committed) continue;
    // Skips to the next word that lacks a page.
    const int at = static_cast<int>(word & 63);
    const std::uint64_t lacking = at == 63 ? 0 : ~full_[word >> 6] >> (at + 1);
    word += lacking == 0 ? 63 - at : std::countr_zero(lacking);
  }
  return run.end;
}

std::int64_t Pages::last_end(bool committed, Run run) const {
  for (std::int64_t word = (run.end - 1) >> 6; word >= 0 && word * 64 + 64 > run.begin; word--) {
    const std::uint64_t bits =
        (committed ? bits_[word] : ~bits_[word]) & mask(word, run.begin, run.end);
    if (bits != 0) return word * 64 + 64 - std::countl_zero(bits);
  }
  return run.begin;
}

std::int64_t Pages::missing(Run run, std::int64_t enough) const {
  std::int64_t count = 0;
  for (std::int64_t word = run.begin >> 6; word * 64 < run.end && count <= enough; word++) {
    count += std::popcount(~bits_[word] & mask(word, run.begin, run.end));
  }
  return count;
}

std::int64_t Pages::committed(Run run) const {
  run.end = std::min(run.end, top_);
  return run.size() == 0 ? 0 : run.size() - missing(run, run.size());
}

void Pages::set(Run run, bool committed) {
  for (std::int64_t word = run.begin >> 6; word * 64 < run.end; word++) {
    const std::uint64_t bits = mask(word, run.begin, run.end);
    bits_[word] = committed ? bits_[word] | bits : bits_[word] & ~bits;
    const std::uint64_t one = std::uint64_t{1} << (word & 63);
    full_[word >> 6] = ~bits_[word] == 0 ? full_[word >> 6] | one : full_[word >> 6] & ~one;
  }
  if (committed) top_ = std::max(top_, run.end);
  committed_ += committed ? run.size() : -run.size();
  peak_ = std::max(peak_, committed_);
}

void Pages::look_again(Run run, bool before) {
  for (std::int64_t page = run.begin; page < run.end; page++) {
    const bool now = arena_.backed(bytes(page), before);
    if (now != before) set({page, page + 1}, now);
  }
}

void Pages::commit_missing(Run run) {
  while ((run.begin = next(false, run)) < run.end) {
    const Run piece{run.begin, next(true, run)};
    ++calls_;
    try {
      arena_.commit(bytes(piece.begin), bytes(piece.end));
    } catch (...) {
      look_again(piece, false);
      throw;
    }
    set(piece, true);
    run.begin = piece.end;
  }
}

Pages::Run Pages::last_committed(Run run, std::int64_t most) const {
  Run piece;
  piece.end = last_end(true, run);
  if (piece.end == run.begin) return {run.begin, run.begin};
  piece.begin = std::max(last_end(false, {run.begin, piece.end}), piece.end - most);
  return piece;
}

std::int64_t Pages::release(Run run, std::int64_t most) {
  run.end = std::min(run.end, top_);
  std::int64_t released = 0;
  while (run.size() > 0 && released < most) {
    const Run piece = last_committed(run, most - released);
    if (piece.size() == 0) break;
    ++calls_;
    try {
      arena_.release(bytes(piece.begin), bytes(piece.end));
    } catch (...) {
      look_again(piece, true);
      throw;
    }
    set(piece, false);
    released += piece.size();
    run.end = piece.begin;
  }
  return released;
}

std::int64_t Pages::move(Run from, Run to, std::int64_t most,
                         const std::function<void(Run)>& about) {
  from.end = std::min(from.end, top_);
  std::int64_t count = 0;
  while (from.size() > 0 && count < most) {
    to.begin = next(false, to);
    const std::int64_t room = next(true, to) - to.begin;
    const Run piece = last_committed(from, std::min(room, most - count));
    if (piece.size() == 0) break;
    const Run target{to.begin, to.begin + piece.size()};
    about(piece);
    ++calls_;
    try {
      arena_.move(bytes(piece.begin), bytes(target.begin), bytes(piece.size()));
    } catch (...) {
      look_again(piece, true);
      look_again(target, false);
      throw;
    }
    set(piece, false);
    set(target, true);
    count += piece.size();
    from.end = piece.begin;
  }
  return count;
}

std::vector<std::pair<Bytes, Bytes>> Pages::runs() const {
  std::vector<std::pair<Bytes, Bytes>> runs;
  for (std::int64_t page = next(true, {0, top_}); page < top_;) {
    const std::int64_t end = next(false, {page, top_});
    runs.emplace_back(bytes(page), bytes(end));
    page = next(true, {end, top_});
  }
  return runs;
}

void Pages::check() const {
  for (std::int64_t word = 0; word * 64 < top_; word++) {
    if ((full_[word >> 6] >> (word & 63) & 1) != (~bits_[word] == 0 ? 1U : 0U))
      throw std::logic_error("a bit for 64 pages must say whether all of them are committed");
  }
  if (committed({0, top_}) != committed_)
    throw std::logic_error("committed pages must be the bits that are set");
}

}  // namespace dtr
