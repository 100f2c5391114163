// Imitates an operator's kernel in a simulation: allocates and frees the kernel's memory, in order.
// The runtime's traces list every request; in other logs each fresh result is one request.

#pragma once

#include <utility>
#include <vector>

#include "runtime/csrc/simulator/live_simulation.h"

namespace dtr {

struct LiveSimulation::Kernel {
  Kernel(LiveSimulation& simulation, std::int64_t op) : simulation(simulation), op(op) {}
  ~Kernel() {  // Frees blocks not taken: temporaries of a failed run.
    for (Block* block : blocks) {
      if (block) simulation.free(block);
    }
  }

  // `releases`: whether storages of the program die during the run, as in the first run.
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
          break;  // Only reruns copy: recompute() allocates.
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

  // The result that gets the next block, or TwoEndedPlacement::kTemporary.
  std::int64_t owner() const {
    const Schedule& schedule = simulation.schedule_;
    for (std::int64_t tensor = schedule.op_results_begin[op];
         tensor < schedule.op_results_begin[op + 1]; ++tensor) {
      if (schedule.tensor_block[tensor] == static_cast<std::int64_t>(blocks.size())) return tensor;
    }
    return TwoEndedPlacement::kTemporary;
  }

  // The block of a fresh result, or nowhere() if the result has no bytes.
  void* take(std::int64_t tensor) {
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
