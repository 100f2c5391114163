// What all parts of the stress program use: threads, and blocks that are filled with a number that
// only the block's holder knows.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"

namespace dtr::stress {

using Number = std::uint64_t;
using Random = std::mt19937_64;

constexpr int kThreads = 4;

[[noreturn]] inline void fail(const std::string& sentence) {
  std::fprintf(stderr, "stress: %s\n", sentence.c_str());
  std::abort();
}

inline std::size_t below(Random& random, std::size_t end) { return random() % end; }

inline void fill(void* data, Bytes size, Number number) {
  auto* words = static_cast<Number*>(data);
  for (Bytes i = 0; i < size / 8; ++i) words[i] = number;
}

inline void expect(const void* data, Bytes size, Number number) {
  const auto* words = static_cast<const Number*>(data);
  for (Bytes i = 0; i < size / 8; ++i) {
    if (words[i] != number) fail("a block holds what its holder did not write");
  }
}

inline void in_threads(const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// The parts of the program.
void pool();
void streams();
void engine();

}  // namespace dtr::stress
