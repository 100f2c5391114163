// Predicts when a value is used next, as far as the program repeats itself.
//
// A tape records one step of a program. It has an entry for each access: each argument and each
// result of each operator, in order. The entry says when the same value was accessed next. In a
// step that repeats an earlier step, the entry at the same place predicts the value's next use. Two
// hashes stand for what a step did so far: one of the order of accesses (for each, how many
// accesses ago its value was accessed before), one of the values' sizes. When the hashes differ
// from the followed tape's, we follow another tape that had both hashes at this operator. If there
// is none, we follow a tape that had the same order hash, because a batch of another length is used
// in the same order. If no tape has that hash, nothing is predicted until the step ends. A wrong
// tape costs time, but never changes a result.
//
// All times are on the tape's clock: the sum of the costs of a step's operators so far. The present
// time is when the present operator began on the followed tape, however slow this step.
//
// A value that was made in an earlier step, such as an optimizer's state, has no entry in this step
// before its first use. So for each value's last access in a step, the tape also stores when the
// next step first accessed the value. Only engine/ahead.cpp needs this, to bring values back from
// the swap before they are used.
//
// Recomputations are not on a tape, because they depend on what was evicted. Cost: 16 bytes and
// some nanoseconds for each operator and for each access, and 8 bytes more while the step runs.
// Source: Belady's rule (1966): evict what is used last. We use it in DTR's score. Capuchin (Peng
// et al., ASPLOS 2020) also measures a step's accesses, and plans by them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class Tapes {
 public:
  // The next use of a value that the tape never uses again. Longer than any step of a log.
  static constexpr Nanos kNever{Nanos::rep{1} << 61};

  // For each operator that may access values, call begin_operator(), accessed() for its arguments
  // and then its results, and end_operator(). An operator that accesses none is not on the tape:
  // for it, end_operator() alone would do.
  void begin_operator();
  void accessed(Value& value);
  // Both return whether a prediction may have changed.
  [[nodiscard]] bool end_operator(Nanos cost);
  [[nodiscard]] bool end_step();
  void forget(const Value& value) {  // Call before the value is freed.
    if (value.step == step_) accessed_[value.access] = nullptr;
  }
  void advance(Nanos time) { written_.length += time; }  // Adds time between two operators.

  // The values accessed in this step, in the order of their last accesses; null for other accesses.
  const std::vector<Value*>& accessed() const { return accessed_; }

  bool foretell() const { return followed_ != nullptr; }
  // These return times on the followed tape; call them only if foretell(), and begin_of() only
  // between operators. next_use() of a value without an access in this step is the end of the step.
  Nanos now() const;
  Nanos begin_of(std::size_t operators) const;  // When an operator begins; 0: the next one.
  Nanos next_use(const Value& value) const;
  // Returns the first use in this step of a value last accessed in the previous step; or kNever.
  Nanos first_use(const Value& value) const;
  Nanos length() const { return followed_ ? followed_->length : 0ns; }

 private:
  struct Hash {
    std::uint32_t order, bytes;
    bool operator==(const Hash&) const = default;
  };
  struct Tape {
    std::vector<Hash> hashes;         // At each operator's end, of the step so far.
    std::vector<Nanos> begins;        // When each operator began.
    std::vector<Nanos> next;          // For each access: the next use of its value.
    std::vector<Nanos> in_next_step;  // For a value's last access: its first use in the next step.
    Nanos length = 0ns;
    // The tape expected to follow this one, and the tape that followed it last time. `successor`
    // changes only when another tape follows twice in a row, not after one step with a validation.
    const Tape *successor = nullptr, *latest = nullptr;
  };
  static constexpr std::size_t kKept = 4;  // How many tapes are kept. Few programs need more.
  // The most operators on a tape. A longer step, as in a program that never ends a step, gets none.
  static constexpr std::size_t kLongest = std::size_t{1} << 20;

  bool agrees(const Tape& tape) const;
  const Tape* find_alike() const;
  Hash hash() const;
  bool from_step_before(const Value& value) const;
  void keep();

  std::list<Tape> kept_;  // Latest first: the previous step's tape, if it was kept.
  Tape written_;          // The tape of the present step.
  std::vector<Value*> accessed_;
  Tape* before_ = nullptr;  // kept_.front() if it is the previous step's, else null.
  const Tape* followed_ = nullptr;
  std::size_t accesses_before_ = 0;  // The step's accesses before the present operator.
  bool other_bytes_ = false;         // No tape has this step's hash of bytes.
  bool lost_ = false;                // No tape has this step's hash of the order.
  std::uint64_t order_ = 0, bytes_ = 0;
  std::uint32_t step_ = 1;  // A value never accessed has step 0.
};

}  // namespace dtr
