// Handles one operator inside a scope, in this order:
//
//   1. Lock the arguments' values, so that nothing evicts them. Bring evicted ones back.
//   2. If the operator writes a constant (a storage that we do not track) that recipes read, keep
//      its old content for these recipes (writes.cpp).
//   3. Record the recipe. After the call it would be too late, since the call takes its arguments
//      off the stack and advances the generator.
//   4. Release the engine's lock and run the operator. Operators that it calls are not intercepted.
//   5. If there is a recipe, make values for the storages made or written. Unlock the arguments.
//
// Three kinds of operators are not recorded, so their results are constants: those that Recipe
// cannot record, those of an optimizer's step (recipes would keep all earlier states), and those of
// a backward pass without create_graph (recomputing a gradient needs the whole pass).

#pragma once

#include <string>

#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/live/recipes/call.h"
#include "runtime/csrc/live/session/session.h"
#include "runtime/csrc/live/session/session_swap.h"

namespace dtr {

class Interception {
 public:
  explicit Interception(Session& session) : session_(session) {}
  void execute(const OperatorInfo& info, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  bool execute_itemwise(const OperatorInfo& info, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack);  // Returns false if it ran nothing.
  // The stages of execute(), defined in intercept.cpp.
  void gather(Call& call, const torch::jit::Stack& stack) const;
  void add_argument(Call& call, TensorArgument& argument) const;
  bool recordable(Call& call, const torch::jit::Stack& stack) const;
  bool differs_in_each_run(const Call& call, const torch::jit::Stack& stack,
                           DeterministicMode mode) const;
  inline bool may_record(const Call& call) const;
  inline bool makes_too_little(const Call& call) const;
  inline bool takes_turn(const Call& call) const;
  inline bool needs_engine(const Call& call) const;
  inline void begin(Call& call, OperatorCall& engaged, bool engages, const torch::jit::Stack& stack,
                    Lock& lock);
  void prepare(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack, Lock& lock);
  void record(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack);
  void link_reads(Call& call, Op& op);
  Value& source_of(const Call& call, std::size_t i);
  void verify_constants(const Call& call);
  inline void run_unlocked(Call& call, OperatorCall& engaged, torch::jit::Stack* stack,
                           Guard& guard);
  void run(Call& call, torch::jit::Stack* stack);
  void run_timed(Call& call, torch::jit::Stack* stack);

  // For an operator that reads a value; defined in reads.cpp.
  void prepare_reads(Call& call, OperatorCall& engaged, Lock& lock);
  void cut_histories(Call& call, OperatorCall& engaged);
  void keep_what_rests_on_absent(Call& call, OperatorCall& engaged);
  void bring_arguments_back(Call& call, OperatorCall& engaged, Lock& lock);
  void make_constant(Call& call, OperatorCall& engaged, Value& value);
  // Makes the value movable to the swap, or else a constant.
  void settle(Call& call, OperatorCall& engaged, Value& value);

  // For an operator that writes an argument; defined in writes.cpp.
  void prepare_writes(Call& call, OperatorCall& engaged, Lock& lock);
  void freeze_written(TensorArgument& argument, OperatorCall& engaged);
  void copy_written_constants(Call& call, OperatorCall& engaged, Lock& lock);
  bool long_written(Value& value);

  // Mainly for operators of other libraries; defined in library_calls.cpp.
  const char* distrusts(const OperatorInfo& info) const;
  bool library_keeps(const at::Tensor& result) const;
  void snapshot(Call& call, const torch::jit::Stack& stack);
  void look_at_what_it_did(Call& call, const torch::jit::Stack& stack) const;
  void tell_what_stays(Call& call, const torch::jit::Stack& stack, bool lacks_recipe);

  // The last stage of execute(), defined in results.cpp.
  void adopt_results(Call& call, Op& op, const torch::jit::Stack& stack);
  void adopt_result(Call& call, Op& op, std::uint16_t output, c10::StorageImpl* storage);
  template <class Visit>
  void for_each_written(const Call& call, const Visit& visit);
  void adopt_written(Call& call, OperatorCall& engaged);
  void count(Call& call);
  void after(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack, Lock& lock);
  void learn_size(const Call& call, const torch::jit::Stack& stack);
  void look_at_results(Call& call, const torch::jit::Stack& stack);
  void arm_arguments(const Call& call);
  void after_failure(Call& call, OperatorCall& engaged);
  void arm_again(const Call& call);

  // For tests and debug mode; defined in instruments.cpp.
  void apply_instruments(Op* kept, Lock& lock);
  void verify_repeats(const Call& call, Op& op, Lock& lock);
  std::string difference(Op& op, Lock& lock);

  Session& session_;
};

void set_in_optimizer(bool inside);  // Notes whether this thread runs an optimizer's step.

}  // namespace dtr
