// Each allocation of EngineHarness::call fails once: the first one in the first round, the second
// in the second, until the call needs no more. A call that failed leaves no records behind, and
// once the harness is gone no memory is left. Prints what is, and how many allocations failed.
//
// Most records lie in a slab that is there. So all is done with more and more constants before the
// call: then each of its records is the first of a slab once (records.h).

#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "tests/engine_harness/engine_harness.h"

namespace {

constexpr int kNone = -1;

int until_failure = kNone;
int blocks = 0;

}  // namespace

void* operator new(std::size_t size) {
  if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  ++blocks;
  return memory;
}

void operator delete(void* memory) noexcept {
  if (!memory) return;
  --blocks;
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace {

using namespace dtr;
using Id = EngineHarness::Id;

constexpr int kMostEarlier = 400;  // A slab holds some 350 values.

// Whether the last of some calls lacked `allocation`.
bool lacks(int allocation, int earlier) {
  EngineHarness run(Bytes{1} << 20, Heuristic{});
  std::vector<Id> inputs = {run.constant(512, 1)};
  for (int number = 0; number < earlier; ++number) run.constant(512, 2);
  // As many as leave room in the engine's own lists.
  for (int name = 0; name < 5; ++name) {
    inputs = {inputs[0], run.call(name, 10ns, inputs, {}, {512})[0]};
  }
  const std::vector<Bytes> results = {512};
  const EngineStats before = run.stats();
  bool failed = false;
  until_failure = allocation;
  try {
    run.call(7, 10ns, inputs, {}, results);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  until_failure = kNone;
  run.check();
  if (failed && (run.stats().values != before.values || run.stats().ops != before.ops)) {
    std::printf("records are left without allocation %d\n", allocation);
  }
  return failed;
}

}  // namespace

int main() {
  lacks(kNone, 0);  // What is made once stays.
  int failures = 0;
  for (int earlier = 0; earlier <= kMostEarlier; ++earlier) {
    bool failed = true;
    for (int allocation = 0; failed; ++allocation) {
      const int before = blocks;
      failed = lacks(allocation, earlier);
      if (blocks != before) std::printf("memory is left without allocation %d\n", allocation);
      failures += failed;
    }
  }
  std::printf("%d allocations failed\n", failures);
}
