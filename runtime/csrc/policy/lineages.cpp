#include "runtime/csrc/policy/lineages.h"

#include <stdexcept>
#include <unordered_set>
#include <utility>
#include <vector>

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

// What reads the value, directly or through values that were counted.
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
  were_long_ |= more;
  return more ? kBeyond * sum : sum;
}

Nanos Lineages::cost(std::size_t row) {
  Near& near = columns_.near(row);
  if (!near.summed) {
    near.sum = walk(*columns_.value(row));
    near.summed = true;
  }
  columns_.set_neighbourhood(row, near.sum);
  return near.sum;
}

void Lineages::fill() {
  const ColumnsView columns = columns_.view();
  for (std::size_t row = 0; row < columns.count; ++row) {
    const Near& near = columns_.near(row);
    if (near.summed && near.sum == 0ns)
      continue;  // Nothing is missing there, and the column says so.
    if (columns.evictable[row]) cost(row);
  }
}

// Changes no mark, which would mend what it looks for.
void Lineages::check(Value& value) const {
  if (value.resident() && value.counted) {
    throw std::logic_error("engine: only what is missing is counted in lineages");
  }
  if (value.candidate == kNowhere || !columns_.near(value.candidate).summed) return;
  std::unordered_set<const Value*> missing;
  std::vector<Value*> nearest{&value};
  Nanos sum = 0ns;
  bool more = false;
  for (std::size_t next = 0; next < nearest.size() && !more; ++next) {
    for_each_input(*nearest[next], [&](Value& input) {
      if (more || input.resident() || missing.contains(&input)) return;
      if (!input.counted) throw std::logic_error("engine: what a row's lineage holds is counted");
      more = missing.size() == most_;
      if (more) return;
      missing.insert(&input);
      sum += input.cost;
      nearest.push_back(&input);
    });
  }
  if (columns_.near(value.candidate).sum != (more ? kBeyond * sum : sum)) {
    throw std::logic_error("engine: a row's lineage is what a walk finds");
  }
}

}  // namespace dtr
