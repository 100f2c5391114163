// What becomes of a request that cannot be served. It ends in torch.OutOfMemoryError, to which the
// operator's caller adds advice. But an operator may catch the error and go on with less: cuDNN
// takes another algorithm then, whose results may differ in their last bits from those of a run with
// more memory. No error reaches the program, so the session warns, once for each operator. A replay
// holds the engine's lock, under which no Python code may run: its warning comes with the next
// operator.

#include <utility>

#include "runtime/csrc/live/in_operator.h"
#include "runtime/csrc/live/locks.h"
#include "runtime/csrc/live/out_of_memory.h"
#include "runtime/csrc/live/session.h"

namespace dtr {

void Session::out_of_memory(Bytes asked, const std::string& shortage) {
  const PoolStats pool = memory_->stats();
  const Refusal refusal{.asked = asked,
                        .charge = memory_->charge(asked),
                        .pool = pool,
                        .locked = engine_.locked_bytes(),
                        .largest_operator = engine_.stats().largest_operator,
                        .forked = scope_.forked(),
                        .exposures = exposures_};
  forget_refusal();  // Of an error that nobody took on.
  InOperator::state.refused = asked;
  if (!shortage.empty()) throw_machine_is_full(refusal, shortage);
  if (InOperator::state.handled) throw_nothing_is_evicted_here(refusal);
  refused_ = refusal.least_budget();
  throw_budget_is_full(refusal);
}

void Session::rethrow_with_advice(const c10::OutOfMemoryError& error) {
  const Bytes at_least = refused_.exchange(0);
  const Adviser adviser = adviser_;
  if (at_least == 0 || !adviser) throw;
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.msg(), adviser(at_least));
}

bool Session::forget_refusal() {
  InOperator::state.refused = 0;
  return refused_.exchange(0) != 0;
}

// An operator of this thread has ended well. If it was refused something it caught the error.
void Session::note_caught(const OperatorInfo& info) {
  const Bytes asked = std::exchange(InOperator::state.refused, 0);
  if (asked == 0) return;
  const Bytes at_least = refused_.exchange(0);
  if (!caught_.emplace(info.name, asked).second) return;
  untold_.push_back(went_on_without(info.name, asked, at_least));
  some_untold_ = true;
}

void Session::tell_of_caught(const OperatorInfo& info) {
  std::vector<std::string> texts;
  {
    std::lock_guard guard(engine_.mutex());
    note_caught(info);
    texts = std::exchange(untold_, {});
    some_untold_ = false;
  }
  for (const std::string& text : texts) TORCH_WARN(text);
}

std::map<std::string, Bytes> Session::caught() const {
  std::lock_guard guard(engine_.mutex());
  return caught_;
}

}  // namespace dtr
