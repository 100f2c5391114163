// Defines the options of a session.

#pragma once

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

// Lists each option once: X(type, name, default). Python passes those that differ from the default
// by name (bindings/bind_session.cpp); runtime/scope/scope.py makes them from the user's arguments.
#define DTR_SESSION_OPTIONS(X)                                                              \
  X(Bytes, budget, 0)                                                                       \
  /* False: there is no budget; then `budget` is the size of the memory's address space. */ \
  X(bool, limited, true)                                                                    \
  X(Heuristic, heuristic, {})                                                               \
  /* Operators that the user vouches for: libraries.h. */                                   \
  X(std::vector<std::string>, recordable, {})                                               \
  /* False: memory is provided and counted, nothing is recorded. */                         \
  X(bool, record, true)                                                                     \
  /* An operator costs the bytes it touches instead of its time. */                         \
  X(bool, logical_clock, false)                                                             \
  X(bool, timeline, false)                                                                  \
  /* Look for undeclared writes. */                                                         \
  X(bool, debug, false)                                                                     \
  X(double, thrash_limit, 0) /* thrash_watch.h */                                           \
  /* Bytes of swap: host memory for a device, else a file in `swap_folder`; 0: no swap. */  \
  X(Bytes, swap, 0)                                                                         \
  X(std::string, swap_folder, {})                                                           \
  /* Whether the memory is a CUDA device's. */                                              \
  X(bool, on_cuda, false)                                                                   \
  /* Where scores are computed: for a host's memory always on the host. */                  \
  X(ScorerPlace, scorer, ScorerPlace::kAuto)                                                \
  /* PTX of the kernel that scores on a device; empty: the host scores. */                  \
  X(std::string, image, {})                                                                 \
  /* For tests, after every operator: evict everything; replay what was */                  \
  /* recorded, and compare; move everything to the swap. */                                 \
  X(bool, evict_always, false)                                                              \
  X(bool, verify, false)                                                                    \
  X(bool, swap_always, false)

struct SessionOptions {
#define DTR_FIELD(type, name, initially) type name = initially;
  DTR_SESSION_OPTIONS(DTR_FIELD)
#undef DTR_FIELD
  int cuda_device = 0;
  PageUses page_uses{};  // How a device's pages are used.
};

Memory::Handle pool_for(const SessionOptions& options);

}  // namespace dtr
