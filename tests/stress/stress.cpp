// Pool and engine under threads, for the sanitizers: `make asan` and `make tsan` build this
// folder, the sources that know neither torch nor Python, and the fake driver with them. A
// sanitized extension inside Python would report what Python and torch do as well; this program
// reports ours alone.
//
//     stress pool      threads allocate, write, read and free on memory of the host
//     stress streams   the same on the fake driver, a stream for each thread (DTR_ALLOC_LIBCUDA)
//     stress engine    threads compute, write in place, drop, evict and commit under one budget, with
//                      each neighbourhood and each policy; operators run without the engine's lock
//
// Each block is filled with a number that only its holder knows, and read back: a block that two
// threads share, or an operator that reads what is being written, ends the program with a sentence.

#include "tests/stress/stress.h"

#include <cstdio>
#include <cstring>
#include <utility>

int main(int count, char** arguments) {
  using namespace dtr;
  const std::pair<const char*, void (*)()> parts[] = {
      {"pool", stress::pool}, {"streams", stress::streams}, {"engine", stress::engine}};
  for (const auto& [name, run] : parts) {
    bool asked = count == 1;
    for (int i = 1; i < count; ++i) asked |= std::strcmp(arguments[i], name) == 0;
    if (!asked) continue;
    run();
    std::printf("%s: done\n", name);
  }
}
