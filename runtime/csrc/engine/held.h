// Locks a value while a Held object lives, so that the value is not evicted.

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

// Recomputes the missing values among those that an operator has locked, in two rounds. In the
// first, all count as waiting: as a last resort they may be evicted (Eviction::evict_waiting). So
// each recomputation has as much room as the operator's first run, also for a workspace. The second
// round, without waiting, brings the evicted values back, and fails if not all fit at once.
// `each(visit)` calls `visit` for each value, `bring_back(value)` recomputes one.
template <class Each, class BringBack>
void bring_all_back(const Each& each, const BringBack& bring_back) {
  struct Waiting {
    explicit Waiting(const Each& each) : each(each) {
      each([](Value& value) { ++value.storage().waiting; });
    }
    ~Waiting() {
      each([](Value& value) { --value.storage().waiting; });
    }
    const Each& each;
  };
  const auto bring_missing = [&](Value& value) {
    if (!value.resident()) bring_back(value);
  };
  {
    const Waiting waiting(each);
    each(bring_missing);
  }
  each(bring_missing);
}

// Locks the result of torch.empty, or of a similar operator, until used(), which is called when an
// operator first reads or writes it. Before that, a kernel may fill it through a pointer, and
// eviction would lose the content.
inline void keep_until_used(Engine& engine, Value& value) {
  value.unfilled = true;
  engine.lock(value);
}
inline void used(Engine& engine, Value& value) {
  if (!std::exchange(value.unfilled, false)) return;
  engine.touch(value);
  engine.unlock(value);
}

// Locks a value whose storage another thread is destroying, so that the Value is not freed: the
// storage's deleter still has a pointer to it, and will call died().
inline void keep_until_died(Engine& engine, Value& value) {
  value.dying = true;
  engine.lock(value);
}
inline void died(Engine& engine, Value& value) {
  value.dying = false;
  engine.unlock(value);
}

}  // namespace dtr
