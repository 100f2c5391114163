#include "runtime/csrc/policy/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtr_alloc/pool/csrc/pool_walk.h"
#include "runtime/csrc/graph/owner.h"

namespace dtr {
namespace {

// Prefix sums over blocks in address order. They restart behind every block that is neither free
// nor evictable, so that the difference of two entries is the sum of a run.
struct Sums {
  Bytes bytes = 0;  // Free or evictable.
  double evicted = 0, cost = 0, stale_bytes = 0;
  std::int32_t row = kNowhere;  // Of the block's value; kNowhere where there is none.
};

bool simple(const Heuristic& h) {
  return h.cost_exp == 1 && h.staleness_exp == 1 && h.recompute_penalty == 1;
}

// Adds up a pool's extents in address order; sums[i] is of the first i. Its members stay in
// registers, so it calls no function if kSimple.
template <bool kSimple>
struct AddUp {
  const ColumnsView columns;
  const Nanos now;
  const double penalty;
  const bool shared;  // Neighbourhoods are counted later, once per run.
  Sums *last, *end;   // Blocks beyond the end are ignored.
  Bytes bytes = 0;
  double evicted = 0, cost = 0, stale_bytes = 0;

  [[gnu::always_inline]] void operator()(Bytes size, void* owner) {
    if (last + 1 == end) return;
    ++last;
    Value* value = as_value(owner);
    if (value ? !evictable(*value) : size == 0) {
      bytes = 0;
      evicted = cost = stale_bytes = 0;
      *last = {};
      return;
    }
    bytes += size;
    last->row = kNowhere;
    if (value) {
      const std::int32_t row = value->candidate;
      last->row = row;
      const auto real_size = static_cast<double>(size);
      auto own = static_cast<double>(columns.cost[row]);
      if (!shared) own += static_cast<double>(columns.neighbourhood[row]);
      if constexpr (!kSimple) own *= std::pow(penalty, columns.recomputes[row]);
      evicted += real_size;
      cost += own;
      stale_bytes += real_size * static_cast<double>(now.count() - columns.last_access[row]);
    }
    last->bytes = bytes;
    last->evicted = evicted;
    last->cost = cost;
    last->stale_bytes = stale_bytes;
  }
};

// The cost of a run's missing neighbours, each class once. Runs come in order, but not all of them,
// so most of a pool is never looked at. A class stores the last block at which it was met, which
// tells whether the class is in the run already, and whether its last member leaves.
class SharedCost {
 public:
  SharedCost(EvictedClasses* classes, const Sums* first, const Sums* last)
      : classes_(classes),
        first_(first),
        left_(first),
        right_(first),
        mark_(classes ? classes->new_marks(last - first + 1) : 0) {}

  // For the blocks beyond `left` up to `right`; neither may lie before that of the last call.
  [[gnu::noinline]] double of(const Sums* left, const Sums* right) {
    if (!classes_) return 0;
    if (left >= right_) {
      left_ = right_ = left;
      cost_ = 0ns;
    }
    while (left_ < left) take(*++left_);
    while (right_ < right) add(*++right_);
    return static_cast<double>(cost_.count());
  }

 private:
  std::int64_t mark(const Sums& block) const { return mark_ + (&block - first_); }
  void add(const Sums& block) {
    if (block.row == kNowhere) return;
    classes_->for_each(block.row, [&](EvictedClass& root) {
      if (root.met <= mark(*left_)) cost_ += root.cost;
      root.met = mark(block);
    });
  }
  void take(const Sums& block) {
    if (block.row == kNowhere) return;
    classes_->for_each(block.row, [&](EvictedClass& root) {
      if (root.met == mark(block)) cost_ -= root.cost;
    });
  }

