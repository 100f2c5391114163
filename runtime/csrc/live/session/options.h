// Defines the options of a session, each once, with its type and its default.

#pragma once

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

// Lists each option once: X(type, name, default). runtime/scope/scope.py makes the options from the
// user's arguments. It passes each that differs from its default (bindings/bind_session.cpp).
#define DTR_SESSION_OPTIONS(X)                                                            \
  X(Bytes, budget, 0) /* 0: no budget. */                                                 \
  X(Heuristic, heuristic, {})                                                             \
  /* Other libraries' operators that the user allows us to record (libraries.h). */       \
  X(std::vector<std::string>, recordable, {})                                             \
  /* False: memory is provided and counted, but no operator is recorded. */               \
  X(bool, record, true)                                                                   \
  /* An operator's cost is the number of bytes that it touches, not its time. */          \
  X(bool, logical_clock, false)                                                           \
  X(bool, timeline, false)                                                                \
  /* How many events are kept (event_log.h). */                                           \
  X(std::int64_t, events, 0)                                                              \
  /* Debug mode: looks for undeclared writes (mutation_detector.h). */                    \
  X(bool, debug, false)                                                                   \
  X(double, thrash_limit, 0) /* thrash_watch.h */                                         \
  /* Whether an operator that goes on without memory is an error (notes.h). */            \
  X(bool, strict, false)                                                                  \
  /* Bytes of swap (0: none): in host memory for a device, else a file in swap_folder. */ \
  X(Bytes, swap, 0)                                                                       \
  X(std::string, swap_folder, {})                                                         \
  /* Whether the memory is a CUDA device's. */                                            \
  X(bool, on_cuda, false)                                                                 \
  /* Where scores are computed. For host memory, it is always the host. */                \
  X(ScorerPlace, scorer, ScorerPlace::kAuto)                                              \
  /* PTX of the kernel that scores on a device; empty: the host scores. */                \
  X(std::string, image, {})                                                               \
  /* For tests, after every operator: evict_always evicts all; verify replays the */      \
  /* recipe and compares the results; swap_always moves all to the swap. */               \
  X(bool, evict_always, false)                                                            \
  X(bool, verify, false)                                                                  \
  X(bool, swap_always, false)

struct SessionOptions {
#define DTR_FIELD(type, name, initially) type name = initially;
  DTR_SESSION_OPTIONS(DTR_FIELD)
#undef DTR_FIELD
  Bytes limit() const { return budget ? budget : kLargestBudget; }
  int cuda_device = 0;
  PageUses page_uses{};
};

Memory::Handle pool_for(const SessionOptions& options);

}  // namespace dtr
