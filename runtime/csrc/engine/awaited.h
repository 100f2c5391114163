// Lists the missing values that a copy from the swap can bring back (Value::movable), each with the
// time when it is needed. The list is not sorted by time, because the times change more often than
// we search the list. Most searches end after one look at `soonest_`, a time still far off.

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

  // Does nothing if there is no memory for the list: the value then stays in the swap until used.
  void add(Value& value, Nanos need);
  void remove(Value& value);  // Does nothing if `value` is not listed.
  void set(Value& value, Nanos need);
  template <class Need>
  void set_all(const Need& need) {
    soonest_ = Nanos::max();
    for (const Entry& entry : entries_) set(*entry.value, need(*entry.value));
  }

  bool has(const Value& value) const { return value.need.awaited != kNowhere; }
  // Returns the entries with needs from `from` to `until`, sorted by need. Changes needs before
  // `from`, which have passed, to `never`.
  std::vector<Entry> needed(Nanos from, Nanos until, Nanos never);
  const std::vector<Entry>& entries() const { return entries_; }
  void check() const;  // Throws std::logic_error if inconsistent.

 private:
  std::vector<Entry> entries_;
  Nanos soonest_ = Nanos::max();  // No listed need is earlier.
};

}  // namespace dtr
