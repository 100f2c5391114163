// Saves and restores what kernels read besides their arguments, past the dispatcher: the switches
// of the process (torch's global context, the default type) and two of the thread (its number of
// threads to compute with, whether it flushes denormal numbers to zero). An operator gives other
// last bits with oneDNN on than off, so a recipe keeps the switches, and a replay restores them
// while it runs.
//
// Programs change switches rarely, so equal states are stored once, and a recipe has a number. To
// notice a change, we compare torch's context byte for byte with the last copy (some 10 ns an
// operator): the context has no version counter, and its setters share no function that we could
// hook.
//
// In torch 2.11 to 2.14 (aten/src/ATen/Context.h, ParallelOpenMP.cpp) the context has no lock. Its
// setters check, for example, that a library is there, which is true of every state that once was
// set. The number of threads is the calling thread's, in OpenMP and in MKL. torch.set_num_threads()
// sets it, and the number that other threads take at their first parallel operator.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtr {

class Switches {
 public:
  using Number = std::uint16_t;

  // The current switches. Called with the engine's lock held, as is the next.
  static Number now();
  static bool deterministic(Number number);  // Torch's deterministic mode.

  // For tests. Names are as in programs. The refused switch cannot be set; "" refuses none.
  static std::vector<std::string> names();
  static void refuse(const std::string& name);
};

// Puts the process in the state `wanted`, from the state `there`, for the lifetime of an object. If
// a switch cannot be set, changes nothing and throws c10::Error (a RuntimeError in Python) that
// names it. Constructed and destroyed with the engine's lock held; no other operator of the scope
// may run meanwhile (under_way.h).
class SwitchesPut {
 public:
  SwitchesPut(Switches::Number there, Switches::Number wanted);
  ~SwitchesPut();
  SwitchesPut(const SwitchesPut&) = delete;

 private:
  const Switches::Number there_, wanted_;
};

// The switches of the calling thread.
struct ThreadSwitches {
  std::int32_t threads = 0;    // OpenMP's number of threads; 0 in a torch without OpenMP.
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
