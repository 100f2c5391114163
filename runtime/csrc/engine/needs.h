// When values are needed again.
//
// A value is needed when the program uses it next, which the tape foretells, or when a missing
// value that was made from it is needed, whichever comes first. `behind` is the least of the
// latter, so that a use of the value itself costs nothing more. A loss, a return or another need
// goes to the inputs, and on through those that are missing, as long as it changes something. A
// stepping stone (stepping_stones.h) is needed when what it stays for is, resident or not. Nobody
// asks while no tape foretells, and constants have no need.
//
// A step begins with all needs alike: nothing was accessed in it, so all are behind its end. What
// is of another round is such a value.

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
  // `on`: whether a tape is kept at all. `owned`: recomputable values that the program holds.
  Needs(bool on, ScoreColumns& candidates, Neighbourhood& neighbourhood,
        const SteppingStones& stones, const std::vector<Value*>& owned)
      : on_(on),
        columns_(candidates),
        neighbourhood_(neighbourhood),
        stones_(stones),
        owned_(owned) {}

  // The program's operators and steps (tape.h): each operator that OperatorCall leads and each call
  // of compiled code, each argument of it, and the end of each step.
  void begin_operator() {
    if (on_) tapes_.begin_operator();
  }
  void accessed(Value& value) {
    if (!on_) return;
    tapes_.accessed(value);
    if (tapes_.foretell()) update(value);
  }
  bool end_operator(Nanos cost);  // Whether a tape foretold it.
  void end_step();
  void advance(Nanos time) {  // Between two operators.
    if (on_) tapes_.advance(time);
  }

  bool foretells() const { return tapes_.foretell(); }
  Nanos now() const { return tapes_.now(); }
  Nanos of(const Value& value) const;
  void show(const Value& value) {  // Its times, in its row.
    columns_.copy_times(value);
    if (tapes_.foretell()) columns_.set_need(value.candidate, of(value));
  }
  void renew(Value& value);     // What it counts is not what it was.
  void lost(Value& value);      // Its content.
  void returned(Value& value);  // It is back, or goes for good.

  // Bringing back ahead of use (ahead.cpp). The missing values whose copies are to begin between
  // two operators, in order, where a tape foretells. `most`: how long all takes that may be on its
  // way. Who begins a copy says so, and says if it was given up. A value that is passed over comes
  // when it is touched.
  std::vector<Value*> due(Nanos most);
  void begins_copy(Value& value);
  void pass_over(Value& value) { awaited_.remove(value); }
  void await(Value& value);

  void check() const;  // Throw std::logic_error with a sentence.
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
  std::uint32_t round_ = 1;  // Of needs that began together.
  Awaited awaited_;
  Nanos link_free_at_ = 0ns;  // On the tape's time: when all copies are done that have begun.
};

}  // namespace dtr
