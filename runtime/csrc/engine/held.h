// Locks a value for the lifetime of an object, so that the value is not evicted.

#pragma once

#include <utility>

#include "runtime/csrc/engine/engine.h"

namespace dtr {

// The caller must hold the engine's mutex when it constructs and when it destroys this object. In
// between the mutex may be released.
class Held {
 public:
  Held() = default;
  Held(Engine& engine, Value& value) : engine_(&engine), value_(&value) { engine.lock(value); }
  Held(Held&& other) noexcept
      : engine_(other.engine_), value_(std::exchange(other.value_, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(value_, other.value_);
    return *this;
  }
  ~Held() { release(); }

  Value* value() const { return value_; }
  void release() {
    if (Value* value = std::exchange(value_, nullptr)) engine_->unlock(*value);
  }

 private:
  Engine* engine_ = nullptr;
  Value* value_ = nullptr;
};

// Locks the result of `empty` until an operator reads or fills it, and used() is called. A kernel
// may fill it through a pointer, so it must not be evicted before that.
inline void keep_until_used(Engine& engine, Value& value) {
  value.unfilled = true;
  engine.lock(value);
}
inline void used(Engine& engine, Value& value) {
  if (!std::exchange(value.unfilled, false)) return;
  engine.touch(value);
  engine.unlock(value);
}

// Locks a value whose storage is being destroyed in another thread: the storage's deleter has a
// pointer to the value, and will call died().
inline void keep_until_died(Engine& engine, Value& value) {
  value.dying = true;
  engine.lock(value);
}
inline void died(Engine& engine, Value& value) {
  value.dying = false;
  engine.unlock(value);
}

}  // namespace dtr
