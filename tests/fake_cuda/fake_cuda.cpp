// The fake driver (library/world.h), in one piece: so it compiles in a third of the time, since its
// files need the same headers.

#include "tests/fake_cuda/library/clocks.cpp"
#include "tests/fake_cuda/library/devices.cpp"
#include "tests/fake_cuda/library/memory.cpp"
#include "tests/fake_cuda/library/scorer.cpp"
#include "tests/fake_cuda/library/streams.cpp"
#include "tests/fake_cuda/library/world.cpp"
