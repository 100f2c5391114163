// The invariants of the engine, as sentences. For tests.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/reachable.h"

namespace dtr {
namespace {

void insist(bool truth, const char* sentence) {
  if (!truth) throw std::logic_error(std::string("engine: ") + sentence);
}

}  // namespace

class Engine::Check {
 public:
  Check(const Engine& engine, bool idle) : engine_(engine), idle_(idle) {}

  void run() {
    engine_.needs_.catch_up();
    engine_.columns_.check();
    engine_.needs_.check();
    candidates();
    owned();
    const std::unordered_set<Value*> values = reachable(engine_.columns_, engine_.owned_);
    for (Value* value : values) {
      locks(*value);
      neighbours(*value);
    }
    // What operators under way read, and nobody else, is found by their locks alone; their recipes
    // have no outputs yet.
    if (!idle_) std::erase_if(ops_, [](const Op* op) { return op->live_outputs == 0; });
    for (Op* op : ops_) recipe(*op);
    engine_.neighbourhood_.check_classes(values);
    counts(values.size());
  }

 private:
  void candidates() const {
    const ScoreColumns& columns = engine_.columns_;
    const Needs& needs = engine_.needs_;
    Bytes evictable = 0;
    for (std::size_t row = 0; row < columns.count(); ++row) {
      const Value* value = columns.value(row);
      insist(value->resident() && value->producer, "a candidate is resident and has a recipe");
      evictable += value->size;
      insist(
          columns.last_access(row) == (needs.foretells() ? -needs.of(*value) : value->last_access),
          "a row has its value's last access, or its need");
    }
    insist(evictable == columns.bytes(), "the evictable bytes are the sum over the candidates");
  }

  void owned() const {
    for (std::size_t i = 0; i < engine_.owned_.size(); ++i) {
      const Value* value = engine_.owned_[i];
      insist(value->owned == static_cast<std::int32_t>(i), "an owned value knows its place");
      insist(value->home && value->producer, "an owned value has a storage and a recipe");
    }
  }

  void locks(const Value& value) const {
    insist(value.needed() || value.resident(), "no value outlives its last reader");
    insist(0 <= value.waiting && value.waiting <= value.locks,
           "what waits is among the locks of a value");
    insist(!value.dropped_while_locked || (value.locks > 0 && !value.home),
           "what goes with its last lock is locked, and held by nobody");
    insist(!idle_ || value.locks == value.unfilled + value.dying,
           "nothing is locked while no operator is under way");
  }

  void neighbours(Value& value) {
    engine_.needs_.check(value);
    engine_.orphans_.check(value);
    engine_.stones_.check(value);
    stones_ += value.stone;
    if (value.producer) {
      engine_.neighbourhood_.check(value);
      insist(value.resident() == (value.candidate != kNowhere),
             "exactly the resident values are candidates");
      insist(value.producer->outputs()[value.output] == &value, "a producer knows its output");
      ops_.insert(value.producer);
    } else {
      insist(value.resident(), "a constant is resident");
    }
    for (const Use* use = value.uses; use; use = use->next) {
      insist(use->value == &value && *use->link == use, "a list of readers is sound");
      ops_.insert(use->op);
    }
  }

  static void recipe(Op& op) {
    insist(!op.reload || (op.use_count == 0 && op.output_count == 1),
           "what brings a value back from outside of memory reads nothing");
    const auto live = op.output_count - std::count(op.outputs(), op.outputs() + op.output_count,
                                                   static_cast<Value*>(nullptr));
    insist(live == op.live_outputs && live > 0, "an operator lives as long as its outputs");
  }

  void counts(std::size_t values) const {
    const auto all = [&](std::size_t found, std::int64_t counted) {
      const auto here = static_cast<std::int64_t>(found);
      return idle_ ? here == counted : here <= counted;
    };
    const EngineStats& stats = engine_.stats_;
    insist(stones_ == engine_.stones_.count(), "stepping stones are counted");
    insist(all(values, stats.values), "every value is reachable");
    insist(all(ops_.size(), stats.ops), "every recipe is reachable");
    const std::int64_t begun = engine_.values_and_ops_.used() - stats.values - stats.ops;
    insist(idle_ ? begun == 0 : begun >= 0, "no record is left but those of values and recipes");
  }

  const Engine& engine_;
  const bool idle_;
  std::unordered_set<Op*> ops_;
  std::int64_t stones_ = 0;
};

void Engine::check(bool idle) const { Check(*this, idle).run(); }

}  // namespace dtr
