// How missing values are recomputed (paper, section 3 and figure 1, without its recursion).

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// The way to one missing value: a stack of the operators that must run, and their missing inputs.
class Engine::Rematerialization {
 public:
  explicit Rematerialization(Engine& engine) : engine_(engine) {}

  void run(Value& target, Lock& lock) {
    push(target);
    try {
      while (!pending_.empty()) {
        if (!wait_for_inputs()) run_top(lock);
      }
    } catch (...) {
      give_up();
      throw;
    }
  }

 private:
  // An operator on the stack, and which of its missing inputs is next. Once all have been there, it
  // holds on to them: so each gives its inputs up once at most, and the whole comes to an end.
  struct Pending {
    Op* op;
    Value* wanted;
    std::size_t first_missing, next;
    bool holds = false;
  };

  // Resident inputs are locked before the first missing one is recomputed, which must not evict
  // them while there is anything else; the missing ones as they come back.
  void push(Value& value) {
    Op& op = *value.producer;
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      // A constant's time is that of its content (retire).
      if (!input.constant()) engine_.touch(input);
    }
    const std::size_t most = missing_.size() + op.use_count;
    if (missing_.capacity() < most) missing_.reserve(std::max(most, 2 * missing_.capacity()));
    // From here nothing fails.
    pending_.push_back({&op, &value, missing_.size(), missing_.size()});
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      input.resident() ? wait_with(input) : missing_.push_back(&input);
    }
  }

  void wait_with(Value& input) {
    engine_.lock(input);
    ++input.storage().waiting;
  }

  static void hold(Pending& top) {
    if (std::exchange(top.holds, true)) return;
    for (std::uint32_t i = 0; i < top.op->use_count; ++i) {
      --top.op->uses()[i].value->storage().waiting;
    }
  }

  // False where all inputs of the operator on top have been there.
  bool wait_for_inputs() {
    Pending& top = pending_.back();
    if (top.next == missing_.size()) return false;
    Value& input = *missing_[top.next];
    if (input.resident()) {
      wait_with(input);
      ++top.next;
    } else {
      push(input);
    }
    return true;
  }

  void run_top(Lock& lock) {
    Pending& top = pending_.back();
    Op& op = *top.op;
    Value& wanted = *top.wanted;
    hold(top);
    // Another thread, or a shared subexpression, may have been here meanwhile.
    if (lacks_output(op)) {
      if (Value* given_up = missing_input(op)) return push(*given_up);
      engine_.recompute(op, wanted, lock);
    }
    pop();
  }

  void pop() {
    Op& op = *pending_.back().op;
    missing_.resize(pending_.back().first_missing);
    pending_.pop_back();
    unlock_inputs(op);
  }

  void unlock_inputs(Op& op) {
    if (engine_.policy_ != Policy::kBanish) {
      for (std::uint32_t i = 0; i < op.use_count; ++i) engine_.unlock(*op.uses()[i].value);
      return;
    }
    std::vector<Value*> inputs;  // To banish one of them may erase the operator.
    for (std::uint32_t i = 0; i < op.use_count; ++i) inputs.push_back(op.uses()[i].value);
    for (Value* input : inputs) engine_.unlock(*input);
  }

  void give_up() {
    while (!pending_.empty()) {
      // What is still missing was not locked.
      for (; missing_.size() > pending_.back().next; missing_.pop_back()) {
        wait_with(*missing_.back());
      }
      hold(pending_.back());
      pop();
    }
  }

  static bool lacks_output(Op& op) {
    return std::any_of(op.outputs(), op.outputs() + op.output_count,
                       [](const Value* output) { return output && !output->resident(); });
  }

  static Value* missing_input(Op& op) {
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      if (!op.uses()[i].value->resident()) return op.uses()[i].value;
    }
    return nullptr;
  }

  Engine& engine_;
  std::vector<Pending> pending_;
  std::vector<Value*> missing_;  // Inputs of all that is pending; the last one's come last.
};

void Engine::materialize(Value& target, Lock& lock) {
  if (target.resident()) return;
  eviction_.begin_rematerialization(stats_.rematerializations);
  Rematerialization(*this).run(target, lock);
}

void Engine::recompute(Op& op, Value& wanted, Lock& lock) {
  bool first = wanted.recomputes < 0;
  try {
    executor_.recompute(op, lock);
  } catch (...) {
    neighbourhood_.refresh();  // Some outputs may be back.
    throw;
  }
  if (Value& storage = wanted.storage(); storage.candidate != kNowhere) {
    columns_.stamp(storage, ++order_);
  }
  neighbourhood_.refresh();
  stats_.clock += op.cost;
  (first ? stats_.base_cost : stats_.remat_cost) += op.cost;
  stats_.rematerializations += !first;
  for (std::uint32_t i = 0; first && i < op.output_count; ++i) touch(*op.outputs()[i]);
}

void Engine::discard(const std::vector<Op*>& ops, const std::vector<Value*>& constants) {
  const auto each_output = [&](const auto& visit) {
    for (Op* op : ops) {
      for (std::uint32_t i = 0; i < op->output_count; ++i) visit(op->outputs()[i]);
    }
  };
  each_output([&](Value* value) { neighbourhood_.discard(*value); });  // May look at the others.
  each_output([&](Value* value) { values_and_ops_.free(value); });
  for (Op* op : ops) values_and_ops_.free(op, op->bytes);
  for (Value* value : constants) values_and_ops_.free(value);
}

}  // namespace dtr
