// Takes a session's host memory from torch's own CPU allocator instead of a pool, and counts it. It
// is for programs that need each tensor to be an ordinary allocation of its own.
//
// A block is one allocation of torch's allocator, whose deleter frees it. Until the block is freed,
// the tensor's DataPtr has our deleter (cpu_allocator.h), which finds the block by its address in a
// table. The DataPtr of an untracked tensor cannot point to the block: its context must equal the
// data pointer, since torch compares the two. Nor can a header lie before the data, which would
// break code that frees by the pointer alone. While a session tracks the tensor, from adopt() to
// disown(), the context is the tensor's value, which knows the block, so the table has no entry.
// All scopes share the table, since tensors outlive scopes.
//
// The budget bounds the sum of all blocks' sizes, each rounded up to granules as in a pool. It does
// not bound malloc's overhead: headers, and freed blocks that malloc keeps.
//
// Every member is thread-safe. A mutex guards the table; its holder never calls torch's allocator.

#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>

#include "dtr_alloc/pool/csrc/memory.h"

namespace dtr {

class GuestMemory final : public Memory {
 public:
  // `budget` is above 0 and at most kLargestBudget.
  static Handle create(at::Allocator& allocator, Bytes budget);

  // Whether a live block of any GuestMemory starts at `data`, and no session tracks the block.
  static bool holds(const void* data);
  static void free(const void* data);  // Frees a block for which holds() is true.
  // Called before and after a fork, so that the child does not inherit a table that is locked.
  static void lock_all();
  static void unlock_all();

  Block* allocate(Bytes size, Fit fit, Stream stream) override;
  void free(Block* block) override;
  Block* find(const void* data) const override;
  Block* adopt(void* data, Bytes size) override;
  void disown(Block* block) override;
  bool let_go(Block* block) override;

  Bytes budget() const override { return limit_; }
  Bytes largest_budget() const override { return kLargestBudget; }
  Bytes live() const override { return live_; }
  PoolStats stats() const override;
  void reset_peak() override;
  void set_limit(Bytes limit) override;
  Bytes trim() override;
  void check() const override;

 private:
  GuestMemory(at::Allocator& allocator, Bytes budget)
      : Memory(0), allocator_(allocator), limit_(budget) {}

  static void free(Block& block, std::unique_lock<std::mutex> lock);
  void retire() override;
  bool over() const { return retired_ && allocations_ == frees_; }
  void uncount(const Block& block);
  at::DataPtr ask(Bytes size);

  at::Allocator& allocator_;
  std::atomic<Bytes> limit_;
  // The members below, except failures_, are written with the table's mutex held.
  std::atomic<Bytes> live_ = 0;
  Bytes peak_ = 0, allocated_ = 0;
  std::int64_t allocations_ = 0, frees_ = 0, peak_blocks_ = 0;
  bool retired_ = false;
  std::atomic<std::int64_t> failures_ = 0;
};

}  // namespace dtr
