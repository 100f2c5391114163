// Saves and restores switches: settings that kernels read besides their arguments. Some belong to
// the process (torch's global context, the default type). Two belong to each thread: with how many
// threads it computes, and whether it flushes denormal numbers to zero. An operator's last bits
// depend, for example, on whether oneDNN is on. So a recipe keeps the switches, and a replay
// restores them while it runs.
//
// Programs change switches rarely, so equal states are stored once, and a recipe keeps a state's
// number. To notice a change, we compare torch's context byte for byte with our last copy (some 10
// ns an operator), since the context has no version counter, and its setters share no function that
// we could hook.
//
// We rely on these facts of torch 2.11 to 2.15 (aten/src/ATen/Context.h, ParallelOpenMP.cpp). The
// context has no lock. Its setters refuse only what is not there, such as a library, so each state
// that was once set can be set again. torch.set_num_threads() sets OpenMP's and MKL's number of
// threads for its caller, and for each thread that has not run a parallel operator yet.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtr {

struct DeterministicMode {
  bool on, warns;  // `warns`: an operator without a deterministic variant runs all the same.
  static DeterministicMode now();
};

class Switches {
 public:
  using Number = std::uint16_t;

  // now() returns the current state's number. Both functions need the engine's lock.
  static Number now();
  static DeterministicMode deterministic(Number number);  // The mode in that state.

  // For tests. names(): all switches. refuse(): from now on, setting `name` throws ("": none).
  static std::vector<std::string> names();
  static void refuse(const std::string& name);
};

// Sets the process's switches to the state `wanted`. The destructor sets them to the state `there`.
// If a switch cannot be set, changes nothing and throws c10::Error (a RuntimeError in Python) that
// names the switch. Constructed and destroyed with the engine's lock held. While the object lives,
// no other operator of the scope may run (under_way.h).
class SwitchesPut {
 public:
  SwitchesPut(Switches::Number there, Switches::Number wanted);
  ~SwitchesPut();
  SwitchesPut(const SwitchesPut&) = delete;

 private:
  const Switches::Number there_, wanted_;
};

// The two switches of a thread.
struct ThreadSwitches {
  std::int32_t threads = 0;    // OpenMP's number of threads; 0 in a torch without OpenMP.
  std::uint32_t flushing = 0;  // The flush-to-zero bits of the processor's control word.
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
