#include "runtime/csrc/engine/settle.h"

#include <algorithm>
#include <exception>
#include <unordered_set>
#include <utility>

#include "runtime/csrc/engine/held.h"

namespace dtr {
namespace {

void retain(Engine& engine, Value& value, Lock& lock, void (Engine::*keep)(Value&)) {
  const Held held(engine, value);
  engine.materialize(value, lock);
  // Else the program dropped it meanwhile.
  if (value.producer && value.home) (engine.*keep)(value);
}

// An error of a Python operator takes Python's lock as it dies, for which nobody must wait under
// this one.
void let_die(std::exception_ptr& error, Lock& lock) {
  if (!error) return;
  lock.unlock();
  error = nullptr;
  lock.lock();
}

}  // namespace

// Each record must outlive what the settling of the others collects.
void settle_together(Engine& engine, const std::vector<Value*>& values) {
  std::vector<Held> held;
  for (Value* value : values) held.emplace_back(engine, *value);
  for (Value* value : values) {
    if (!value->constant()) engine.settle(*value);
  }
}

void retire(Engine& engine, Value& constant, Lock& lock, Nanos since) {
  std::vector<Held> held;
  for (Value* value : engine.histories().held_on(constant)) {
    if (value->last_access >= since) held.emplace_back(engine, *value);
  }
  std::exception_ptr error, another;
  for (; !held.empty(); held.pop_back()) {
    try {
      retain(engine, *held.back().value(), lock, &Engine::settle);
    } catch (const std::exception&) {
      (error ? another : error) = std::current_exception();
    }
    let_die(another, lock);
  }
  if (error) std::rethrow_exception(error);
}

void commit(Engine& engine, Lock& lock, const std::function<bool()>& spill) {
  const std::vector<Value*>& owned = engine.owned();
  for (std::size_t i = owned.size(); i-- > 0;) {
    if (i < owned.size() && owned[i]->resident()) engine.freeze(*owned[i]);
  }
  std::exception_ptr error;
  std::unordered_set<const Value*> lost;
  while (true) {
    const auto left = std::ranges::find_if(owned.rbegin(), owned.rend(),
                                           [&](Value* value) { return !lost.contains(value); });
    if (left == owned.rend()) break;
    Value& value = **left;
    std::exception_ptr failure;
    try {
      retain(engine, value, lock, &Engine::freeze);
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

bool return_all(Engine& engine, Lock& lock, const std::function<bool(Bytes)>& has_room) {
  const std::vector<Value*>& owned = engine.owned();
  const auto missing = [](const Value* value) { return !value->resident(); };
  std::unordered_set<const Value*> tried;
  std::exception_ptr error, another;
  while (true) {
    const auto left = std::ranges::find_if(owned, [&](Value* value) {
      return missing(value) && has_room(value->size) && !tried.contains(value);
    });
    if (left == owned.end()) break;
    const Held held(engine, **left);
    tried.insert(*left);
    try {
      engine.materialize(*held.value(), lock);
    } catch (const std::exception&) {
      (error ? another : error) = std::current_exception();
    }
    let_die(another, lock);
  }
  if (error) std::rethrow_exception(error);
  return std::ranges::none_of(owned, missing);
}

void freeze_resident(Engine& engine, const std::function<void(Value&)>& give_up) {
  const std::vector<Value*>& owned = engine.owned();
  while (!owned.empty()) {
    Value& value = *owned.back();
    value.resident() ? engine.freeze(value) : give_up(value);
  }
}

void forsake(Engine& engine, const Value& lost) {
  std::vector<Value*> resident = engine.histories().held_on(lost);
  std::erase_if(resident, [](const Value* value) { return !value->resident(); });
  settle_together(engine, resident);
}

bool shed(Engine& engine, Value& constant) {
  const Histories::Resting resting =
      engine.histories().resting_on(constant, constant.size + 1, Histories::Busy::kStops);
  if (!resting.idle || resting.bytes > constant.size) return false;
  const std::vector<Value*> held = engine.histories().held_on(constant);
  settle_together(engine, held);
  return !held.empty();
}

bool shed_behind(Engine& engine, Value& value) {
  std::vector<Held> kept;
  for (Value* constant : engine.histories().kept_behind(value))
    kept.emplace_back(engine, *constant);
  bool any = false;
  for (const Held& constant : kept) any |= shed(engine, *constant.value());
  return any;
}

}  // namespace dtr
