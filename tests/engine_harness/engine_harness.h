// Runs the engine without tensors: a value is a size and a number that stands for its content, an
// operator is a cost, and memory is addresses. Tests compare it with a naive model. Time is the sum
// of operators' costs, so every run makes the same decisions.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/operator_call.h"

namespace dtr {

class EngineHarness final : public Executor {
 public:
  using Id = std::int64_t;  // Names a storage that the test's program holds. Counts from 0.

  struct Options {
    std::string image;  // A scoring kernel; if given, device 0 scores (device_scorer.h).
    Bytes spare = 0;    // Addresses beyond the budget.
    Bytes page = kGranule;
    // The time to move a page. If it is set, requests get room as in a scope (make_room.h). If not,
    // values are evicted by score until moving pages makes a hole.
    std::optional<Nanos> page_price;
  };

  EngineHarness(Bytes budget, const Heuristic& heuristic, const Options& options);
  EngineHarness(Bytes budget, const Heuristic& heuristic)
      : EngineHarness(budget, heuristic, Options{}) {}
  ~EngineHarness() override;

  Id constant(Bytes size, std::uint64_t content);

  // Runs operator `name` and returns the ids of its fresh results. `written` are positions in
  // `inputs`: the operator writes these storages in place. The content of result i, fresh results
  // first and then written ones, is content_of(name, contents of the inputs, i). Throws
  // std::bad_alloc if the results do not fit the budget; all contents are then as before the call.
  // `dropped` are positions in `inputs`: the program drops these storages while the operator runs.
  std::vector<Id> call(std::uint64_t name, Nanos cost, const std::vector<Id>& inputs,
                       const std::vector<std::uint32_t>& written, const std::vector<Bytes>& results,
                       const std::vector<std::uint32_t>& dropped = {});

  void drop(Id id);
  std::uint64_t read(Id id);  // Recomputes it if it is missing; returns its content.
  bool evict(Id id);
  void freeze(Id id);
  void cut_history(Id id);  // Makes it a constant if its history is outweighed().
  void commit();
  // From now on only the k-th request for memory, or only the k-th rerun, throws std::bad_alloc.
  void fail_allocation(std::int64_t k) { allocations_to_failure_ = k; }
  void fail_replay(std::int64_t k) { replays_to_failure_ = k; }
  bool resident(Id id) const;
  Bytes offset(Id id) const;  // Its block's, in the pool. It must be resident.
  // Allocates a block, without evictions, at the low end of the first hole with enough bytes and
  // pages, or at the high end of the last one. Returns its offset, or nothing if no hole fits.
  std::optional<Bytes> place(Bytes size, bool high) {
    const Place end = high ? Place::kHigh : Place::kLow;
    const Block* block = pool_->allocate(size, Fit::kCommitted, 0, end);
    return block ? std::optional(block->offset) : std::nullopt;
  }
  std::vector<Bytes> window(Bytes bytes);     // Returns where the cheapest window's values lie.
  Nanos time_window(Bytes bytes, int times);  // The shortest of `times` searches.

  EngineStats stats() const { return engine_.stats(); }
  std::int64_t device_choices() const {
    return engine_.eviction().selector().device()
               ? engine_.eviction().selector().device()->choices()
               : 0;
  }
  PoolStats pool_stats() const { return pool_->stats(); }
  std::vector<Id> take_evicted();  // Ids that lost contents since the last call; -1: a dropped id.
  void check() const;

  static std::uint64_t content_of(std::uint64_t name, const std::vector<std::uint64_t>& inputs,
                                  std::uint64_t result);

  void recompute(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void make_ordinary(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value& value) const override;
  const Pool* pool_of_values() const override { return pool_.get(); }
  void forget(Value& value) override;
  void forget(Op& op) override;

 private:
  struct Content;
  struct Holder;
  struct Payload;
  struct Fresh;

  Holder& holder(Id id) const;
  Value& value_of(Holder& holder);
  void let_go(Id id);
  Content* make(Bytes size, std::uint64_t number);
  Block* allocate(Bytes size);
  void unreference(Content* content);
  void require(Value& value, Lock& lock);
  void overwrite(Value& old, Op* op, std::uint16_t output, OperatorCall& call);
  std::vector<std::uint64_t> results_of(Op& op) const;

  Pool::Handle pool_;
  Engine engine_;
  const std::optional<Nanos> page_price_;
  std::int64_t allocations_to_failure_ = 0, replays_to_failure_ = 0;  // 0: no failure is planned.
  std::unordered_map<Id, std::unique_ptr<Holder>> holders_;
  std::vector<Id> evicted_;
  Id next_ = 0;
};

}  // namespace dtr
