// Keeps the blocks of captured CUDA graphs, and of torch's MemPools, for which torch makes the same
// calls as for graphs. Torch gives each graph a private pool, named by an Id. During a capture,
// requests on some streams are routed to a private pool, and the blocks that they get belong to it.
//
// A captured kernel runs later, again and again, on the addresses it was captured with. So a block
// allocated in a capture does not return to the Pool when it is freed. The block waits here until
// the last use of its private pool ends. Until then, requests that are routed to the same private
// pool on the same stream may take the block: their kernels run after those of the freed tensor.
// Other blocks that are freed during a capture wait in the Pool's quarantine (pool.h).
//
// A request takes the smallest waiting block that holds it, if that is at most twice as large.
// Waiting blocks are not cut: the rest would need bookkeeping of its own for a few bytes.

#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr {

class GraphMemory {
 public:
  using Id = std::pair<std::uint64_t, std::uint64_t>;
  using Filter = std::function<bool(Stream)>;

  explicit GraphMemory(Pool& pool) : pool_(pool) {}

  // Until end(), routes requests on streams for which `filter` is true to the private pool `id`.
  // Also counts one more use of `id`, until release().
  void begin(Id id, Filter filter);
  void end(Id id);  // Throws std::invalid_argument without a begin().
  void use(Id id);  // Counts one more use.
  // Ends a use. After the last one, frees the waiting blocks, and live blocks become ordinary. The
  // graph may still run on any stream, so reuse of a block then waits for all known streams.
  void release(Id id);
  int uses(Id id) const;

  // Whether any requests are routed now. Lock-free: without captures, it costs a program one load.
  bool routing() const { return routing_.load(std::memory_order_acquire) > 0; }
  bool empty() const { return blocks_count_.load(std::memory_order_acquire) == 0; }

  // Returns a waiting block for a request of `size` bytes on the stream, or null.
  Block* take(Bytes size, Stream stream);
  void adopt(Block* block, Stream stream);  // Keeps track of a new block if its stream is routed.
  bool keep(Block* block);  // Call it when the program frees a block: true if the block waits here.
  // Notes that `stream` uses the block, too. If the block is another stream's, it serves no request
  // after its free until the private pool's last use ends: we cannot query events in a capture, and
  // so cannot learn when `stream` is done.
  void share(Block* block, Stream stream);
  std::vector<const Block*> live(Id id) const;

 private:
  struct Waiting {
    Stream stream;
    Block* block;
  };
  struct Private {
    int uses = 0;
    std::multimap<Bytes, Waiting> waiting;
    std::vector<Block*> shared;  // Freed blocks that serve no request: see share().
  };
  struct Member {
    Id id;
    Stream stream;
    bool live, shared;
  };
  const Id* route(Stream stream) const DTR_REQUIRES(mutex_);

  Pool& pool_;
  mutable Mutex mutex_;
  std::atomic<int> routing_{0};
  std::atomic<std::int64_t> blocks_count_{0};
  std::vector<std::pair<Id, Filter>> routes_ DTR_GUARDED_BY(mutex_);
  std::map<Id, Private> pools_ DTR_GUARDED_BY(mutex_);
  std::unordered_map<Block*, Member> blocks_ DTR_GUARDED_BY(mutex_);
};

}  // namespace dtr
