// How missing values are recomputed (paper, section 3 and figure 1, without its recursion), and how
// values become constants: one by one, with all that rests on a constant, or all at once.

#include <algorithm>
#include <exception>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/held.h"

namespace dtr {

// An operator on the stack of a rematerialization, and which of its missing inputs is next. Once
// all have been there, it holds on to them: so each gives its inputs up once at most, and the whole
// comes to an end.
struct Engine::Pending {
  Op* op;
  Value* wanted;
  std::size_t first_missing, next;
  bool holds = false;
};

void Engine::unlock_inputs(Op& op) {
  if (policy_ != Policy::kBanish) {
    for (std::uint32_t i = 0; i < op.use_count; ++i) unlock(*op.uses()[i].value);
    return;
  }
  std::vector<Value*> inputs;  // To banish one of them may erase the operator.
  for (std::uint32_t i = 0; i < op.use_count; ++i) inputs.push_back(op.uses()[i].value);
  for (Value* input : inputs) unlock(*input);
}

void Engine::materialize(Value& target, Lock& lock) {
  std::vector<Pending> pending;
  std::vector<Value*> missing;  // Inputs of all that is pending; the last one's come last.
  // Resident inputs are locked before the first missing one is recomputed, which must not evict
  // them while there is anything else; the missing ones as they come back.
  const auto wait_with = [this](Value& input) {
    this->lock(input);
    ++input.storage().waiting;
  };
  const auto hold = [](Pending& top) {
    if (std::exchange(top.holds, true)) return;
    for (std::uint32_t i = 0; i < top.op->use_count; ++i) {
      --top.op->uses()[i].value->storage().waiting;
    }
  };
  const auto push = [&](Value& value) {
    Op& op = *value.producer;
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      if (!input.constant()) touch(input);  // A constant's time is that of its content (retire).
    }
    const std::size_t most = missing.size() + op.use_count;
    if (missing.capacity() < most) missing.reserve(std::max(most, 2 * missing.capacity()));
    pending.push_back({&op, &value, missing.size(), missing.size()});  // From here nothing fails.
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = *op.uses()[i].value;
      input.resident() ? wait_with(input) : missing.push_back(&input);
    }
  };
  if (target.resident()) return;
  runs_before_ = stats_.rematerializations;
  push(target);
  try {
    while (!pending.empty()) {
      Pending& top = pending.back();
      if (top.next < missing.size()) {
        Value& input = *missing[top.next];
        if (input.resident()) {
          wait_with(input);
          ++top.next;
        } else {
          push(input);
        }
        continue;
      }
      // Another thread, or a shared subexpression, may have been here meanwhile.
      Op& op = *top.op;
      Value& wanted = *top.wanted;
      bool lacks = false;
      for (std::uint32_t i = 0; i < op.output_count; ++i) {
        lacks |= op.outputs()[i] && !op.outputs()[i]->resident();
      }
      hold(top);
      if (lacks) {
        Value* given_up = nullptr;
        for (std::uint32_t i = 0; i < op.use_count && !given_up; ++i) {
          if (!op.uses()[i].value->resident()) given_up = op.uses()[i].value;
        }
        if (given_up) {
          push(*given_up);
          continue;
        }
        recompute(op, wanted, lock);
      }
      missing.resize(top.first_missing);
      pending.pop_back();
      unlock_inputs(op);
    }
  } catch (...) {
    for (; !pending.empty(); pending.pop_back()) {
      // What is still missing was not locked.
      for (; missing.size() > pending.back().next; missing.pop_back()) wait_with(*missing.back());
      hold(pending.back());
      missing.resize(pending.back().first_missing);
      unlock_inputs(*pending.back().op);
    }
    throw;
  }
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

void Engine::retain(Value& value, Lock& lock, void (Engine::*keep)(Value&)) {
  const Held held(*this, value);
  materialize(value, lock);
  if (value.producer && value.home) (this->*keep)(value);  // Else the program dropped it meanwhile.
}

// An error of a Python operator takes Python's lock as it dies, for which nobody must wait under
// this one.
void Engine::let_die(std::exception_ptr& error, Lock& lock) {
  if (!error) return;
  lock.unlock();
  error = nullptr;
  lock.lock();
}

void Engine::retire(Value& constant, Lock& lock, Nanos since) {
  std::vector<Held> held;
  for (Value* value : histories_.held_on(constant)) {
    if (value->last_access >= since) held.emplace_back(*this, *value);
  }
  std::exception_ptr error, another;
  for (; !held.empty(); held.pop_back()) {
    try {
      retain(*held.back().value(), lock, &Engine::settle);
    } catch (const std::exception&) {
      (error ? another : error) = std::current_exception();
    }
    let_die(another, lock);
  }
  if (error) std::rethrow_exception(error);
}

void Engine::commit(Lock& lock, const std::function<bool()>& spill) {
  for (std::size_t i = owned_.size(); i-- > 0;) {
    if (i < owned_.size() && owned_[i]->resident()) freeze(*owned_[i]);
  }
  std::exception_ptr error;
  std::unordered_set<const Value*> lost;
  while (true) {
    const auto left = std::ranges::find_if(owned_.rbegin(), owned_.rend(),
                                           [&](Value* value) { return !lost.contains(value); });
    if (left == owned_.rend()) break;
    Value& value = **left;
    std::exception_ptr failure;
    try {
      retain(value, lock, &Engine::freeze);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    if (failure && !spill()) {
      lost.insert(&value);
      if (!error) std::swap(error, failure);
    }
    let_die(failure, lock);
  }
  if (error) std::rethrow_exception(error);
}

bool Engine::return_all(Lock& lock, const std::function<bool(Bytes)>& has_room) {
  const auto missing = [](const Value* value) { return !value->resident(); };
  std::unordered_set<const Value*> tried;
  std::exception_ptr error, another;
  while (true) {
    const auto left = std::ranges::find_if(owned_, [&](Value* value) {
      return missing(value) && has_room(value->size) && !tried.contains(value);
    });
    if (left == owned_.end()) break;
    const Held held(*this, **left);
    tried.insert(*left);
    try {
      materialize(*held.value(), lock);
    } catch (const std::exception&) {
      (error ? another : error) = std::current_exception();
    }
    let_die(another, lock);
  }
  if (error) std::rethrow_exception(error);
  return std::ranges::none_of(owned_, missing);
}

void Engine::freeze_resident(const std::function<void(Value&)>& give_up) {
  while (!owned_.empty()) {
    Value& value = *owned_.back();
    value.resident() ? freeze(value) : give_up(value);
  }
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
