// Missing values that a copy brings back (Value::movable), and when each is needed. In no order: a
// need changes more often than anybody asks, who mostly learns from one number that it is too
// early.

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

  // Nothing where there is no memory for it: the value then comes back when it is touched.
  void add(Value& value, Nanos need);
  void remove(Value& value);  // Nothing where it is not here.
  void set(Value& value, Nanos need);
  template <class Need>
  void set_all(const Need& need) {
    soonest_ = Nanos::max();
    for (const Entry& entry : entries_) set(*entry.value, need(*entry.value));
  }

  bool has(const Value& value) const { return value.need.awaited != kNowhere; }
  // What is needed in that time, by its needs; what should have been needed before it, never is.
  std::vector<Entry> needed(Nanos from, Nanos until, Nanos never);
  const std::vector<Entry>& entries() const { return entries_; }
  void check() const;  // Throws std::logic_error with a sentence.

 private:
  std::vector<Entry> entries_;
  Nanos soonest_ = Nanos::max();  // No need is before it.
};

}  // namespace dtr
