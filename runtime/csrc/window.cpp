#include "runtime/csrc/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtr {
namespace {

// Of all blocks since the last one that nobody can have. The difference of two is a run's.
struct Sums {
  Bytes bytes = 0, evicted = 0;  // Free or evictable; evictable.
  double cost = 0;  // By the recompute penalty, with neighbours that no other value shares.
  double stale_bytes = 0;
  std::size_t classes = 0;  // Of all blocks.
};

// Missing neighbours that the values of a run share: each class once.
class Shared {
 public:
  explicit Shared(const std::vector<EvictedClass*>& classes) : classes_(classes) {}

  void add(const Sums& from, const Sums& to) { change(from.classes, to.classes, 1); }
  void take(const Sums& from, const Sums& to) { change(from.classes, to.classes, -1); }
  double cost() const { return static_cast<double>(cost_); }

 private:
  void change(std::size_t begin, std::size_t end, int by) {
    for (std::size_t i = begin; i < end; ++i) {
      EvictedClass& one = *classes_[i];
      std::int64_t before = one.in_window;
      one.in_window += by;
      if ((before == 0) != (one.in_window == 0)) cost_ += by * one.cost;
    }
  }

  const std::vector<EvictedClass*>& classes_;
  Nanos cost_ = 0;
};

// Sums before each block and after the last one, and the classes of all values. A block that nobody
// can have begins anew: the sum after it has no bytes.
void add_up(Engine& engine, const std::vector<Extent>& extents, std::vector<Sums>& sums,
            std::vector<EvictedClass*>& classes) {
  const double penalty = engine.heuristic().recompute_penalty;
  sums.resize(extents.size() + 1);
  Sums sum;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const auto* value = static_cast<const Value*>(extents[i].owner);
    const Bytes bytes = extents[i].bytes;
    if (!value) {
      sum = bytes > 0 ? sum : Sums{.classes = sum.classes};
      sum.bytes += bytes;
    } else if (!engine.evictable(*value)) {
      sum = Sums{.classes = sum.classes};
    } else {
      Nanos own = engine.neighbourhood().shared_cost(
          *value, [&](EvictedClass& shared) { classes.push_back(&shared); });
      double cost = static_cast<double>(value->cost + own);
      if (penalty != 1) cost *= std::pow(penalty, value->recomputes);
      sum.bytes += bytes;
      sum.evicted += bytes;
      sum.cost += cost;
      sum.stale_bytes += static_cast<double>(bytes) * static_cast<double>(engine.staleness(*value));
      sum.classes = classes.size();
    }
    sums[i + 1] = sum;
  }
}

struct Columns {
  std::vector<Extent> extents;
  std::vector<Sums> sums;
  std::vector<EvictedClass*> classes;
};

}  // namespace

Window cheapest_window(const Pool& pool, Engine& engine, Bytes bytes) {
  bytes = round_to_granule(std::max(bytes, Bytes{1}));
  const PoolStats stats = pool.stats();
  // Bytes that the budget lacks must come from values, wherever holes may be.
  const Bytes lacking = std::max(stats.live + bytes - stats.budget, Bytes{1});
  static thread_local Columns columns;  // To ask for their memory anew costs half a search.
  auto& [extents, sums, classes] = columns;
  classes.clear();
  pool.list_extents(bytes, extents);
  add_up(engine, extents, sums, classes);

  const Heuristic& h = engine.heuristic();
  const bool plain = h.cost_exp == 1 && h.staleness_exp == 1;
  const auto epsilon = static_cast<double>(h.epsilon);
  Shared shared(classes);
  // The best so far, its score as a quotient: a division for each block would be a third of all.
  double number = std::numeric_limits<double>::infinity(), divisor = 1, least_cost = 0;
  std::size_t begin = 0, end = 0;
  std::size_t left = 0;  // Blocks [left, right) are the run.
  for (std::size_t right = 1; right < sums.size(); ++right) {
    const Sums& to = sums[right];
    shared.add(sums[right - 1], to);
    if (to.bytes == 0) {
      if (left < right) shared.take(sums[left], to);
      left = right;
      continue;
    }
    if (to.bytes - sums[left].bytes < bytes || to.evicted - sums[left].evicted < lacking) continue;
    while (to.bytes - sums[left + 1].bytes >= bytes &&
           to.evicted - sums[left + 1].evicted >= lacking) {
      shared.take(sums[left], sums[left + 1]);
      ++left;
    }
    const Sums& from = sums[left];
    const auto evicted = static_cast<double>(to.evicted - from.evicted);
    const double cost = std::max(to.cost - from.cost, 0.0) + shared.cost();
    double over = cost + epsilon;
    double under = std::max(to.stale_bytes - from.stale_bytes, 0.0) + epsilon * evicted;
    if (plain) {
      over *= evicted;
    } else {
      over = raise(over, h.cost_exp);
      under = raise(under / evicted, h.staleness_exp);
    }
    if (over * divisor < number * under) {
      number = over;
      divisor = under;
      least_cost = cost;
      begin = left;
      end = right;
    }
  }
  shared.take(sums[left], sums.back());  // Gives every class its zero back.

  Window window{.values = {}, .cost = static_cast<Nanos>(least_cost)};
  for (std::size_t i = begin; i < end; ++i) {
    if (extents[i].owner) window.values.push_back(static_cast<Value*>(extents[i].owner));
  }
  return window;
}

}  // namespace dtr
