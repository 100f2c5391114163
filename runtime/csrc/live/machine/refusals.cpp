#include "runtime/csrc/live/machine/refusals.h"

#include <atomic>
#include <utility>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"

namespace dtr {
namespace {

std::atomic<Adviser> the_adviser{nullptr};

}  // namespace

void set_adviser(Adviser adviser) { the_adviser = adviser; }

void rethrow_with_advice(const c10::OutOfMemoryError& error) {
  const Bytes at_least = InOperator::state.at_least;
  forget_refusal();
  const Adviser adviser = the_adviser;
  if (at_least == 0 || !adviser) throw;
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.msg(), adviser(at_least));
}

void add_refusal(c10::Error& error) {
  const InOperator::State& thread = InOperator::state;
  if (thread.refused > 0) error.add_context(refused_before(thread.refused, thread.at_least));
  forget_refusal();
}

bool forget_refusal() {
  InOperator::state.refused = 0;
  return std::exchange(InOperator::state.at_least, 0) != 0;
}

}  // namespace dtr
