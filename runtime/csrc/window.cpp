#include "runtime/csrc/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtr {
namespace {

// A block of a run: free, or evictable and then with a value.
struct Piece {
  Bytes bytes;
  Bytes evicted;  // 0 where it is free.
  double cost;    // Its own, by the recompute penalty, and of neighbours that no other shares.
  double stale_bytes;
  std::size_t classes_end;  // The end of its classes among all; they begin with the last one's end.
};

class Run {
 public:
  explicit Run(const Heuristic& heuristic)
      : heuristic_(heuristic),
        epsilon_(static_cast<double>(heuristic.epsilon)),
        plain_(heuristic.cost_exp == 1 && heuristic.staleness_exp == 1) {}

  std::vector<Piece> pieces;
  std::vector<EvictedClass*> classes;
  std::size_t left = 0, right = 0;  // Pieces [left, right) are in the run.

  void restart() {
    for (; left < right; ++left) change(left, -1);
    cost_ = stale_bytes_ = 0;  // What rounding left.
  }
  void push() { change(right++, 1); }
  void pop() { change(left++, -1); }

  bool holds(Bytes bytes, Bytes evicted) const { return bytes_ >= bytes && evicted_ >= evicted; }
  bool holds_without_first(Bytes bytes, Bytes evicted) const {
    const Piece& piece = pieces[left];
    return bytes_ - piece.bytes >= bytes && evicted_ - piece.evicted >= evicted;
  }
  double cost() const { return std::max(cost_, 0.0) + static_cast<double>(shared_); }
  double score() const {
    auto evicted = static_cast<double>(evicted_);
    double stale_bytes = std::max(stale_bytes_, 0.0) + epsilon_ * evicted;
    if (plain_) return (cost() + epsilon_) * evicted / stale_bytes;
    return raise(cost() + epsilon_, heuristic_.cost_exp) /
           raise(stale_bytes / evicted, heuristic_.staleness_exp);
  }

 private:
  void change(std::size_t place, int by) {
    const Piece& piece = pieces[place];
    bytes_ += by * piece.bytes;
    evicted_ += by * piece.evicted;
    cost_ += by * piece.cost;
    stale_bytes_ += by * piece.stale_bytes;
    std::size_t begin = place == 0 ? 0 : pieces[place - 1].classes_end;
    for (std::size_t i = begin; i < piece.classes_end; ++i) {
      EvictedClass& shared = *classes[i];
      std::int64_t before = shared.in_window;
      shared.in_window += by;
      if ((before == 0) != (shared.in_window == 0)) shared_ += by * shared.cost;
    }
  }

  const Heuristic& heuristic_;
  const double epsilon_;
  const bool plain_;
  Bytes bytes_ = 0, evicted_ = 0;
  Nanos shared_ = 0;
  double cost_ = 0, stale_bytes_ = 0;
};

}  // namespace

Window cheapest_window(const Pool& pool, Engine& engine, Bytes bytes) {
  bytes = round_to_granule(std::max(bytes, Bytes{1}));
  const Heuristic& h = engine.heuristic();
  // Bytes that the budget lacks must come from values, wherever holes may be.
  Bytes lacking = std::max(pool.live() + bytes - pool.budget(), Bytes{1});

  std::vector<Extent> extents;
  extents.reserve(2 * pool.stats().live_blocks + 1);
  pool.list_extents(bytes, extents);
  Run run(h);
  run.pieces.resize(extents.size());
  run.classes.clear();
  for (std::size_t i = 0; i < extents.size(); ++i) {
    Piece& piece = run.pieces[i];
    auto* value = static_cast<Value*>(extents[i].owner);
    piece = {.bytes = extents[i].bytes};
    if (value && !engine.evictable(*value)) {
      piece.bytes = extents[i].bytes = 0;
    } else if (value) {
      Nanos own = engine.neighbourhood().shared_cost(
          *value, [&](EvictedClass& shared) { run.classes.push_back(&shared); });
      piece.cost = static_cast<double>(value->cost + own);
      if (h.recompute_penalty != 1) piece.cost *= std::pow(h.recompute_penalty, value->recomputes);
      piece.evicted = piece.bytes;
      piece.stale_bytes =
          static_cast<double>(piece.bytes) * static_cast<double>(engine.staleness(*value));
    }
    piece.classes_end = run.classes.size();
  }

  double least = std::numeric_limits<double>::infinity(), cost = 0;
  std::size_t begin = 0, end = 0;
  while (run.right < run.pieces.size()) {
    if (run.pieces[run.right].bytes == 0) {
      run.restart();
      run.left = ++run.right;
      continue;
    }
    run.push();
    if (!run.holds(bytes, lacking)) continue;
    while (run.holds_without_first(bytes, lacking)) run.pop();
    if (double score = run.score(); score < least) {
      least = score;
      cost = run.cost();
      begin = run.left;
      end = run.right;
    }
  }
  run.restart();  // Gives every class its zero back.

  Window window{.values = {}, .cost = static_cast<Nanos>(cost)};
  for (std::size_t i = begin; i < end; ++i) {
    if (extents[i].owner) window.values.push_back(static_cast<Value*>(extents[i].owner));
  }
  return window;
}

}  // namespace dtr
