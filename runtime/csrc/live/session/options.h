// What a session is opened with.

#pragma once

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

// Each of them once: X(type, name, default). Python gives those that differ by their names
// (bindings/bind_session.cpp), and runtime/scope/scope.py makes them of what a user says.
#define DTR_SESSION_OPTIONS(X)                                                              \
  X(Bytes, budget, 0)                                                                       \
  /* False: there is no budget, and `budget` is as much as the machine may have use for. */ \
  X(bool, limited, true)                                                                    \
  X(Heuristic, heuristic, {})                                                               \
  /* Operators that the user vouches for: libraries.h. */                                   \
  X(std::vector<std::string>, recordable, {})                                               \
  /* False: the memory serves and counts, nothing is recorded. */                           \
  X(bool, record, true)                                                                     \
  /* An operator costs the bytes it touches instead of its time. */                         \
  X(bool, logical_clock, false)                                                             \
  X(bool, timeline, false)                                                                  \
  /* Look for writes that nobody declared. */                                               \
  X(bool, debug, false)                                                                     \
  X(double, thrash_limit, 0) /* thrash_watch.h */                                           \
  /* Bytes of the host's memory for a device, else of a file in `swap_folder`; 0: none. */  \
  X(Bytes, swap, 0)                                                                         \
  X(std::string, swap_folder, {})                                                           \
  /* Whether the memory is a CUDA device's. */                                              \
  X(bool, on_cuda, false)                                                                   \
  /* Where victims are chosen: on the host there is no choice. */                           \
  X(ScorerPlace, scorer, ScorerPlace::kAuto)                                                \
  /* PTX of what scores on a device; empty: nothing does. */                                \
  X(std::string, image, {})                                                                 \
  /* Instruments of tests, after every operator: evict everything; replay what was */       \
  /* recorded, and compare; move everything to the swap. */                                 \
  X(bool, evict_always, false)                                                              \
  X(bool, verify, false)                                                                    \
  X(bool, swap_always, false)

struct SessionOptions {
#define DTR_FIELD(type, name, initially) type name = initially;
  DTR_SESSION_OPTIONS(DTR_FIELD)
#undef DTR_FIELD
  int cuda_device = 0;
  PageUses page_uses{};  // Of a device.
};

Memory::Handle pool_for(const SessionOptions& options);

}  // namespace dtr
