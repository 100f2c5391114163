// What only tests ask of a scope, after every operator: to run its recipe at once and compare, or
// to evict all that may be evicted, or to move it to the swap.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/intercept/interception.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/recipes/recipe.h"

namespace dtr {
namespace {

// Begins of the names of operators that write some elements of an argument and leave the others.
constexpr std::string_view kPartWriters[] = {
    "aten::index_put",   "aten::_index_put", "aten::index_copy",  "aten::index_fill",
    "aten::masked_fill", "aten::scatter",    "aten::masked_scat", "aten::put_"};

bool writes_part(const OperatorInfo& info) {
  return std::ranges::any_of(kPartWriters,
                             [&](auto begin) { return info.name.starts_with(begin); });
}

// Whether what the operator writes must first be made again by one that leaves bytes uninitialized.
// Then bytes that the program has not written yet may differ.
bool rests_on_uninitialized(Op& op) {
  std::vector<Op*> open{&op};
  std::unordered_set<const Op*> seen;
  while (!open.empty()) {
    Op* const at = open.back();
    open.pop_back();
    if (at->reload || !seen.insert(at).second) continue;
    const Recipe& recipe = Recipe::of(*at);
    if (recipe.info().uninitialized) return true;
    for (std::uint32_t i = 0; recipe.writes() && i < at->use_count; ++i) {
      const Value& before = *at->uses()[i].value;
      if (recipe.writes(i) && !before.constant() && !before.resident()) {
        open.push_back(before.producer);
      }
    }
  }
  return false;
}

}  // namespace

void Interception::apply_instruments(Op* kept, Lock& lock) {
  if (session_.options().verify && kept) {
    const std::string different = difference(*kept, lock);
    TORCH_CHECK(different.empty(), "verify: a replay differs from the first run: ", different);
  }
  if (session_.options().evict_always) session_.engine().eviction().evict_all();
  if (session_.options().swap_always) session_.engine().eviction().move_all();
}

// Debug mode runs an operator twice: its first call, and each that is twice as large as the largest
// so far, since several threads work only at large ones. Where the budget has no room for that, the
// next call is.
void Interception::verify_repeats(const Call& call, Op& op, Lock& lock) {
  const OperatorInfo& info = call.info;
  const auto [largest, is_first] = session_.tally().repeated.try_emplace(&info, call.bytes);
  if (!is_first && call.bytes < 2 * largest->second) return;
  const Bytes before = is_first ? -1 : std::exchange(largest->second, call.bytes);
  std::string different;
  bool failed = false;
  try {
    different = difference(op, lock);
  } catch (const c10::OutOfMemoryError&) {
    failed = true;
  }
  if (InOperator::state.refused > 0) {
    if (!failed) session_.notes().note_caught(info);  // The operator may keep to its algorithm.
    forget_refusal();
    session_.tally().repeated[&info] = before;
    return;
  }
  TORCH_CHECK(different.empty(), "debug mode: ", info.name,
              " made other bytes when it ran again on the same arguments, with torch's default "
              "generator as it was: ",
              different, "; pin its results: dtr_alloc.pin(result)");
}

// Of a replay from what the program got, byte for byte; empty where there is none.
std::string Interception::difference(Op& op, Lock& lock) {
  if (Recipe::of(op).info().uninitialized) return "";
  const bool blank = writes_part(Recipe::of(op).info()) && rests_on_uninitialized(op);
  std::vector<Held> held;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    if (op.outputs()[i]) held.emplace_back(session_.engine(), *op.outputs()[i]);
  }
  for (std::uint32_t i = 0; i < op.use_count; ++i)
    held.emplace_back(session_.engine(), *op.uses()[i].value);
  lock.unlock();
  Turn turn(session_.locks());
  lock.lock();
  for (std::uint32_t i = 0; i < op.use_count; ++i) session_.bring_back(*op.uses()[i].value, lock);
  std::string different = session_.replayer().difference(op, lock);
  ++session_.tally().verified;
  return blank ? "" : different;
}

}  // namespace dtr
