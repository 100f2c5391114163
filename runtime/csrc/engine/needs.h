// Predicts the time when each value is needed next. We call this time the value's need.
//
// A value's need is the earlier of two times: the program's next use of the value, predicted by a
// tape (the record of an earlier step, policy/tape.h), and the first need of a missing value made
// from it. Need::behind caches the latter, so that a use of the value needs no search. When a value
// loses its content or gets it back, or its need changes, we update its inputs; if the need of a
// missing input changes, we update that input's inputs, and so on. A stepping stone
// (stepping_stones.h) is also needed when its larger value is, even if that is resident. While no
// tape predicts, needs are not used. Constants have no need.
//
// A value not accessed in this step counts as needed at the step's end. So when a step begins, or
// we follow another tape, a new round begins: a need of an older round is taken as the step's end.
// The needs of the values accessed in this step are found when the next victim is chosen
// (catch_up). A program from which nothing is evicted does not pay for them.

#pragma once

#include <cstdint>
#include <vector>

#include "runtime/csrc/engine/awaited.h"
#include "runtime/csrc/engine/stepping_stones.h"
#include "runtime/csrc/policy/columns.h"
#include "runtime/csrc/policy/neighbourhood.h"
#include "runtime/csrc/policy/tape.h"

namespace dtr {

class Needs {
 public:
  // `on`: whether steps are recorded on tapes.
  Needs(bool on, ScoreColumns& candidates, Neighbourhood& neighbourhood,
        const SteppingStones& stones)
      : on_(on), columns_(candidates), neighbourhood_(neighbourhood), stones_(stones) {}

  // Call begin_operator() when an operator of the program or compiled code begins, accessed() for
  // each argument and result, end_operator() when it ends, end_step() when a step ends (tape.h).
  void begin_operator() {
    if (on_) tapes_.begin_operator();
  }
  void accessed(Value& value) {
    if (!on_) return;
    tapes_.accessed(value);
    if (follows()) update(value);
  }
  bool end_operator(Nanos cost);  // Returns whether a tape predicted the operator.
  void end_step() {
    if (on_ && tapes_.end_step()) another_tape();
  }
  void advance(Nanos time) {  // Adds time between operators.
    if (on_) tapes_.advance(time);
  }

  bool foretells() const { return tapes_.foretell(); }
  Nanos now() const { return tapes_.now(); }
  Nanos of(const Value& value) const;
  void show(const Value& value) {  // Copies the value's times to its row (columns.h).
    columns_.copy_times(value);
    if (follows()) columns_.set_need(value.candidate, of(value));
  }
  void renew(Value& value);     // Computes the value's need anew.
  void lost(Value& value);      // Call when the value has lost its content.
  void returned(Value& value);  // Call when the value is resident again, or before it is erased.
  void forget(const Value& value) { tapes_.forget(value); }  // Call before the value is freed.
  void catch_up();                                           // Call before rows are scored.

  // These serve copies from the swap that begin before the program uses the value (ahead.cpp). Call
  // due() between operators: it returns the missing values whose copies must begin now, soonest
  // need first. `most`: the time that all copies under way may take together. Call begins_copy()
  // when a copy begins, and await() when a copy is cancelled. After pass_over(), a value is copied
  // only when it is used.
  std::vector<Value*> due(Nanos most);
  void begins_copy(Value& value);
  void pass_over(Value& value) { awaited_.remove(value); }
  void await(Value& value);

  void check() const;  // Both throw std::logic_error if inconsistent.
  void check(const Value& value) const;

 private:
  bool follows() const { return tapes_.foretell() && !behind_; }
  bool counts(const Value& value, const Value& made) const;
  bool passes_on(const Value& value) const;
  Nanos least_behind(const Value& value) const;
  bool set(Value& value, Nanos& before);
  void update(Value& value);
  void update_behind(Value& value, Nanos before);
  void renew_stones(Value& value);
  template <class Changes>
  void tell_inputs(Value& value, Nanos before, const Changes& changes);
  void another_tape();
  Nanos first_need(const Value& value) const;
  void await_anew();

  const bool on_;
  ScoreColumns& columns_;
  Neighbourhood& neighbourhood_;
  const SteppingStones& stones_;
  Tapes tapes_;
  std::uint32_t round_ = 1;
  bool behind_ = false;
  Awaited awaited_;
  Nanos link_free_at_ = 0ns;  // The end of the last copy begun, on the tape's clock.
};

}  // namespace dtr
