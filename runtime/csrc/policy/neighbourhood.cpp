#include "runtime/csrc/policy/neighbourhood.h"

#include <stdexcept>
#include <unordered_map>

#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {

void Neighbourhood::foretold(bool is) {
  foretold_ = is;
  if (by_classes()) classes_.count_readers(!is);
}

void Neighbourhood::lost(Value& value, Loss loss) {
  if (by_classes()) classes_.lost(value);
  if (by_lineages()) lineages_.lost(value);
  if (kind_ == NeighbourhoodKind::kMegEngine && loss == Loss::kEvicted) sets_.evicted(value);
  if (by_regions()) regions_.lost(value);
}

void Neighbourhood::returned(Value& value) {
  if (by_classes()) classes_.returned(value);
  if (by_lineages()) lineages_.returned(value);
  if (kind_ == NeighbourhoodKind::kMegEngine) sets_.returned(value);
  if (by_regions()) regions_.returned(value);
}

void Neighbourhood::cut(Value& value) {
  leave_class(value);
  if (by_regions()) regions_.cut(value);
}

void Neighbourhood::leave_class(Value& value) {
  if (kind_ == NeighbourhoodKind::kMegEngine) {
    sets_.cut(value);
  } else if (value.evicted_class) {
    classes_.returned(value);
  }
}

void Neighbourhood::linked(Value& one, Value& other) {
  if (by_lineages()) return lineages_.linked(one);
  if (!by_classes()) return;
  columns_.forget_near(one);
  columns_.forget_near(other);
}

void Neighbourhood::discard(Value& value) {
  leave_class(value);
  Regions::forget(value);
  value.counted = false;
}

Nanos Neighbourhood::cost(std::size_t row) {
  const Value& value = *columns_.value(row);
  switch (kind_) {
    case NeighbourhoodKind::kNone:
      return 0ns;
    case NeighbourhoodKind::kEvictedClass:
      return classes_.cost(row);
    case NeighbourhoodKind::kLineage:
    case NeighbourhoodKind::kAncestors:
      return lineages_.cost(row);
    case NeighbourhoodKind::kFull:
      return Regions::ancestors(value) + (foretold_ ? 0ns : Regions::descendants(value));
    case NeighbourhoodKind::kMegEngine:
      return sets_.cost(value) - value.cost;  // The value's own operator is not in their score.
  }
  throw std::logic_error("no such neighbourhood");
}

void Neighbourhood::fill() {
  if (by_lineages()) return lineages_.fill();
  if (by_classes()) return classes_.fill();
  if (kind_ == NeighbourhoodKind::kNone) return;
  ColumnsView columns = columns_.view();
  for (std::size_t row = 0; row < columns.count; ++row) {
    if (columns.evictable[row]) columns_.set_neighbourhood(row, cost(row));
  }
}

void Neighbourhood::check(Value& value) {
  insist(!by_classes() || value.resident() == (value.evicted_class == nullptr),
         "engine: exactly the missing values are in an evicted class");
  if (by_classes() && value.candidate != kNowhere) {
    Near walked;
    insist(classes_.cost(value.candidate) == classes_.walk(value, walked),
           "engine: a row's classes are those that a walk finds");
  }
  if (by_lineages()) lineages_.check(value);
  if (by_regions()) regions_.check(value);
}

void Neighbourhood::check_classes(const std::unordered_set<Value*>& values) const {
  std::unordered_map<const EvictedClass*, std::int64_t> references;
  for (const Value* value : values) {
    const EvictedClass* node = value->evicted_class;
    while (node && references[node]++ == 0) node = node->parent;
  }
  for (const auto& [node, count] : references) {
    insist(node->references == count,
           "engine: a class is counted by its value and the classes under it");
  }
  insist(static_cast<std::int64_t>(references.size()) == classes(),
         "engine: no class is left without a value");
}

}  // namespace dtr
