#include "runtime/csrc/neighbourhood.h"

#include <stdexcept>

namespace dtr {

void Neighbourhood::expected(Value& value) {
  if (kind_ == NeighbourhoodKind::kEvictedClass) classes_.expected(value);
}

void Neighbourhood::lost(Value& value) {
  if (kind_ == NeighbourhoodKind::kEvictedClass) classes_.lost(value);
  if (exact()) regions_.lost(value);
}

void Neighbourhood::returned(Value& value) {
  if (kind_ == NeighbourhoodKind::kEvictedClass) classes_.returned(value);
  if (exact()) regions_.returned(value);
}

void Neighbourhood::cut(Value& value) {
  if (value.evicted_class) classes_.returned(value);
  if (exact()) regions_.cut(value);
}

void Neighbourhood::discard(Value& value) {
  if (value.evicted_class) classes_.returned(value);
  delete value.region;
  value.region = nullptr;
}

Nanos Neighbourhood::cost(const Value& value) {
  switch (kind_) {
    case NeighbourhoodKind::kNone:
      return 0;
    case NeighbourhoodKind::kEvictedClass:
      return classes_.cost(value);
    case NeighbourhoodKind::kFull:
      return Regions::ancestors(value) + Regions::descendants(value);
    case NeighbourhoodKind::kAncestors:
      return Regions::ancestors(value);
  }
  throw std::logic_error("no such neighbourhood");
}

void Neighbourhood::check(const Value& value) const {
  if (kind_ == NeighbourhoodKind::kEvictedClass &&
      value.resident() != (value.evicted_class == nullptr)) {
    throw std::logic_error("engine: exactly the missing values are in an evicted class");
  }
  if (exact()) regions_.check(value);
}

}  // namespace dtr
