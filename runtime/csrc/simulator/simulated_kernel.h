// Imitates an operator's kernel in a simulation: allocates and frees memory in the kernel's order.
// The runtime's traces list every request. In other logs, each fresh result (one with its own
// storage) is one request.

#pragma once

#include <utility>
#include <vector>

#include "runtime/csrc/simulator/live_simulation.h"

namespace dtr {

struct LiveSimulation::Kernel {
  Kernel(LiveSimulation& simulation, std::int64_t op) : simulation(simulation), op(op) {}
  ~Kernel() {  // Frees blocks that nobody took: after a failed run.
    for (Block* block : blocks) {
      if (block) simulation.free(block);
    }
  }

  // `releases`: whether the program releases storages meanwhile, as it does in the first run.
  void run(bool releases) {
    const Schedule& schedule = simulation.schedule_;
    simulation.placement_.learn(op);
    std::int64_t first = schedule.op_events_begin[op], end = schedule.op_events_begin[op + 1];
    for (std::int64_t i = first; i < end; ++i) {
      std::int64_t value = schedule.event_value[i];
      switch (schedule.event_kind[i]) {
        case Schedule::kAllocated:
          blocks.push_back(simulation.allocate(value, simulation.placement_.of(op, owner())));
          break;
        case Schedule::kFreed:
          simulation.free(std::exchange(blocks.at(value), nullptr));
          break;
        case Schedule::kReleased:
          if (releases) simulation.let_go(simulation.roots_[value]);
          break;
        case Schedule::kCopied:
          break;  // Only reruns copy: recompute() allocates the copies.
      }
    }
    if (first == end) {
      for (std::int64_t tensor = schedule.op_results_begin[op];
           tensor < schedule.op_results_begin[op + 1]; ++tensor) {
        if (simulation.fresh(tensor) && schedule.tensor_size[tensor] > 0) {
          blocks.push_back(simulation.allocate(schedule.tensor_size[tensor],
                                               simulation.placement_.of(op, tensor)));
        }
      }
    }
  }

  std::int64_t owner() const {  // Returns the result that gets the next block, or kTemporary.
    const Schedule& schedule = simulation.schedule_;
    for (std::int64_t tensor = schedule.op_results_begin[op];
         tensor < schedule.op_results_begin[op + 1]; ++tensor) {
      if (schedule.tensor_block[tensor] == static_cast<std::int64_t>(blocks.size())) return tensor;
    }
    return TwoEndedPlacement::kTemporary;
  }

  void* take(std::int64_t tensor) {  // Hands out a fresh result's block, or nowhere().
    const Schedule& schedule = simulation.schedule_;
    if (schedule.tensor_size[tensor] == 0) return simulation.nowhere();
    std::int64_t place = schedule.tensor_block[tensor];
    return std::exchange(blocks.at(place < 0 ? next++ : place), nullptr);
  }

  LiveSimulation& simulation;
  const std::int64_t op;
  std::vector<Block*> blocks;
  std::size_t next = 0;
};

}  // namespace dtr
