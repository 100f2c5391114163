#include "runtime/csrc/policy/regions.h"

#include <algorithm>
#include <unordered_set>

#include "dtr_alloc/pool/csrc/insist.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {
namespace {

void remove(std::vector<Value*>& values, const Value& value) {
  auto found = std::find(values.begin(), values.end(), &value);
  if (found == values.end()) return;
  *found = values.back();
  values.pop_back();
}

}  // namespace

template <typename Visit>
void Regions::for_each_neighbour(Direction direction, Value& value, Visit visit) {
  if (direction == &Region::forward) {
    for_each_reader(value, visit);
  } else {
    for_each_input(value, visit);
  }
}

// `is_new` tells whether a neighbour was not met before.
template <typename IsNew>
void Regions::walk(Direction direction, Value& value, Region::Side& side, IsNew is_new) {
  side.interior.clear();
  side.rim.clear();
  side.cost = 0ns;
  std::size_t next = 0;
  for (Value* at = &value; at; at = next < side.interior.size() ? side.interior[next++] : nullptr) {
    for_each_neighbour(direction, *at, [&](Value& neighbour) {
      if (!is_new(neighbour)) return;
      if (!neighbour.resident()) {
        side.interior.push_back(&neighbour);
        side.cost += neighbour.cost;
      } else if (!neighbour.constant()) {
        side.rim.push_back(&neighbour);
      }
    });
  }
}

void Regions::collect_missing(Direction direction, Value& value, Region::Side& side) {
  value.mark = ++stamp_;
  walk(direction, value, side, [&](Value& neighbour) {
    ++accesses_;
    return std::exchange(neighbour.mark, stamp_) != stamp_;
  });
}

void Regions::rebuild(Direction direction, Value& value) {
  if (!value.region) value.region = new Region();
  collect_missing(direction, value, value.region->*direction);
}

// Calls `add` for each value of `from` that is not in `into`.
template <typename Add>
void Regions::for_each_new(const std::vector<Value*>& into, const std::vector<Value*>& from,
                           Add add) {
  constexpr std::size_t kFew = 8;  // Up to here a search costs less than marks.
  std::size_t known = into.size();
  if (from.size() <= kFew) {
    for (Value* value : from) {
      if (std::find(into.begin(), into.begin() + known, value) == into.begin() + known) add(value);
    }
    return;
  }
  ++stamp_;
  for (Value* value : into) value->mark = stamp_;
  for (Value* value : from) {
    if (value->mark != stamp_) add(value);
  }
}

void Regions::absorb(Direction direction, Value& absorber, Value& lost) {
  if (!absorber.region) return;
  Region::Side& into = absorber.region->*direction;
  const Region::Side& from = lost.region->*direction;
  remove(into.rim, lost);
  for_each_new(into.rim, from.rim, [&](Value* value) {
    if (value != &absorber) into.rim.push_back(value);
  });
  const auto add = [&](Value* value) {
    ++accesses_;
    into.interior.push_back(value);
    into.cost += value->cost;
  };
  for_each_new(into.interior, from.interior, add);
  add(&lost);
}

void Regions::lost(Value& value) {
  if (!value.region) return;
  for (Value* ancestor : value.region->backward.rim) absorb(&Region::forward, *ancestor, value);
  for (Value* descendant : value.region->forward.rim) absorb(&Region::backward, *descendant, value);
  forget(value);
}

void Regions::refresh() {
  if (back_.empty()) return;
  std::vector<Value*> ancestors, descendants;
  for (Value* value : back_) {
    rebuild(&Region::forward, *value);
    rebuild(&Region::backward, *value);
    const Region& region = *value->region;
    ancestors.insert(ancestors.end(), region.backward.rim.begin(), region.backward.rim.end());
    descendants.insert(descendants.end(), region.forward.rim.begin(), region.forward.rim.end());
  }
  back_.clear();
  const auto rebuild_each = [&](Direction direction, std::vector<Value*>& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    for (Value* value : values) rebuild(direction, *value);
  };
  rebuild_each(&Region::forward, ancestors);
  rebuild_each(&Region::backward, descendants);
}

// Every region that has `value` must forget it.
void Regions::cut(Value& value) {
  if (!value.resident()) cut_missing(value);
  if (!value.region) return;
  for (Value* ancestor : value.region->backward.rim) remove(ancestor->region->forward.rim, value);
  for (Value* heir : value.region->forward.rim) remove(heir->region->backward.rim, value);
  forget(value);
}

// A missing value that is removed has no readers, so only its ancestors' regions hold it.
void Regions::cut_missing(Value& value) {
  Region::Side backward;
  collect_missing(&Region::backward, value, backward);
  for (Value* ancestor : backward.rim) {
    if (!ancestor->region) continue;
    Region::Side& side = ancestor->region->forward;
    auto found = std::find(side.interior.begin(), side.interior.end(), &value);
    if (found == side.interior.end()) continue;
    side.interior.erase(found);
    side.cost -= value.cost;
  }
}

void Regions::check(const Value& value) const {
  if (!value.resident() || value.constant()) return;
  for (Direction direction : {&Region::forward, &Region::backward}) {
    Region::Side walked;  // Without marks on visited values.
    std::unordered_set<const Value*> seen{&value};
    walk(direction, const_cast<Value&>(value), walked,
         [&](const Value& neighbour) { return seen.insert(&neighbour).second; });
    const Region::Side& side = value.region->*direction;
    const auto same = [](std::vector<Value*> a, std::vector<Value*> b) {
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      return a == b;
    };
    insist(same(side.interior, walked.interior) && same(side.rim, walked.rim) &&
               side.cost == walked.cost,
           "engine: a region is what a walk from nothing finds");
  }
}

}  // namespace dtr
