// Runs a recipe again. The operator's arguments get the memory of the values that the recipe reads.
// An argument that the operator writes gets a copy of the value, or the value's own memory if
// nothing else needs the old content. Functions are called with the engine's lock held, and release
// it while the operator runs.

#pragma once

#include <functional>

#include "runtime/csrc/live/machine/under_way.h"
#include "runtime/csrc/live/recipes/recipe.h"
#include "runtime/csrc/live/storages/mutation_detector.h"
#include "runtime/csrc/live/storages/storage_table.h"
#include "runtime/csrc/live/trace/event_log.h"

namespace dtr {

class Replayer {
 public:
  // `detector` may be null.
  Replayer(StorageTable& storages, UnderWay& under_way, MutationDetector* detector)
      : storages_(storages), under_way_(under_way), detector_(detector) {}

  // Recomputes the missing outputs of `op`; returns their bytes. Calls `ran` when the operator has
  // run, before a value gets its result.
  Bytes recompute(Op& op, Lock& lock, const std::function<void()>& ran);

  // For tests and debug mode: replays `op`, and returns a text that names the first difference from
  // the outputs in memory, or "". All inputs and outputs of `op` are resident and locked.
  std::string difference(Op& op, Lock& lock);

 private:
  struct Copy {
    std::size_t storage;
    const void* from;
  };
  using Copies = c10::SmallVector<Copy, 2>;
  using Storages = c10::SmallVector<c10::Storage, 8>;
  using Results = c10::SmallVector<at::Tensor, 4>;

  class Arguments;
  struct Burial {
    Results results;
    StorageTable& storages;
    ~Burial();
  };

  Results replay(Op& op, Lock& lock);
  void verify_constants(Op& op) const;
  static Results run(Replay replay);
  void drop_what_nobody_lacks(Op& op, Results& results, Lock& lock);
  std::string difference(Op& op, const Results& results) const;
  void lay_over(Op& op, std::uint32_t use, Storages& storages, Copies& copies);
  void make_own(const Recipe& recipe, Storages& storages, const Copies& copies, Lock& lock);
  c10::Storage over(at::DataPtr&& data, Bytes size) const;
  void adopt(Value& value, c10::StorageImpl* made, const OperatorInfo& by);

  StorageTable& storages_;
  Engine& engine_ = storages_.engine();
  Memory& memory_ = storages_.memory();
  const SessionDevice& device_ = storages_.device();
  UnderWay& under_way_;
  MutationDetector* const detector_;
};

}  // namespace dtr
