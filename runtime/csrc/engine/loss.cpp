// The ways in which a value loses its content or its recipe: the program drops it (paper, appendix
// C.5), overwrites it, or it is evicted; it moves to the swap; or it becomes an ordinary tensor,
// and is never evicted again. And the way back to memory, after it was recomputed.

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/settle.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {

void Engine::unlock(Value& view) {
  Value& value = view.storage();
  if (--value.locks > 0) return;
  if (value.candidate != kNowhere) columns_.permit(value, ++order_);
  if (value.dropped_while_locked) {
    value.dropped_while_locked = false;
    let_go(value);
  }
  collect_or_banish(value);
}

void Engine::dropped(Value& value) {
  value.home = nullptr;
  disown(value);
  orphans_.changed(value);
  if (value.locks) {
    value.dropped_while_locked = true;
    return;
  }
  let_go(value);
  collect_or_banish(value);
}

// Paper, appendix C.5: a value that the program has dropped and that nothing missing was made from
// goes for good. What was made from it can't be recomputed then, so it becomes constant.
void Engine::collect_or_banish(Value& value) {
  if (policy_ != Policy::kBanish || value.home || value.constant()) return collect(value);
  std::vector<Value*> made;
  for (Use* use = value.uses; use; use = use->next) {
    for (std::uint32_t i = 0; i < use->op->output_count; ++i) {
      Value* output = use->op->outputs()[i];
      if (output && std::ranges::find(made, output) == made.end()) made.push_back(output);
    }
  }
  const auto resident = [](const Value* output) { return output->resident(); };
  if (!std::ranges::all_of(made, resident)) return collect(value);
  ++value.locks;
  settle_together(*this, made);
  --value.locks;
  collect(value);
}

// What only outside of memory has its like stays until its turn comes: to bring it there is work.
void Engine::let_go(Value& value) {
  if (policy_ != Policy::kEager || value.constant() || !value.resident()) return;
  if (value.movable()) return;
  if (!value.uses && records_ == KeepRecords::kNeeded) return;  // It goes with its record.
  if (stats_.evictions > 0 && stones_.lay(value)) {
    orphans_.changed(value);
    return needs_.renew(value);
  }
  executor_.release(value, Loss::kDropped);
  lose(value, Loss::kDropped);
}

void Engine::overwritten(Value& value) {
  value.home = nullptr;
  disown(value);
  lose(value, Loss::kDropped);
  collect(value);
}

void* Engine::reuse_buffer(Value& value) {
  void* data = value.data;
  lose(value, Loss::kDropped);
  return data;
}

void Engine::evict(Value& value) {
  executor_.release(value, Loss::kEvicted);
  lose(value, Loss::kEvicted);
  ++stats_.evictions;
}

void Engine::move(Value& value, Op& reload) {
  ++value.locks;  // It outlives its recipe.
  remove_candidate(value);
  disown(value);
  neighbourhood_.cut(value);
  unlink(value);
  value.producer = &reload;
  value.output = 0;
  reload.outputs()[0] = &value;
  reload.live_outputs = 1;
  collect(value);  // What only the recipe kept.
  --value.locks;
  finish_reload(reload);
}

void Engine::lose(Value& value, Loss loss) {
  const bool stone = value.stone;
  remove_candidate(value);
  value.data = nullptr;
  for (Value* view = value.views; view; view = view->views) view->data = nullptr;
  neighbourhood_.lost(value, loss);
  needs_.await(value);
  if (stone) needs_.renew(value);
  needs_.lost(value);
  orphans_.changed(value);
}

void Engine::restore(Value& value, void* data) {
  value.data = data;
  ++value.recomputes;
  if (value.base) return;
  needs_.pass_over(value);
  neighbourhood_.returned(value);
  add_candidate(value);
  needs_.returned(value);
  orphans_.changed(value);
}

// The program has let `made` go.
void Engine::let_stones_go(Value& made) {
  if (!stones_.any()) return;
  for_each_input(made, [this](Value& input) {
    if (!input.stone) return;
    if (SteppingStones::leads_on(input)) {
      needs_.renew(input);
    } else {
      let_stone_go(input);
    }
  });
}

void Engine::let_stone_go(Value& stone) {
  if (stone.locks == 0) {
    executor_.release(stone, Loss::kDropped);
    return lose(stone, Loss::kDropped);
  }
  stones_.lift(stone);
  stone.dropped_while_locked = true;
  needs_.renew(stone);
}

bool Engine::let_all_stones_go() {
  const bool any = stones_.any();
  for (std::size_t row = columns_.count(); row-- > 0 && stones_.any();) {
    if (columns_.value(row)->stone) let_stone_go(*columns_.value(row));
  }
  return any;
}

void Engine::freeze(Value& value) {
  remove_candidate(value);
  disown(value);
  neighbourhood_.cut(value);
  if (std::exchange(value.unfilled, false)) --value.locks;
  executor_.make_ordinary(value);
  unlink(value);
  collect(value);
}

void Engine::settle(Value& value) {
  if (value.movable()) return;
  Op* reload = moves() ? executor_.reload_for(value) : nullptr;
  reload ? move(value, *reload) : freeze(value);
}

}  // namespace dtr
