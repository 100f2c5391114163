// Stands in for a session: keeps storages in blocks of a pool, runs operators without the engine's
// lock, and lets one thread at a time recompute or write in place. Checks that each operator reads
// the content that the storage's owner expects.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/engine/settle.h"
#include "tests/engine_harness/engine_harness.h"
#include "tests/stress/stress.h"

namespace dtr::stress {

class Machine final : public Executor {
 public:
  struct Content {
    Block* block;
    int references = 1;
  };
  // A storage of the program. One thread owns it; all threads may read shared ones.
  struct Storage {
    Value* value = nullptr;
    Content* content = nullptr;  // Only if it is ordinary (not evictable).
    Bytes size = 0;
    Number number = 0;  // The content that its owner expects.
  };

  Machine(Bytes budget, const Heuristic& heuristic, Policy policy)
      : pool_(Pool::create(make_host_arena(2 * budget), budget)),
        engine_(*this, heuristic, policy) {}

  std::unique_ptr<Storage> constant(Bytes size, Number number) {
    Lock lock(engine_.mutex());
    auto storage = std::make_unique<Storage>();
    storage->content = new Content{make(size, lock)};
    storage->size = size;
    storage->number = number;
    fill(pool_->data(storage->content->block), size, number);
    return storage;
  }

  // Runs an operator that has one result or, with `in_place`, writes its first input.
  std::unique_ptr<Storage> call(Number name, const std::vector<Storage*>& inputs, Bytes size,
                                bool in_place) {
    std::unique_lock<std::recursive_mutex> turn(turn_, std::defer_lock);
    if (in_place) turn.lock();
    std::vector<Value*> values;
    Lock lock(engine_.mutex());
    struct Unlock {  // Unlocks with the engine's lock held, also by exception.
      Engine& engine;
      std::vector<Value*>& values;
      ~Unlock() {
        for (Value* value : values) engine.unlock(*value);
      }
    } unlock{engine_, values};
    for (Storage* input : inputs) {
      values.push_back(&value_of(*input));
      engine_.lock(*values.back());
      engine_.touch(*values.back());
    }
    for (Value* value : values) {
      bring_back(*value, lock);
      if (engine_.histories().outweighed(*value)) engine_.freeze(*value);
    }
    if (in_place && values[0]->constant()) {
      retire(engine_, *values[0], lock);
      std::vector<const void*> data = inputs_of(values);
      compute(name, inputs, data, pool_->data(inputs[0]->content->block), inputs[0]->size, lock);
      inputs[0]->number = number_of(name, inputs);
      return nullptr;
    }
    Block* block = in_place ? static_cast<Content*>(values[0]->data)->block : make(size, lock);
    if (in_place) size = inputs[0]->size;
    compute(name, inputs, inputs_of(values), pool_->data(block), size, lock);

    Op& op = *engine_.begin(static_cast<std::uint32_t>(inputs.size()), 1, sizeof(Recipe));
    new (op.payload()) Recipe{name, in_place, size};
    for (std::uint32_t i = 0; i < inputs.size(); ++i) engine_.read(op, i, *values[i]);
    if (in_place) {
      Storage& home = *inputs[0];
      home.number = number_of(name, inputs);
      if (values[0]->constant()) {  // Policy::kBanish may have made it a constant meanwhile.
        engine_.abandon(op);
        return nullptr;
      }
      home.value = &engine_.write(op, 0, size, &home, values[0]->data);
      engine_.finish(op, Nanos{1 + size / 100});
      engine_.overwritten(*values[0]);
      return nullptr;
    }
    auto made = std::make_unique<Storage>();
    made->size = size;
    made->number = number_of(name, inputs);
    made->value = &engine_.write(op, 0, size, made.get(), new Content{block});
    engine_.finish(op, Nanos{1 + size / 100});
    return made;
  }

  void read(Storage& storage) {
    Lock lock(engine_.mutex());
    Value& value = value_of(storage);
    engine_.lock(value);
    try {
      bring_back(value, lock);
    } catch (...) {
      engine_.unlock(value);
      throw;
    }
    Block* block = static_cast<Content*>(value.data)->block;
    lock.unlock();
    expect(pool_->data(block), storage.size, storage.number);
    lock.lock();
    engine_.unlock(value);
  }

