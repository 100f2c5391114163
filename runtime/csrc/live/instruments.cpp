// What only tests ask of a scope, after every operator: to run its recipe at once and compare, or
// to evict all that may be evicted.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/live/locks.h"
#include "runtime/csrc/live/recipe.h"
#include "runtime/csrc/live/session.h"

namespace dtr {

void Session::apply_instruments(Op* kept, Lock& lock) {
  if (options_.instruments.verify && kept) verify(*kept, lock);
  if (options_.instruments.evict_always) engine_.evict_all();
}

// With what the program got, byte for byte.
void Session::verify(Op& op, Lock& lock) {
  const bool gone = options_.policy == Policy::kBanish;  // Perhaps: an argument was unlocked.
  if (gone || Recipe::of(op).info().uninitialized) return;
  std::vector<Held> held;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    if (op.outputs()[i]) held.emplace_back(engine_, *op.outputs()[i]);
  }
  for (std::uint32_t i = 0; i < op.use_count; ++i) held.emplace_back(engine_, *op.uses()[i].value);
  lock.unlock();
  Turn turn(*this);
  lock.lock();
  for (std::uint32_t i = 0; i < op.use_count; ++i) bring_back(*op.uses()[i].value, lock);
  const std::string different = replayer_.difference(op, lock);
  ++verified_;
  held.clear();
  TORCH_CHECK(different.empty(), "verify: a replay differs from the first run: ", different);
}

}  // namespace dtr
