// Threads allocate, write, read and free in one pool: on memory of the host, and on the fake driver
// with a stream for each thread.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "tests/stress/stress.h"

namespace dtr::stress {
namespace {

void stress_pool(Pool& pool, int rounds, const std::vector<Stream>& streams) {
  in_threads([&](int thread) {
    struct Held {
      Block* block;
      Bytes size;
      Number number;
    };
    Random random(thread);
    std::vector<Held> held;
    Stream stream = streams.empty() ? 0 : streams[thread];
    for (int round = 0; round < rounds; ++round) {
      std::size_t action = below(random, 100);
      if (action < 55 || held.empty()) {
        Bytes size = 8 * static_cast<Bytes>(1 + below(random, action < 5 ? 40000 : 500));
        Block* block = pool.allocate(size, action % 2 ? Fit::kRemap : Fit::kCommitted, stream);
        if (!block) continue;
        held.push_back({block, size, random()});
        fill(pool.data(block), size, held.back().number);
      } else if (action < 97) {
        std::size_t at = below(random, held.size());
        expect(pool.data(held[at].block), held[at].size, held[at].number);
        if (pool.find(pool.data(held[at].block)) != held[at].block) fail("a block is not found");
        pool.free_neighbours(held[at].block);
        pool.free(held[at].block);
        held[at] = held.back();
        held.pop_back();
      } else if (action == 97) {
        pool.trim();
      } else if (action == 98) {
        pool.check();
      } else {
        PoolStats stats = pool.stats();
        if (stats.live > stats.budget || stats.peak > stats.budget) fail("the budget was passed");
      }
    }
    for (const Held& one : held) {
      expect(pool.data(one.block), one.size, one.number);
      pool.free(one.block);
    }
  });
  pool.check();
  if (pool.live() != 0) fail("blocks were lost");
}

// A stream for each thread, as a program would make them.
std::vector<Stream> driver_streams() {
  void* driver = dlopen(std::getenv("DTR_ALLOC_LIBCUDA"), RTLD_NOW);
  if (!driver) fail("DTR_ALLOC_LIBCUDA names no driver");
  const auto call = [driver](const char* name, auto... arguments) {
    auto* entry = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(driver, name));
    if (entry(arguments...) != 0) fail(std::string(name) + " failed");
  };
  call("cuInit", 0u);
  call("cuCtxPushCurrent_v2", reinterpret_cast<void*>(1));
  std::vector<Stream> streams;
  for (int i = 0; i < kThreads; ++i) {
    void* made = nullptr;
    call("cuStreamCreate", &made, 1u);
    streams.push_back(reinterpret_cast<Stream>(made));
  }
  void* popped = nullptr;
  call("cuCtxPopCurrent_v2", &popped);
  return streams;
}

}  // namespace

void pool() {
  for (Bytes budget : {Bytes{1} << 20, Bytes{16} << 20}) {
    Pool::Handle pool = Pool::create(make_host_arena(2 * budget), budget);
    stress_pool(*pool, 3000, {});
  }
}

void streams() {
  Pool::Handle pool = Pool::create(make_cuda_arena(Bytes{32} << 20, 0), Bytes{16} << 20);
  stress_pool(*pool, 600, driver_streams());
}

}  // namespace dtr::stress
