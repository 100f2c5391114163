#include "runtime/csrc/policy/lineages.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/insist.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {

void Lineages::lost(Value& value) { forget_ahead(value); }

void Lineages::returned(Value& value) {
  if (std::exchange(value.counted, false)) forget_ahead(value);
}

void Lineages::linked(Value& value) {
  columns_.forget_near(value);
  returned(value);
}

// Drops the sums of rows that read the value, directly or through counted values.
void Lineages::forget_ahead(Value& value) {
  met_.assign(1, &value);
  while (!met_.empty()) {
    Value& at = *met_.back();
    met_.pop_back();
    for_each_reader(at, [&](Value& reader) {
      ++accesses_;
      if (reader.resident()) {
        columns_.forget_near(reader);
      } else if (std::exchange(reader.counted, false)) {
        met_.push_back(&reader);
      }
    });
  }
}

Nanos Lineages::walk(Value& value) {
  ++stamp_;
  met_.clear();
  Nanos sum = 0ns;
  bool more = false;
  const auto look = [&](Value& input) {
    ++accesses_;
    if (more || input.resident() || input.mark == stamp_) return;
    input.counted = true;
    more = met_.size() == most_;
    if (more) return;
    input.mark = stamp_;
    sum += input.cost;
    met_.push_back(&input);
  };
  for_each_input(value, look);
  for (std::size_t next = 0; next < met_.size() && !more; ++next) {
    for_each_input(*met_[next], look);
  }
  return together(sum, met_.size(), more);
}

Nanos Lineages::together(Nanos costs, std::size_t missing, bool more) const {
  if (most_ == kAll) return costs;
  const auto n = static_cast<std::int64_t>(missing);
  return (more ? kBeyond : 1) * (costs + n * n * kCrowding);
}

Nanos Lineages::cost(std::size_t row) {
  Nanos& sum = columns_.lineage(row);
  if (sum == kNotWalked) sum = walk(*columns_.value(row));
  columns_.set_neighbourhood(row, sum);
  return sum;
}

// The column is right for rows with a cached sum, unless a value's own cost limits it.
void Lineages::fill() {
  const ColumnsView columns = columns_.view();
  const bool limited = columns_.transfer().has_value();
  for (std::size_t row = 0; row < columns.count; ++row) {
    const Nanos known = columns_.lineage(row);
    if (known == 0ns || (known != kNotWalked && !limited)) continue;
    if (columns.evictable[row]) cost(row);
  }
}

// Sets no marks, because that would repair the faults that it looks for.
void Lineages::check(Value& value) const {
  insist(!value.resident() || !value.counted,
         "engine: only what is missing is counted in lineages");
  if (value.candidate == kNowhere) return;
  const Nanos known = columns_.lineage(value.candidate);
  if (known == kNotWalked) return;
  insist(columns_.transfer() || columns_.view().neighbourhood[value.candidate] == known.count(),
         "engine: a row's neighbourhood is its lineage's cost, once walked");
  std::unordered_set<const Value*> missing;
  std::vector<Value*> nearest{&value};
  Nanos sum = 0ns;
  bool more = false;
  for (std::size_t next = 0; next < nearest.size() && !more; ++next) {
    for_each_input(*nearest[next], [&](Value& input) {
      if (more || input.resident() || missing.contains(&input)) return;
      insist(input.counted, "engine: what a row's lineage holds is counted");
      more = missing.size() == most_;
      if (more) return;
      missing.insert(&input);
      sum += input.cost;
      nearest.push_back(&input);
    });
  }
  insist(known == together(sum, missing.size(), more),
         "engine: a row's lineage is what a walk finds");
}

}  // namespace dtr
