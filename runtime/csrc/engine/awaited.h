// Lists the missing values that a copy brings back from the swap (Value::movable), each with the
// time when it is needed. The list is not sorted: times change more often than we search it, and
// most searches end at once, because nothing is needed soon.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class Awaited {
 public:
  struct Entry {
    Nanos need;
    Value* value;
  };

  // Does nothing if the list cannot grow: the value then comes back when used.
  void add(Value& value, Nanos need);
  void remove(Value& value);  // Does nothing if `value` is not listed.
  void set(Value& value, Nanos need);
  template <class Need>
  void set_all(const Need& need) {
    soonest_ = Nanos::max();
    for (const Entry& entry : entries_) set(*entry.value, need(*entry.value));
  }

  bool has(const Value& value) const { return value.need.awaited != kNowhere; }
  // Returns entries needed from `from` to `until`, in order. Sets earlier needs to `never`.
  std::vector<Entry> needed(Nanos from, Nanos until, Nanos never);
  const std::vector<Entry>& entries() const { return entries_; }
  void check() const;  // Throws std::logic_error if inconsistent.

 private:
  std::vector<Entry> entries_;
  Nanos soonest_ = Nanos::max();  // A lower bound of all needs.
};

}  // namespace dtr
