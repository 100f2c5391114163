// Predicts when a value is used next, as far as the program repeats itself.
//
// A tape records one step of a program. It has an entry for each access: each argument and each
// result of each operator, in order. The entry says when the same value was accessed next. In a
// step that repeats an earlier step, the entry at the same place predicts the value's next use. Two
// hashes identify a step: of the order of accesses (how many accesses ago each value was last
// accessed), and of the values' bytes. At the first operator whose hashes differ, we follow another
// tape that began like this step, or if no tape has the same bytes, a tape with the same order: a
// batch of another length is used in the same order. If no tape has the order, nothing is predicted
// until the step is over. A wrong tape costs time, and never changes a result.
//
// All times are on the tape's clock: the costs of the operators since the step began. A step slower
// than its tape is not late, because the clock goes by operators.
//
// A value that a step leaves to the next one, such as an optimizer's state, has no entry in the
// next step yet. So for each value's last access, the tape also stores when the next step first
// accessed the value. Only engine/ahead.cpp, which brings values back ahead of use, needs this.
//
// Recomputations are not on a tape: they depend on what was evicted. Cost: 16 bytes an operator and
// 16 an access; some nanoseconds each. Source: Belady's rule (1966) in DTR's score. Capuchin (Peng
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
  // The next use of a value that the tape never uses again. Longer than any step.
  static constexpr Nanos kNever{Nanos::rep{1} << 44};

  // For each operator that accesses values, call begin_operator(), accessed() for its arguments and
  // then its results, and end_operator(). For other operators, call only end_operator().
  void begin_operator();
  void accessed(Value& value);
  // These two return whether any prediction may have changed.
  [[nodiscard]] bool end_operator(Nanos cost);
  [[nodiscard]] bool end_step();
  void outlives(const Value& value);  // The value outlives the step that now ends.
  void advance(Nanos time) { written_.length += time; }  // Adds time between two operators.

  bool foretell() const { return followed_ != nullptr; }
  // Times on the followed tape. Call begin_of() only between operators. next_use() is the end of
  // the step if the tape does not know the value.
  Nanos now() const;
  Nanos begin_of(std::size_t operators) const;  // `operators` after the next operator.
  Nanos next_use(const Value& value) const;
  // First use of a value that the previous step accessed, but not yet this step; kNever: unknown.
  Nanos first_use(const Value& value) const;
  Nanos length() const { return followed_ ? followed_->length : 0ns; }

 private:
  struct Hash {
    std::uint32_t order, bytes;
    bool operator==(const Hash&) const = default;
  };
  struct Tape {
    std::vector<Hash> hashes;         // Of the step, up to the end of each operator.
    std::vector<Nanos> begins;        // Of each operator.
    std::vector<Nanos> next;          // By access: the next use of its value.
    std::vector<Nanos> in_next_step;  // By a value's last access: its first use in the next step.
    Nanos length = 0ns;
    // The tapes of the step expected next, and of the step that last came next. The successor
    // changes only when another tape comes twice in a row: a step with a validation comes seldom.
    const Tape *successor = nullptr, *latest = nullptr;
  };
  // Programs have few kinds of steps: a generator's and a critic's, or some lengths of sequences.
  static constexpr std::size_t kKept = 4;
  // In operators. A longer step, as in a program that never ends a step, gets no tape.
  static constexpr std::size_t kLongest = std::size_t{1} << 20;

  bool agrees(const Tape& tape) const;
  const Tape* find_alike() const;
  Hash hash() const;
  bool from_step_before(const Value& value) const;
  void keep();

  std::list<Tape> kept_;    // The previous step's tape comes first.
  Tape written_;            // Of the step that is under way.
  Tape* before_ = nullptr;  // The previous step's, kept_.front(); null: not kept.
  const Tape* followed_ = nullptr;
  bool other_bytes_ = false;  // No tape has the step's bytes any more,
  bool lost_ = false;         // nor its order.
  std::uint64_t order_ = 0, bytes_ = 0;
  std::uint32_t step_ = 1;  // A value never accessed has step 0.
};

}  // namespace dtr
