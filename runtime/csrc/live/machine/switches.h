// Saves and restores switches: settings that kernels read past the dispatcher. The process has some
// (torch's global context, the default type), and each thread has two (its number of threads to
// compute with, whether it flushes denormal numbers to zero). An operator's last bits depend, for
// example, on whether oneDNN is on. So a recipe keeps the switches, and a replay restores them
// while it runs.
//
// Programs change switches rarely, so equal states are stored once, and a recipe has a number. To
// notice a change, we compare torch's context byte for byte with the last copy (some 10 ns an
// operator): the context has no version counter, and its setters share no function that we could
// hook.
//
// In torch 2.11 to 2.14 (aten/src/ATen/Context.h, ParallelOpenMP.cpp) the context has no lock. Its
// setters check, for example, that a library exists, which is true in every state that was once
// set. OpenMP and MKL have a number of threads for each calling thread. torch.set_num_threads()
// sets that of its caller, and the number that other threads take at their first parallel operator.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtr {

class Switches {
 public:
  using Number = std::uint16_t;

  // The current switches. Both functions are called with the engine's lock held.
  static Number now();
  static bool deterministic(Number number);  // Torch's deterministic mode.

  // For tests. names(): as in programs. refuse(): this switch then cannot be set ("": all can).
  static std::vector<std::string> names();
  static void refuse(const std::string& name);
};

// Sets the process's switches to the state `wanted`; the destructor sets them back to `there`. If a
// switch cannot be set, changes nothing and throws c10::Error (a RuntimeError in Python) that names
// it. Constructed and destroyed with the engine's lock held; no other operator of the scope may run
// meanwhile (under_way.h).
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
