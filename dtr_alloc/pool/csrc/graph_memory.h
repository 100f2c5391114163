// Keeps the memory of captured graphs (and of torch's MemPools, which use the same calls): the
// blocks that were allocated while requests of a stream were routed to the graph's pool.
//
// A captured kernel runs later, again and again, on the addresses it was captured with. So a block
// allocated in a capture does not return to the pool when it is freed. The block waits here until
// the last use of the graph's pool ends. Until then requests of the same capture on the same stream
// may take it: their kernels come later in the graph. Other blocks freed in the capture wait in the
// quarantine (pool.h).
//
// A request takes the smallest waiting block that holds it and is at most twice as large. A block
// is not cut, since the rest would need its own bookkeeping for a few bytes.

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

  // Routes requests of streams that pass the filter to `id` until end(), and adds a use of `id`,
  // which lasts until release().
  void begin(Id id, Filter filter);
  void end(Id id);  // Throws std::invalid_argument without a begin().
  void use(Id id);
  // Ends a use. With the last use, frees the waiting blocks; live blocks become ordinary. The graph
  // may still run on any stream, so reuse waits for all known streams.
  void release(Id id);
  int uses(Id id) const;

  // Whether any stream is routed. Lock-free, so that ordinary programs pay one load.
  bool routing() const { return routing_.load(std::memory_order_acquire) > 0; }
  bool empty() const { return blocks_count_.load(std::memory_order_acquire) == 0; }

  // A waiting block for a request of the stream, or null.
  Block* take(Bytes size, Stream stream);
  void adopt(Block* block, Stream stream);  // Keeps track of a new block if its stream is routed.
  bool keep(Block* block);  // For a block that the program frees: returns whether it waits here.
  // Notes that other streams read the block. Once freed, it serves no request, since events cannot
  // be queried in a capture.
  void share(Block* block);
  std::vector<const Block*> live(Id id) const;

 private:
  struct Waiting {
    Stream stream;
    Block* block;
  };
  struct Private {
    int uses = 0;
    std::multimap<Bytes, Waiting> waiting;
    std::vector<Block*> shared;  // Freed, but serve no request.
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
