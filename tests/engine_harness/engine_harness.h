// The engine without tensors: a value is a size and a number that stands for its content, an
// operator is a cost, and memory is addresses. Tests drive it against a naive model. Time is the sum of
// costs, so every decision can be repeated.

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
  // What a program holds: one storage. Ids are given in order, from 0.
  using Id = std::int64_t;

  struct Options {
    std::string image;  // Where it is not empty, device 0 scores (device_scorer.h).
    Bytes spare = 0;    // Addresses beyond the budget.
    Bytes page = kGranule;
    // To move a page. Where it is given, requests get room as in a scope (make_room.h); else the
    // least scores go until pages that move make a hole.
    std::optional<Nanos> page_price;
  };

  EngineHarness(Bytes budget, const Heuristic& heuristic, const Options& options);
  EngineHarness(Bytes budget, const Heuristic& heuristic)
      : EngineHarness(budget, heuristic, Options{}) {}
  ~EngineHarness() override;

  Id constant(Bytes size, std::uint64_t content);

  // Runs operator `name` and returns the ids of its fresh results. `written` are positions in
  // `inputs`: those storages hold a new version afterwards. The content of result i, fresh results
  // first and then written ones, is content_of(name, contents of the inputs, i). Throws
  // std::bad_alloc where the budget cannot hold it; every content is then as before. `dropped` are
  // positions in `inputs`: those storages the program lets go while the operator runs.
  std::vector<Id> call(std::uint64_t name, Nanos cost, const std::vector<Id>& inputs,
                       const std::vector<std::uint32_t>& written, const std::vector<Bytes>& results,
                       const std::vector<std::uint32_t>& dropped = {});

  void drop(Id id);
  std::uint64_t read(Id id);  // Materializes it and returns its content.
  bool evict(Id id);
  void freeze(Id id);
  // Makes it constant if Histories::outweighed, as a session does before a call.
  void cut_history(Id id);
  void commit();
  // The k-th request for memory, or operator that is run again, from now on throws std::bad_alloc.
  void fail_allocation(std::int64_t k) { allocations_to_failure_ = k; }
  void fail_replay(std::int64_t k) { replays_to_failure_ = k; }
  bool resident(Id id) const;
  Bytes offset(Id id) const;  // In the pool; it must be resident.
  // Asks the pool alone for the low end of its first hole that has the pages, or for the high end of
  // its last; no storage holds the block. Its offset; nothing if there is no such hole.
  std::optional<Bytes> place(Bytes size, bool high) {
    const Place end = high ? Place::kHigh : Place::kLow;
    const Block* block = pool_->allocate(size, Fit::kCommitted, 0, end);
    return block ? std::optional(block->offset) : std::nullopt;
  }
  // Of the cheapest window for a request: offsets of its values in the pool, in order.
  std::vector<Bytes> window(Bytes bytes);
  Nanos time_window(Bytes bytes, int times);  // The least of so many searches.

  EngineStats stats() const { return engine_.stats(); }
  std::int64_t device_choices() const {
    return engine_.eviction().selector().device()
               ? engine_.eviction().selector().device()->choices()
               : 0;
  }
  PoolStats pool_stats() const { return pool_->stats(); }
  // Ids that lost their content since last asked, in order; -1 for what no id holds any more.
  std::vector<Id> take_evicted();
  void check() const;

  static std::uint64_t content_of(std::uint64_t name, const std::vector<std::uint64_t>& inputs,
                                  std::uint64_t result);

  // Executor.
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
  std::int64_t allocations_to_failure_ = 0, replays_to_failure_ = 0;  // 0: none is to fail.
  std::unordered_map<Id, std::unique_ptr<Holder>> holders_;
  std::vector<Id> evicted_;
  Id next_ = 0;
};

}  // namespace dtr