  void drop(std::unique_ptr<Storage> storage) {
    Lock lock(engine_.mutex());
    if (storage->content) {
      if (storage->value) storage->value->home = nullptr;
      unreference(storage->content);
    } else {
      engine_.dropped(*storage->value);
    }
  }

  void evict(Storage& storage) {
    Lock lock(engine_.mutex());
    if (!storage.content && storage.value->resident() && !storage.value->locks) {
      engine_.evict(*storage.value);
    }
  }

  void finish() {
    std::lock_guard<std::recursive_mutex> turn(turn_);
    Lock lock(engine_.mutex());
    if (engine_.stats().rematerializations == 0) fail("nothing was recomputed");
    if (engine_.stats().values || engine_.stats().ops) fail("records outlive the program");
    if (pool_->live() != 0) fail("blocks were lost");
  }

  void check() {
    Lock lock(engine_.mutex());
    engine_.check(true);
  }

  void recompute(Op& op, Lock& lock) override {
    const Recipe& recipe = *static_cast<const Recipe*>(op.payload());
    std::vector<const void*> data;
    std::vector<Number> numbers;
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      data.push_back(pool_->data(static_cast<Content*>(op.uses()[i].value->data)->block));
    }
    Block* block = make(recipe.size, lock);
    lock.unlock();
    for (const void* input : data) numbers.push_back(*static_cast<const Number*>(input));
    fill(pool_->data(block), recipe.size, EngineHarness::content_of(recipe.name, numbers, 0));
    lock.lock();
    Value* value = op.outputs()[0];
    if (!value || value->resident()) fail("a value was recomputed twice");
    engine_.restore(*value, new Content{block});
  }
  void release(Value& value, Loss) override { unreference(static_cast<Content*>(value.data)); }
  void make_ordinary(Value& value) override {
    auto* content = static_cast<Content*>(value.data);
    if (auto* storage = static_cast<Storage*>(value.home)) {
      storage->content = content;  // One reference for the storage, one for the constant.
      ++content->references;
    }
  }
  const Pool* pool_of_values() const override { return pool_.get(); }
  std::pair<Bytes, Bytes> free_neighbours(const Value& value) const override {
    return pool_->free_neighbours(static_cast<Content*>(value.data)->block);
  }
  void forget(Value& value) override {
    if (auto* storage = static_cast<Storage*>(value.home)) storage->value = nullptr;
    unreference(static_cast<Content*>(value.data));
  }
  void forget(Op&) override {}

 private:
  struct Recipe {
    Number name;
    bool in_place;
    Bytes size;
  };

  static Number number_of(Number name, const std::vector<Storage*>& inputs) {
    std::vector<Number> numbers;
    for (Storage* input : inputs) numbers.push_back(input->number);
    return EngineHarness::content_of(name, numbers, 0);
  }

  std::vector<const void*> inputs_of(const std::vector<Value*>& values) const {
    std::vector<const void*> data;
    for (Value* value : values) {
      data.push_back(pool_->data(static_cast<Content*>(value->data)->block));
    }
    return data;
  }

  void compute(Number name, const std::vector<Storage*>& inputs,
               const std::vector<const void*>& data, void* result, Bytes size, Lock& lock) const {
    lock.unlock();
    for (std::size_t i = 0; i < data.size(); ++i) {
      expect(data[i], inputs[i]->size, inputs[i]->number);
    }
    fill(result, size, number_of(name, inputs));
    lock.lock();
  }

  Value& value_of(Storage& storage) {
    if (!storage.value) {
      storage.value = &engine_.constant(storage.size, &storage, storage.content);
      ++storage.content->references;
    }
    return *storage.value;
  }

  void unreference(Content* content) {
    if (--content->references) return;
    pool_->free(content->block);
    delete content;
  }

  Block* make(Bytes size, Lock&) {
    while (true) {
      if (Block* block = pool_->allocate(size, Fit::kRemap)) return block;
      if (!engine_.eviction().evict_one()) throw std::bad_alloc();
    }
  }

  void bring_back(Value& value, Lock& lock) {
    if (value.resident()) return;
    lock.unlock();
    std::lock_guard<std::recursive_mutex> turn(turn_);
    lock.lock();
    engine_.materialize(value, lock);
  }

  Pool::Handle pool_;
  Engine engine_;
  std::recursive_mutex turn_;
};

}  // namespace dtr::stress
