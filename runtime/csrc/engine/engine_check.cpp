// The invariants of the engine, as sentences. For tests.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/reachable.h"

namespace dtr {

void Engine::check(bool idle) const {
  const auto insist = [](bool truth, const char* sentence) {
    if (!truth) throw std::logic_error(std::string("engine: ") + sentence);
  };
  Bytes evictable = 0;
  std::int64_t stones = 0;
  std::unordered_set<Op*> ops;
  columns_.check();
  needs_.check();
  for (std::size_t row = 0; row < columns_.count(); ++row) {
    const Value* value = columns_.value(row);
    insist(value->resident() && value->producer, "a candidate is resident and has a recipe");
    evictable += value->size;
    insist(
        columns_.last_access(row) == (needs_.foretells() ? -needs_.of(*value) : value->last_access),
        "a row has its value's last access, or its need");
  }
  insist(evictable == columns_.bytes(), "the evictable bytes are the sum over the candidates");
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const Value* value = owned_[i];
    insist(value->owned == static_cast<std::int32_t>(i), "an owned value knows its place");
    insist(value->home && value->producer, "an owned value has a storage and a recipe");
  }
  const std::unordered_set<Value*> values = reachable(columns_, owned_);
  for (Value* value : values) {
    insist(value->needed() || value->resident(), "no value outlives its last reader");
    insist(0 <= value->waiting && value->waiting <= value->locks,
           "what waits is among the locks of a value");
    insist(!value->dropped_while_locked || (value->locks > 0 && !value->home),
           "what goes with its last lock is locked, and held by nobody");
    insist(!idle || value->locks == value->unfilled + value->dying,
           "nothing is locked while no operator is under way");
    needs_.check(*value);
    orphans_.check(*value);
    stones_.check(*value);
    stones += value->stone;
    if (value->producer) {
      neighbourhood_.check(*value);
      insist(value->resident() == (value->candidate != kNowhere),
             "exactly the resident values are candidates");
      insist(value->producer->outputs()[value->output] == value, "a producer knows its output");
      ops.insert(value->producer);
    } else {
      insist(value->resident(), "a constant is resident");
    }
    for (const Use* use = value->uses; use; use = use->next) {
      insist(use->value == value && *use->link == use, "a list of readers is sound");
      ops.insert(use->op);
    }
  }
  // What operators under way read, and nobody else, is found by their locks alone; their recipes
  // have no outputs yet.
  if (!idle) std::erase_if(ops, [](const Op* op) { return op->live_outputs == 0; });
  const auto all = [&](std::size_t found, std::int64_t counted) {
    const auto here = static_cast<std::int64_t>(found);
    return idle ? here == counted : here <= counted;
  };
  for (Op* op : ops) {
    insist(!op->reload || (op->use_count == 0 && op->output_count == 1),
           "what brings a value back from outside of memory reads nothing");
    std::uint16_t live = 0;
    for (std::uint32_t i = 0; i < op->output_count; ++i) live += op->outputs()[i] != nullptr;
    insist(live == op->live_outputs && live > 0, "an operator lives as long as its outputs");
  }
  neighbourhood_.check_classes(values);
  insist(stones == stones_.count(), "stepping stones are counted");
  insist(all(values.size(), stats_.values), "every value is reachable");
  insist(all(ops.size(), stats_.ops), "every recipe is reachable");
  const std::int64_t begun = values_and_ops_.used() - stats_.values - stats_.ops;
  insist(idle ? begun == 0 : begun >= 0, "no record is left but those of values and recipes");
}

}  // namespace dtr
