// What becomes of a request that cannot be served. It ends in torch.OutOfMemoryError, to which the
// operator's caller adds advice. But an operator may catch the error and go on with less: cuDNN
// takes another algorithm then, whose results may differ in their last bits from those of a run with
// more memory. No error reaches the program, so the session warns, once for each operator, when the
// operator is over and no lock of ours is held. A replay's warning waits for that, too. Or cuDNN
// finds no algorithm at all: then its own error is told what was refused before.

#include <algorithm>
#include <utility>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/session/locks.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {

void Session::out_of_memory(Bytes asked, const std::string& shortage) {
  const PoolStats pool = memory_->stats();
  InOperator::State& thread = InOperator::state;
  if (thread.depth == 0) {  // Of an error that nobody took on, and of an operator that is over.
    forget_refusal();
    thread.made.start();
  }
  const Bytes locked = engine_.locked_bytes();
  // Torch's device allocator frees what an operator made, and tells nobody.
  const Bytes made = memory_->is_torchs() ? 0 : thread.made.bytes();
  const Refusal refusal{.asked = asked,
                        .charge = memory_->charge(asked),
                        .pool = pool,
                        .locked = locked,
                        .made = std::clamp<Bytes>(pool.live - locked, 0, made),
                        .largest_operator = engine_.stats().largest_operator,
                        .full_swap = swap_ ? swap_->full() : 0,
                        .exposures = exposures_};
  // What no such device has is refused without us as well.
  const Bytes most = device_.work ? device_.work->total_memory() : asked;
  if (asked <= most) thread.refused = std::max(thread.refused, asked);
  if (!shortage.empty()) {
    thread.at_least = 0;
    throw_machine_is_full(refusal, shortage);
  }
  if (asked > most) {
    thread.at_least = 0;
    throw_device_is_too_small(refusal, most);
  }
  if (thread.handled) throw_nothing_is_evicted_here(refusal);
  thread.at_least = std::max(thread.at_least, refusal.least_budget());
  throw_budget_is_full(refusal);
}

void Session::rethrow_with_advice(const c10::OutOfMemoryError& error) {
  const Bytes at_least = InOperator::state.at_least;
  forget_refusal();
  const Adviser adviser = adviser_;
  if (at_least == 0 || !adviser) throw;
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.msg(), adviser(at_least));
}

void Session::add_refusal(c10::Error& error) {
  const InOperator::State& thread = InOperator::state;
  if (thread.refused > 0) error.add_context(refused_before(thread.refused, thread.at_least));
  forget_refusal();
}

bool Session::forget_refusal() {
  InOperator::state.refused = 0;
  return std::exchange(InOperator::state.at_least, 0) != 0;
}

// An operator of this thread has ended well. If it was refused something it caught the error.
void Session::note_caught(const OperatorInfo& info) {
  const Bytes asked = InOperator::state.refused, at_least = InOperator::state.at_least;
  if (asked == 0) return;
  forget_refusal();
  Bytes& most = caught_[info.name];
  if (most == 0) {
    untold_.push_back(went_on_without(info.name, asked, at_least));
    some_untold_ = true;
  }
  most = std::max(most, asked);
}

std::vector<std::string> Session::take_untold() {
  std::lock_guard guard(engine_.mutex());
  some_untold_ = false;
  return std::exchange(untold_, {});
}

void Session::tell_of_caught() {
  if (!some_untold_) return;
  for (const std::string& text : take_untold()) TORCH_WARN(text);
}

std::map<std::string, Bytes> Session::caught() const {
  std::lock_guard guard(engine_.mutex());
  return caught_;
}

}  // namespace dtr
