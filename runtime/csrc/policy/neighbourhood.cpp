#include "runtime/csrc/policy/neighbourhood.h"

#include <stdexcept>

namespace dtr {

void Neighbourhood::follow(NeighbourhoodKind kind, const std::unordered_set<Value*>& values) {
  if (kind == kind_) return;
  for (Value* value : values) discard(*value);
  kind_ = kind;
  foretold(foretold_);
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    columns_.near(row) = {};
    columns_.set_neighbourhood(row, 0ns);
    if (exact()) regions_.returned(*columns_.value(row));
  }
  refresh();
  for (Value* value : values) {
    if (!exact() && !value->resident()) lost(*value, Loss::kEvicted);
  }
}

void Neighbourhood::foretold(bool is) {
  foretold_ = is;
  classes_.count_readers(!is && !lineage());
}

void Neighbourhood::expected(Value& value) {
  if (by_classes()) classes_.expected(value);
}

void Neighbourhood::lost(Value& value, Loss loss) {
  if (by_classes()) classes_.lost(value);
  if (lineage()) lineages_.lost(value);
  if (kind_ == NeighbourhoodKind::kMegEngine && loss == Loss::kEvicted) sets_.evicted(value);
  if (exact()) regions_.lost(value);
}

void Neighbourhood::returned(Value& value) {
  if (by_classes()) classes_.returned(value);
  if (lineage()) lineages_.returned(value);
  if (kind_ == NeighbourhoodKind::kMegEngine) sets_.returned(value);
  if (exact()) regions_.returned(value);
}

void Neighbourhood::cut(Value& value) {
  if (kind_ == NeighbourhoodKind::kMegEngine) {
    sets_.cut(value);
  } else if (value.evicted_class) {
    classes_.returned(value);
  }
  if (exact()) regions_.cut(value);
}

void Neighbourhood::linked(Value& one, Value& other) {
  if (lineage()) return lineages_.linked(one);
  if (kind_ != NeighbourhoodKind::kEvictedClass) return;
  classes_.forget(one);
  classes_.forget(other);
}

void Neighbourhood::discard(Value& value) {
  if (kind_ == NeighbourhoodKind::kMegEngine) {
    sets_.cut(value);
  } else if (value.evicted_class) {
    classes_.returned(value);
  }
  delete value.region;
  value.region = nullptr;
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
      return lineages_.cost(row);
    case NeighbourhoodKind::kFull:
      return Regions::ancestors(value) + (foretold_ ? 0ns : Regions::descendants(value));
    case NeighbourhoodKind::kAncestors:
      return Regions::ancestors(value);
    case NeighbourhoodKind::kMegEngine:
      return sets_.cost(value) - value.cost;  // The value's own operator is not in their score.
  }
  throw std::logic_error("no such neighbourhood");
}

void Neighbourhood::fill() {
  if (kind_ == NeighbourhoodKind::kEvictedClass) return classes_.fill();
  if (lineage()) return lineages_.fill();
  if (kind_ == NeighbourhoodKind::kNone) return;
  ColumnsView columns = columns_.view();
  for (std::size_t row = 0; row < columns.count; ++row) {
    if (columns.evictable[row]) columns_.set_neighbourhood(row, cost(row));
  }
}

void Neighbourhood::check(const Value& value) {
  if (by_classes()) {
    if (value.resident() != (value.evicted_class == nullptr)) {
      throw std::logic_error("engine: exactly the missing values are in an evicted class");
    }
    NearClasses walked;
    if (!lineage() && value.candidate != kNowhere &&
        classes_.cost(value.candidate) != classes_.walk(value, walked)) {
      throw std::logic_error("engine: a row's classes are those that a walk finds");
    }
  }
  if (lineage()) lineages_.check(value);
  if (exact()) regions_.check(value);
}

}  // namespace dtr
