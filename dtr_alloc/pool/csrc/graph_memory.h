// Memory of captured graphs (and of torch's MemPools, which use the same calls): what is allocated
// while work of a stream is routed into such a pool.
//
// A captured kernel runs later, again and again, on the addresses it was captured with. So a block
// allocated in a capture never returns to the pool when it is freed: it waits here, for requests of
// the same capture on the same stream, whose kernels come later in the graph, until the last user
// of the graph's pool lets it go. Blocks freed by others meanwhile are the quarantine's (pool.h).
//
// Requests take the smallest waiting block that holds them and is at most twice as large: a block
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

  // Requests of streams that pass the filter belong to `id` from now on; one more use of `id`. The
  // end keeps the use, release() gives it back.
  void begin(Id id, Filter filter);
  void end(Id id);  // Throws std::invalid_argument where there was no begin.
  void use(Id id);
  // The last one frees what waits; what is live becomes ordinary. The graph may still run, on any
  // stream: all of it waits for every stream that the pool has met.
  void release(Id id);
  int uses(Id id) const;

  // Whether any request may be ours. Lock-free, so that ordinary programs pay one load.
  bool routing() const { return routing_.load(std::memory_order_acquire) > 0; }
  bool empty() const { return blocks_count_.load(std::memory_order_acquire) == 0; }

  // A waiting block for a request of the stream, or null.
  Block* take(Bytes size, Stream stream);
  void adopt(Block* block, Stream stream);  // Made for the request, if it is ours.
  bool keep(Block* block);                  // Freed by the program: whether it waits here now.
  // Other streams of the capture read the block: freed, it is given to nobody, since no event may
  // be asked about them.
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
    std::vector<Block*> shared;  // Freed too.
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
