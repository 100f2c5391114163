// Pool and engine under threads, for the sanitizers: `make asan` and `make tsan` build this file,
// the sources that know neither torch nor Python, and the fake driver with them. A sanitized
// extension inside Python would report what Python and torch do as well; this program reports ours
// alone.
//
//     stress pool      threads allocate, write, read and free on memory of the host
//     stress streams   the same on the fake driver, a stream for each thread (DTR_ALLOC_LIBCUDA)
//     stress engine    threads compute, write in place, drop, evict and commit under one budget, with
//                      each neighbourhood and each policy; operators run without the engine's lock
//     stress engine_harness
//                      the engine on addresses alone, called from threads
//
// Each block is filled with a number that only its holder knows, and read back: a block that two
// threads share, or an operator that reads what is being written, ends the program with a sentence.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtr_alloc/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"
#include "tests/engine_harness/engine_harness.h"

namespace {

using namespace dtr;
using Number = std::uint64_t;
using Random = std::mt19937_64;

constexpr int kThreads = 4;

[[noreturn]] void fail(const std::string& sentence) {
  std::fprintf(stderr, "stress: %s\n", sentence.c_str());
  std::abort();
}

std::size_t below(Random& random, std::size_t end) { return random() % end; }

void fill(void* data, Bytes size, Number number) {
  auto* words = static_cast<Number*>(data);
  for (Bytes i = 0; i < size / 8; ++i) words[i] = number;
}

void expect(const void* data, Bytes size, Number number) {
  const auto* words = static_cast<const Number*>(data);
  for (Bytes i = 0; i < size / 8; ++i) {
    if (words[i] != number) fail("a block holds what its holder did not write");
  }
}

void in_threads(const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// ---- Pool

void stress_pool(Pool& pool, int rounds, const std::vector<Stream>& streams) {
  in_threads([&](int thread) {
    struct Held {
      Block* block;
      Bytes size;
      Number number;
    };
    Random random(thread);
    std::vector<Held> held;
    Stream stream = streams.empty() ? 0 : streams[thread];
    for (int round = 0; round < rounds; ++round) {
      std::size_t action = below(random, 100);
      if (action < 55 || held.empty()) {
        Bytes size = 8 * static_cast<Bytes>(1 + below(random, action < 5 ? 40000 : 500));
        Block* block = pool.allocate(size, action % 2 ? Fit::kRemap : Fit::kCommitted, stream);
        if (!block) continue;
        held.push_back({block, size, random()});
        fill(pool.data(block), size, held.back().number);
      } else if (action < 97) {
        std::size_t at = below(random, held.size());
        expect(pool.data(held[at].block), held[at].size, held[at].number);
        if (pool.find(pool.data(held[at].block)) != held[at].block) fail("a block is not found");
        pool.free_neighbours(held[at].block);
        pool.free(held[at].block);
        held[at] = held.back();
        held.pop_back();
      } else if (action == 97) {
        pool.trim();
      } else if (action == 98) {
        pool.check();
      } else {
        PoolStats stats = pool.stats();
        if (stats.live > stats.budget || stats.peak > stats.budget) fail("the budget was passed");
      }
    }
    for (const Held& one : held) {
      expect(pool.data(one.block), one.size, one.number);
      pool.free(one.block);
    }
  });
  pool.check();
  if (pool.live() != 0) fail("blocks were lost");
}

void stress_host_pool() {
  for (Bytes budget : {Bytes{1} << 20, Bytes{16} << 20}) {
    Pool::Handle pool = Pool::create(make_host_arena(2 * budget), budget);
    stress_pool(*pool, 3000, {});
  }
}

// A stream for each thread, as a program would make them.
std::vector<Stream> driver_streams() {
  void* driver = dlopen(std::getenv("DTR_ALLOC_LIBCUDA"), RTLD_NOW);
  if (!driver) fail("DTR_ALLOC_LIBCUDA names no driver");
  const auto call = [driver](const char* name, auto... arguments) {
    auto* entry = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(driver, name));
    if (entry(arguments...) != 0) fail(std::string(name) + " failed");
  };
  call("cuInit", 0u);
  call("cuCtxPushCurrent_v2", reinterpret_cast<void*>(1));
  std::vector<Stream> streams;
  for (int i = 0; i < kThreads; ++i) {
    void* made = nullptr;
    call("cuStreamCreate", &made, 1u);
    streams.push_back(reinterpret_cast<Stream>(made));
  }
  void* popped = nullptr;
  call("cuCtxPopCurrent_v2", &popped);
  return streams;
}

void stress_streams() {
  Pool::Handle pool = Pool::create(make_cuda_arena(Bytes{32} << 20, 0), Bytes{16} << 20);
  stress_pool(*pool, 600, driver_streams());
}

// ---- Engine

// What a session is to torch: storages, operators that run without the lock, and turns.
class Machine final : public Executor {
 public:
  struct Content {
    Block* block;
    int references = 1;
  };
  // A storage of the program's. One thread owns it; all may read those that are shared.
  struct Storage {
    Value* value = nullptr;
    Content* content = nullptr;  // While it is ordinary.
    Bytes size = 0;
    Number number = 0;  // What its holder knows to be there.
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