  EvictedClasses* const classes_;  // Null if there are none.
  const Sums *const first_, *left_, *right_;
  const std::int64_t mark_;  // Of the first block.
  Nanos cost_ = 0ns;
};

// Adds up all of a pool; returns the last sum. `sums` grows to hold them.
template <bool kSimple>
const Sums* add_up(const WindowSearch& from, Bytes bytes, std::vector<Sums>& sums) {
  const Heuristic& h = from.heuristic;
  if (!from.neighbourhood.evicted_classes()) from.neighbourhood.fill();
  const bool shared = from.neighbourhood.evicted_classes() != nullptr;
  while (true) {
    if (!sums.empty()) {
      const Sums* last = from.pool
                             .each_extent(bytes, AddUp<kSimple>{.columns = from.columns.view(),
                                                                .now = from.clock + h.epsilon,
                                                                .penalty = h.recompute_penalty,
                                                                .shared = shared,
                                                                .last = sums.data(),
                                                                .end = sums.data() + sums.size()})
                             .last;
      if (last != &sums.back()) return last;
    }
    sums.resize(std::max<std::size_t>(1024, 2 * sums.size()));
  }
}

struct Run {
  const Sums *begin, *end;  // Of the blocks beyond begin up to end.
  double cost;
};

// Not inlined, since its few variables must stay in registers.
template <bool kSimple>
[[gnu::noinline]] Run cheapest_run(const Sums* const first, const Sums* const last,
                                   const Bytes bytes, const double lacking, const Heuristic& h,
                                   SharedCost& shared) {
  const auto epsilon = static_cast<double>(h.epsilon.count());
  double best = std::numeric_limits<double>::infinity();
  Run run{first, first, 0};
  const Sums* left = first;
  bool holds = false;  // Whether the blocks beyond left hold the request.
  for (const Sums* right = first + 1; right <= last; ++right) {
    if (right->bytes == 0) [[unlikely]] {
      left = right;
      holds = false;
      continue;
    }
    const Bytes most = right->bytes - bytes;
    const double most_evicted = right->evicted - lacking;
    const auto enough = [&](const Sums& from) {
      return from.bytes <= most && from.evicted <= most_evicted;
    };
    if (!holds && !enough(*left)) continue;
    holds = true;
    while (enough(left[1])) ++left;
    const double evicted = right->evicted - left->evicted;
    double cost = right->cost - left->cost + epsilon;  // Exact except for a penalty.
    if constexpr (!kSimple) cost = std::max(cost, epsilon);
    double under = right->stale_bytes - left->stale_bytes;
    if constexpr (!kSimple) under = raise(under / evicted, h.staleness_exp);
    double over = kSimple ? cost * evicted : raise(cost, h.cost_exp);
    if (over < best * under) [[unlikely]] {  // Without shared costs, which only add.
      cost += shared.of(left, right);
      over = kSimple ? cost * evicted : raise(cost, h.cost_exp);
      if (over >= best * under) continue;
      best = over / under;
      run = {left, right, cost - epsilon};
    }
  }
  return run;
}

template <bool kSimple>
Window search(const WindowSearch& from, Bytes bytes, std::vector<Sums>& sums) {
  const PoolStats stats = from.pool.stats();
  // Bytes that the budget lacks must come from evicted values, wherever holes are.
  const Bytes lacking = std::max(stats.live + bytes - stats.budget, Bytes{1});
  const Sums* last = add_up<kSimple>(from, bytes, sums);
  SharedCost shared(from.neighbourhood.evicted_classes(), sums.data(), last);
  Run run = cheapest_run<kSimple>(sums.data(), last, bytes, static_cast<double>(lacking),
                                  from.heuristic, shared);
  Window window{.values = {}, .cost = Nanos(static_cast<std::int64_t>(run.cost))};
  while (run.begin < run.end) {
    const std::int32_t row = (++run.begin)->row;
    if (row != kNowhere) window.values.push_back(from.columns.value(row));
  }
  return window;
}

}  // namespace

Window cheapest_window(const WindowSearch& from, Bytes bytes) {
  static thread_local std::vector<Sums> sums;  // To allocate them anew costs half a search.
  bytes = round_to_granule(std::max(bytes, Bytes{1}));
  return (simple(from.heuristic) ? search<true> : search<false>)(from, bytes, sums);
}

}  // namespace dtr
