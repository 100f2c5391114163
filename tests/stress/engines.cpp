// Threads compute, write in place, drop, evict and commit under one budget.
#include <memory>
#include <utility>
#include <vector>

#include "tests/stress/machine.h"

namespace dtr::stress {
namespace {

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

}  // namespace

void engine() {
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

}  // namespace dtr::stress