  // An operator with one result, or, with `in_place`, one that writes its first input.
  std::unique_ptr<Storage> call(Number name, const std::vector<Storage*>& inputs, Bytes size,
                                bool in_place) {
    std::unique_lock<std::recursive_mutex> turn(turn_, std::defer_lock);
    if (in_place) turn.lock();
    std::vector<Value*> values;
    Lock lock(engine_.mutex());
    struct Unlock {  // With the lock held, also by exception.
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
      if (engine_.outweighed(*value)) engine_.freeze(*value);
    }
    if (in_place && values[0]->constant()) {
      engine_.retire(*values[0], lock);
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
      if (values[0]->constant()) {  // Policy::kBanish may have made it one meanwhile.
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

  // Executor.
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
      if (!engine_.evict_one()) throw std::bad_alloc();
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

void stress_machine(const Heuristic& heuristic, Policy policy, int rounds) {
  constexpr Bytes kLargest = 8192;
  Machine machine(Bytes{512} << 10, heuristic, policy);
  std::vector<std::unique_ptr<Machine::Storage>> shared;
  for (Number i = 0; i < 4; ++i) shared.push_back(machine.constant(kLargest, 1000 + i));
  for (Number i = 0; i < 12; ++i) {
    shared.push_back(machine.call(i, {shared[i].get(), shared[i / 2].get()}, kLargest, false));
  }
  std::vector<std::unique_ptr<Machine::Storage>> owned[kThreads];
  int phase = 0;
  const auto work = [&](int thread) {
    Random random(thread + 10 * phase);
    auto& own = owned[thread];
    const auto any = [&] {
      std::size_t at = below(random, shared.size() + own.size());
      return at < shared.size() ? shared[at].get() : own[at - shared.size()].get();
    };
    for (int round = 0; round < rounds; ++round) {
      std::size_t action = below(random, 100);
      try {
        if (own.size() < 4 || action < 35) {
          std::vector<Machine::Storage*> inputs{any(), any()};
          Bytes size = 8 * static_cast<Bytes>(1 + below(random, kLargest / 8));
          own.push_back(machine.call(random(), inputs, size, false));
        } else if (action < 45) {
          machine.call(random(), {own[below(random, own.size())].get(), shared[0].get()}, 0, true);
        } else if (action < 65) {
          machine.read(*any());
        } else if (action < 85) {
          std::size_t at = below(random, own.size());
          machine.drop(std::move(own[at]));
          own[at] = std::move(own.back());
          own.pop_back();
        } else {
          machine.evict(*any());
        }
      } catch (const std::bad_alloc&) {  // The other threads hold the rest: give something back.
        while (own.size() > 2) {
          machine.drop(std::move(own.back()));
          own.pop_back();
        }
      }
    }
  };
  for (; phase < 10; ++phase) {
    in_threads(work);
    machine.check();  // Between operators only: one that runs holds values nobody else knows.
  }
  for (auto& own : owned) {
    for (auto& storage : own) machine.drop(std::move(storage));
  }
  for (auto& storage : shared) machine.read(*storage);
  machine.check();
  for (auto& storage : shared) machine.drop(std::move(storage));
  machine.finish();
}

void stress_engine() {
  Heuristic heuristic;
  for (auto kind :
       {NeighbourhoodKind::kNone, NeighbourhoodKind::kEvictedClass, NeighbourhoodKind::kLineage,
        NeighbourhoodKind::kFull, NeighbourhoodKind::kAncestors}) {
    heuristic.neighbourhood = kind;
    for (Policy policy : {Policy::kEager, Policy::kIgnore}) {
      stress_machine(heuristic, policy, 200);
    }
  }
  heuristic.orphans_first = heuristic.stepping_stones = true;
  stress_machine(heuristic, Policy::kEager, 200);
  heuristic = {};
  heuristic.fragmentation = 1;
  stress_machine(heuristic, Policy::kEager, 200);
}

// ---- The engine on addresses alone

void stress_engine_harness() {
  EngineHarness run(Bytes{256} << 10, Heuristic{});
  std::vector<EngineHarness::Id> shared;
  for (Number i = 0; i < 4; ++i) shared.push_back(run.constant(4096, i));
  in_threads([&](int thread) {
    Random random(thread);
    std::vector<std::pair<EngineHarness::Id, Number>> own;
    for (int round = 0; round < 2000; ++round) {
      try {
        Number name = random(), from = below(random, shared.size());
        std::vector<EngineHarness::Id> made = run.call(name, 10ns, {shared[from]}, {}, {4096});
        own.emplace_back(made[0], EngineHarness::content_of(name, {from}, 0));
        std::size_t at = below(random, own.size());
        if (run.read(own[at].first) != own[at].second) fail("a replay computed something else");
        if (own.size() < 20) continue;
        run.drop(own[at].first);
        own[at] = own.back();
        own.pop_back();
      } catch (const std::bad_alloc&) {
        run.drop(own.back().first);
        own.pop_back();
      }
    }
    for (auto& [id, number] : own) run.drop(id);
  });
  run.check();
}

}  // namespace

int main(int count, char** arguments) {
  const std::pair<const char*, void (*)()> parts[] = {{"pool", stress_host_pool},
                                                      {"streams", stress_streams},
                                                      {"engine", stress_engine},
                                                      {"engine_harness", stress_engine_harness}};
  for (const auto& [name, run] : parts) {
    bool asked = count == 1;
    for (int i = 1; i < count; ++i) asked |= std::strcmp(arguments[i], name) == 0;
    if (!asked) continue;
    run();
    std::printf("%s: done\n", name);
  }
}
