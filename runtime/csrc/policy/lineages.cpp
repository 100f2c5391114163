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
  classes_.forget(value);
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
        classes_.forget(reader);
      } else if (std::exchange(reader.counted, false)) {
        met_.push_back(&reader);
      }
    });
  }
}

// Whether the value rests on at most kMost missing ones; then `sum` is what they cost.
bool Lineages::walk(const Value& value, Nanos& sum) {
  ++stamp_;
  met_.clear();
  bool few = true;
  const auto look = [&](Value& input) {
    ++accesses_;
    if (input.resident() || input.mark == stamp_) return;
    input.mark = stamp_;
    input.counted = true;
    sum += input.cost;
    met_.push_back(&input);
    few = met_.size() <= kMost;
  };
  for_each_input(const_cast<Value&>(value), look);
  for (std::size_t next = 0; next < met_.size() && few; ++next) for_each_input(*met_[next], look);
  return few;
}

Nanos Lineages::cost(std::size_t row) {
  NearClasses& near = columns_.near(row);
  if (near.lineage == NearClasses::Lineage::kUnknown) {
    Nanos sum = 0ns;
    const bool few = walk(*columns_.value(row), sum);
    near.lineage = few ? NearClasses::Lineage::kFew : NearClasses::Lineage::kMany;
    near.sum = sum;
  }
  if (near.lineage == NearClasses::Lineage::kMany) return classes_.cost(row);
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
  const NearClasses& near = columns_.near(value.candidate);
  if (near.lineage == NearClasses::Lineage::kUnknown) return;
  Nanos sum = 0ns;
  const bool few = walk(value, sum);
  if (few != (near.lineage == NearClasses::Lineage::kFew) || (few && sum != near.sum)) {
    throw std::logic_error("engine: a row's lineage is what a walk finds");
  }
}

}  // namespace dtr
