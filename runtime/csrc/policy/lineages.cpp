#include "runtime/csrc/policy/lineages.h"

#include <stdexcept>
#include <utility>

#include "runtime/csrc/graph/neighbours.h"

namespace dtr {

void Lineages::lost(Value& value) {
  value.counted = false;
  forget_ahead(value);
}

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

// Leaves in `met_` what is missing.
Nanos Lineages::walk(const Value& value) {
  ++stamp_;
  met_.clear();
  Nanos sum = 0ns;
  const auto look = [&](Value& input) {
    ++accesses_;
    if (input.resident() || input.mark == stamp_) return;
    input.mark = stamp_;
    input.counted = true;
    sum += input.cost;
    met_.push_back(&input);
  };
  for_each_input(const_cast<Value&>(value), look);
  for (std::size_t next = 0; next < met_.size(); ++next) for_each_input(*met_[next], look);
  return sum;
}

Nanos Lineages::cost(std::size_t row) {
  Near& near = columns_.near(row);
  if (!near.summed) {
    near.sum = walk(*columns_.value(row));
    near.summed = true;
    were_long_ |= met_.size() > kMany;
  }
  columns_.set_neighbourhood(row, near.sum);
  return near.sum;
}

void Lineages::fill() {
  const ColumnsView columns = columns_.view();
  for (std::size_t row = 0; row < columns.count; ++row) {
    if (columns.evictable[row]) cost(row);
  }
}

void Lineages::check(const Value& value) {
  if (value.candidate == kNowhere) return;
  const Near& near = columns_.near(value.candidate);
  if (near.summed && near.sum != walk(value)) {
    throw std::logic_error("engine: a row's lineage is what a walk finds");
  }
}

}  // namespace dtr
