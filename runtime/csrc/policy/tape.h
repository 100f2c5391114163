// When a value is needed again, as far as the program repeats itself.
//
// A tape is what one step of a program did. It has an entry for each access: each argument and each
// result of each operator, in order. The entry says when the same value was accessed next. In a
// step that does what an earlier one did, the entry at the same place foretells the next use of the
// value at hand. The step is known by two hashes: one of the order of accesses (how many accesses
// ago each value was last met), and one of the bytes of each. At the first operator whose hashes
// differ, another tape that began alike is followed. Where no tape has the bytes, one of the same
// order is followed: a batch of another length is used in the order of those before. Where there is
// none, nothing is foretold until the step is over. So a wrong tape costs time, and never a result.
//
// All times are the tape's own: the costs of what ran before, from the begin of the step. A
// step that takes longer than the tape's does not come late, because both are at the same operator.
//
// What a step leaves to the next one, such as the state of an optimizer, has no entry in that one
// yet. So for the last access of each value the tape remembers when the next step came to the
// value. Only who brings values back ahead of their use asks for it (engine/ahead.cpp).
//
// Recomputations are not on a tape: they depend on what was evicted. Cost: 16 bytes an operator and
// 16 an access; some nanoseconds each. Source: Belady's rule (1966) in the score of DTR; Capuchin
// (Peng et al., ASPLOS 2020) measures accesses of a step likewise, and plans by them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "runtime/csrc/graph/graph.h"

namespace dtr {

class Tapes {
 public:
  // Of what the tape has no further use for. Longer than any step.
  static constexpr Nanos kNever{Nanos::rep{1} << 44};

  // Each operator of the program that accesses values, in order; accessed() for its arguments, then
  // for its results. An operator that accesses none has only an end.
  void begin_operator();
  void accessed(Value& value);
  // These two return whether what is foretold has changed, of any value.
  [[nodiscard]] bool end_operator(Nanos cost);
  [[nodiscard]] bool end_step();
  void outlives(const Value& value);                     // The step that is about to end.
  void advance(Nanos time) { written_.length += time; }  // Between two operators.

  bool foretell() const { return followed_ != nullptr; }
  // Of the tape that is followed: the time now, and that of a value's next use. A value of which
  // the tape knows nothing is taken to be needed behind the end of the step.
  Nanos now() const;
  Nanos begin_of(std::size_t operators) const;  // Between two: of the one so many after the next.
  Nanos next_use(const Value& value) const;
  // Of a value that the step before accessed and this one has not, as far as is known; else kNever.
  Nanos first_use(const Value& value) const;
  Nanos length() const { return followed_ ? followed_->length : 0ns; }

 private:
  struct Hash {
    std::uint32_t order, bytes;
    bool operator==(const Hash&) const = default;
  };
  struct Tape {
    std::vector<Hash> hashes;         // Of the step up to the end of each operator.
    std::vector<Nanos> begins;        // Of each operator.
    std::vector<Nanos> next;          // Of each access.
    std::vector<Nanos> in_next_step;  // Of a value's last access: its first one in that step.
    Nanos length = 0ns;
    // What the step after it is taken to be like, and was like the last time. The first successor
    // stays until another comes twice in a row: a step with a validation is only seldom the next.
    const Tape *successor = nullptr, *latest = nullptr;
  };
  // Few kinds of steps: a generator's and a critic's, some lengths of sequences.
  static constexpr std::size_t kKept = 4;
  // Operators. A program that ends no step has no tape.
  static constexpr std::size_t kLongest = std::size_t{1} << 20;

  bool agrees(const Tape& tape) const;
  const Tape* find_alike() const;
  Hash hash() const;
  bool from_step_before(const Value& value) const;
  void keep();

  std::list<Tape> kept_;    // The step before is the first.
  Tape written_;            // Of the step that is under way.
  Tape* before_ = nullptr;  // Of the step before, the first of the kept ones; null: it is not kept.
  const Tape* followed_ = nullptr;
  bool other_bytes_ = false;  // No tape has the step's bytes any more,
  bool lost_ = false;         // nor its order.
  std::uint64_t order_ = 0, bytes_ = 0;
  std::uint32_t step_ = 1;  // A value that was never accessed has 0.
};

}  // namespace dtr
