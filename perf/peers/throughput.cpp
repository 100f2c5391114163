// Plays one program of requests against one allocator, on some threads, and prints for each round
// nanoseconds a pair of allocate and free. throughput.py writes the programs, builds this, and
// starts it once for each allocator: `malloc` is whatever the process was preloaded with.
//
//     throughput FILE ALLOCATOR THREADS ROUNDS TOUCH
//
// FILE holds int64: a positive number allocates that many bytes, -1 - k frees the k-th allocation.
// What is live at the end is freed. TOUCH 1 writes a byte in each 4 KiB of every block; 2 writes
// all of it.

#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace {

using dtr::Bytes;

constexpr Bytes kBudget = Bytes{256} << 30;  // Of the virtual arena; nothing is refused.
constexpr Bytes kHostBudget = Bytes{12} << 30;

[[noreturn]] void fail(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::exit(2);
}

struct PoolAllocator {
  dtr::Pool::Handle pool;

  explicit PoolAllocator(bool host)
      : pool(host ? dtr::Pool::create(dtr::make_host_arena(2 * kHostBudget), kHostBudget)
                  : dtr::Pool::create(dtr::make_virtual_arena(kBudget), kBudget)) {}
  dtr::Block* allocate(Bytes size) { return pool->allocate(size, dtr::Fit::kCommitted); }
  void free(dtr::Block* block) { pool->free(block); }
  void* data(const dtr::Block* block) { return pool->data(block); }
  using Handle = dtr::Block*;
};

struct Malloc {
  void* allocate(Bytes size) { return std::malloc(static_cast<std::size_t>(size)); }
  void free(void* block) { std::free(block); }
  void* data(void* block) { return block; }
  using Handle = void*;
};

// c10::alloc_cpu and c10::free_cpu of the libc10.so that LIBC10 names.
struct Torch {
  void* (*alloc_cpu)(std::size_t);
  void (*free_cpu)(void*);

  Torch() {
    const char* path = std::getenv("LIBC10");
    void* library = path != nullptr ? dlopen(path, RTLD_NOW) : nullptr;
    if (library == nullptr) fail("LIBC10 must name torch's libc10.so");
    alloc_cpu = reinterpret_cast<decltype(alloc_cpu)>(dlsym(library, "_ZN3c109alloc_cpuEm"));
    free_cpu = reinterpret_cast<decltype(free_cpu)>(dlsym(library, "_ZN3c108free_cpuEPv"));
    if (alloc_cpu == nullptr || free_cpu == nullptr) fail("libc10.so has no alloc_cpu");
  }
  void* allocate(Bytes size) { return alloc_cpu(static_cast<std::size_t>(size)); }
  void free(void* block) { free_cpu(block); }
  void* data(void* block) { return block; }
  using Handle = void*;
};

void touch(void* data, Bytes size, int how) {
  if (how == 2) {
    std::memset(data, 1, static_cast<std::size_t>(size));
  } else {
    for (Bytes i = 0; i < size; i += 4096) static_cast<volatile char*>(data)[i] = 1;
  }
}

template <class Allocator>
void play(Allocator& allocator, const std::vector<Bytes>& program, int how,
          std::vector<typename Allocator::Handle>& blocks) {
  blocks.clear();
  for (const Bytes request : program) {
    if (request < 0) {
      auto& block = blocks[static_cast<std::size_t>(-1 - request)];
      allocator.free(block);
      block = nullptr;
      continue;
    }
    auto block = allocator.allocate(request);
    if (block == nullptr) fail("a request was refused");
    if (how != 0) touch(allocator.data(block), request, how);
    blocks.push_back(block);
  }
  for (auto block : blocks) {
    if (block != nullptr) allocator.free(block);
  }
}

template <class Allocator>
void measure(Allocator allocator, const std::vector<Bytes>& program, int threads, int rounds,
             int how) {
  std::size_t pairs = 0;
  for (const Bytes request : program) pairs += request > 0;
  using Clock = std::chrono::steady_clock;
  const auto count = static_cast<std::size_t>(threads);
  std::vector<Clock::time_point> begins(count), ends(count);
  std::barrier line(threads);
  std::vector<std::thread> players;
  for (std::size_t t = 0; t < count; t++) {
    players.emplace_back([&, t] {
      std::vector<typename Allocator::Handle> blocks;
      blocks.reserve(pairs);
      for (int round = 0; round <= rounds; round++) {  // The first warms up.
        line.arrive_and_wait();
        begins[t] = Clock::now();
        play(allocator, program, how, blocks);
        ends[t] = Clock::now();
        line.arrive_and_wait();
        if (t > 0 || round == 0) continue;
        const std::chrono::duration<double, std::nano> took =
            *std::ranges::max_element(ends) - *std::ranges::min_element(begins);
        std::printf("%.3f\n", took.count() / static_cast<double>(pairs * count));
      }
    });
  }
  for (auto& player : players) player.join();
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) fail("throughput FILE ALLOCATOR THREADS ROUNDS TOUCH");
  std::ifstream file(words[1], std::ios::binary | std::ios::ate);
  std::vector<Bytes> program(static_cast<std::size_t>(file.tellg()) / sizeof(Bytes));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(program.data()),
            static_cast<std::streamsize>(program.size() * sizeof(Bytes)));
  if (!file) fail("the program cannot be read");
  const std::string name = words[2];
  const int threads = std::atoi(words[3]), rounds = std::atoi(words[4]), how = std::atoi(words[5]);
  if (name == "virtual") {
    measure(PoolAllocator(false), program, threads, rounds, how);
  } else if (name == "host") {
    measure(PoolAllocator(true), program, threads, rounds, how);
  } else if (name == "malloc") {
    measure(Malloc(), program, threads, rounds, how);
  } else if (name == "torch") {
    measure(Torch(), program, threads, rounds, how);
  } else {
    fail("ALLOCATOR is virtual, host, malloc or torch");
  }
}
