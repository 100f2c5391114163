// Predicts when each value is needed again: the value's need.
//
// A value is needed when the program uses it next, which the tape predicts (policy/tape.h), or when
// a missing value computed from it is needed, whichever comes first. Need::behind caches the second
// time, so a use of the value needs no search. When a value is lost or returns, or its need
// changes, its inputs are updated, then the inputs of missing inputs, until nothing changes. A
// stepping stone (stepping_stones.h) is needed when its larger value is, resident or not. Needs are
// not used while no tape is followed. Constants have none.
//
// When a step begins, no value was accessed in it yet, so all needs are the end of the step. A new
// round sets all needs at once: any value of an older round has that need.

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
  // `on`: whether tapes are kept. `owned`: recomputable values that the program holds.
  Needs(bool on, ScoreColumns& candidates, Neighbourhood& neighbourhood,
        const SteppingStones& stones, const std::vector<Value*>& owned)
      : on_(on),
        columns_(candidates),
        neighbourhood_(neighbourhood),
        stones_(stones),
        owned_(owned) {}

  // Called when an operator of the program or compiled code begins, for each of its arguments, when
  // it ends, and when a step ends (tape.h).
  void begin_operator() {
    if (on_) tapes_.begin_operator();
  }
  void accessed(Value& value) {
    if (!on_) return;
    tapes_.accessed(value);
    if (tapes_.foretell()) update(value);
  }
  bool end_operator(Nanos cost);  // Returns whether a tape predicted the operator.
  void end_step();
  void advance(Nanos time) {  // Call between operators.
    if (on_) tapes_.advance(time);
  }

  bool foretells() const { return tapes_.foretell(); }
  Nanos now() const { return tapes_.now(); }
  Nanos of(const Value& value) const;
  void show(const Value& value) {  // Copies its times to its row of the columns.
    columns_.copy_times(value);
    if (tapes_.foretell()) columns_.set_need(value.candidate, of(value));
  }
  void renew(Value& value);     // Computes its need anew.
  void lost(Value& value);      // Call when it has lost its content.
  void returned(Value& value);  // Call when it is resident again or about to be erased.

  // Copies from the swap that begin before a value is used (ahead.cpp). Between operators, due()
  // returns the missing values to copy now, in order. `most`: the time that all copies under way
  // may take. Call begins_copy() when a copy begins, and await() if it is cancelled. After
  // pass_over() a value only comes back when used.
  std::vector<Value*> due(Nanos most);
  void begins_copy(Value& value);
  void pass_over(Value& value) { awaited_.remove(value); }
  void await(Value& value);

  void check() const;  // Both throw std::logic_error if inconsistent.
  void check(const Value& value) const;

 private:
  bool counts(const Value& value, const Value& made) const;
  bool passes_on(const Value& value) const;
  Nanos least_behind(const Value& value) const;
  bool set(Value& value, Nanos& before);
  void update(Value& value);
  void update_behind(Value& value, Nanos before);
  void renew_stones(Value& value);
  template <class Changes>
  void tell_inputs(Value& value, Nanos before, const Changes& changes);
  void find_all();
  void another_tape();
  void show_all();
  Nanos first_need(const Value& value) const;
  void await_anew();

  const bool on_;
  ScoreColumns& columns_;
  Neighbourhood& neighbourhood_;
  const SteppingStones& stones_;
  const std::vector<Value*>& owned_;
  Tapes tapes_;
  std::uint32_t round_ = 1;  // Needs of an older round are the step's end.
  Awaited awaited_;
  Nanos link_free_at_ = 0ns;  // When all copies begun so far end, in the tape's time.
};

}  // namespace dtr
