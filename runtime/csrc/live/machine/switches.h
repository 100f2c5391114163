// What kernels look at besides their arguments, and not through the dispatcher: the switches of the
// process (torch's global context, the default type) and two of the thread's (how many threads it
// computes with, whether it flushes denormal numbers to zero). An operator that ran with oneDNN
// switched off has other last bits with it, so a recipe keeps the switches, and a replay puts them
// back while it runs.
//
// Programs change switches rarely, so states that are equal are stored once, and a recipe has a
// number. Whether one has changed is seen by comparing torch's context byte for byte with what it
// was (some 10 ns an operator): it has no version, and each setter is its own.
//
// Of torch 2.11 to 2.14 (aten/src/ATen/Context.h, ParallelOpenMP.cpp): the context has no lock;
// what its setters check, such as whether a library is there, holds of every state that it was in
// before. The number of threads is the calling thread's, in OpenMP and in MKL.
// torch.set_num_threads() sets it, and the number that other threads take at their first parallel
// operator.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtr {

class Switches {
 public:
  using Number = std::uint16_t;

  // As they are. The engine's lock must be held, here and in the next.
  static Number now();
  static bool deterministic(Number number);  // Torch's deterministic mode.

  // For tests. Names are as programs say them; the one refused cannot be put, none by "".
  static std::vector<std::string> names();
  static void refuse(const std::string& name);
};

// Puts the process in the state `wanted`, from the state `there`, as long as it lives. Throws
// c10::Error, for Python a RuntimeError, that names a switch which cannot be put; nothing has
// changed then. The engine's lock must be held at both ends, and no operator of the scope may run
// beside it (under_way.h).
class SwitchesPut {
 public:
  SwitchesPut(Switches::Number there, Switches::Number wanted);
  ~SwitchesPut();
  SwitchesPut(const SwitchesPut&) = delete;

 private:
  const Switches::Number there_, wanted_;
};

// The calling thread's.
struct ThreadSwitches {
  std::int32_t threads = 0;    // That OpenMP computes with; 0 in a torch without it.
  std::uint32_t flushing = 0;  // Bits of the processor's control word.
  bool operator==(const ThreadSwitches&) const = default;

  static std::int32_t threads_now();
  static ThreadSwitches now();
};

class ThreadSwitchesPut {
 public:
  explicit ThreadSwitchesPut(const ThreadSwitches& wanted);
  ~ThreadSwitchesPut();
  ThreadSwitchesPut(const ThreadSwitchesPut&) = delete;

 private:
  ThreadSwitches before_;
  int mkl_before_ = 0;
  bool threads_ = false, flushing_ = false;
};

}  // namespace dtr
