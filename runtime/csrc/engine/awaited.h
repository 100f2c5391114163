// Lists the missing values that a copy brings back (Value::movable), each with the time when it is
// needed. Unsorted: times change more often than the list is searched, and most searches end at
// once because the soonest time is still far off.

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

  // Does nothing if the list cannot grow: the value then comes back when it is used.
  void add(Value& value, Nanos need);
  void remove(Value& value);  // Does nothing if it is not listed.
  void set(Value& value, Nanos need);
  template <class Need>
  void set_all(const Need& need) {
    soonest_ = Nanos::max();
    for (const Entry& entry : entries_) set(*entry.value, need(*entry.value));
  }

  bool has(const Value& value) const { return value.need.awaited != kNowhere; }
  // Entries with a need up to `until`, sorted by it. Sets needs before `from` to `never`.
  std::vector<Entry> needed(Nanos from, Nanos until, Nanos never);
  const std::vector<Entry>& entries() const { return entries_; }
  void check() const;  // Throws std::logic_error if inconsistent.

 private:
  std::vector<Entry> entries_;
  Nanos soonest_ = Nanos::max();  // A lower bound of all needs.
};

}  // namespace dtr
