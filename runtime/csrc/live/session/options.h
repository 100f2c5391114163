// What a session is opened with.

#pragma once

#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/score.h"

namespace dtr {

struct SessionOptions {
  Bytes budget = 0;
  bool limited = true;
  bool on_cuda = false;  // Whether the memory is a CUDA device's.
  int cuda_device = 0;
  PageUses page_uses;  // Of a device.
  Heuristic heuristic;
  ScorerPlace scorer = ScorerPlace::kAuto;  // Of a device; on the host there is no choice.
  std::string image;                        // PTX of what scores on a device; empty: nothing does.
  Policy policy = Policy::kEager;
  std::vector<std::string> recordable;  // Operators that the user vouches for: libraries.h.
  bool record = true;                   // False: the memory serves and counts, nothing is recorded.
  bool logical_clock = false;  // An operator costs the bytes it touches instead of its time.
  bool timeline = false;
  bool debug = false;  // Look for writes that nobody declared.
  Bytes swap = 0;  // Of the host's memory for a device, else of a file in `swap_folder`; 0: none.
  std::string swap_folder;
  double thrash_limit = 0;      // thrash_watch.h
  struct Instruments {          // Of tests.
    bool evict_always = false;  // Evict everything after every operator.
    bool verify = false;        // Replay every recorded operator at once and compare.
    bool swap_always = false;   // Evict everything to the swap after every operator.
  } instruments;
};

Memory::Handle pool_for(const SessionOptions& options);

}  // namespace dtr
