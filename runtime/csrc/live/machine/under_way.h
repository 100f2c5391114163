// Counts the operators of a scope that are running, so that a replay can run alone. A replay that
// has to change a switch of the process (switches.h) must not run beside an operator of another
// thread, which would see the change. So the replay waits until no such operator runs, and
// operators that begin meanwhile wait for the replay. A program of one thread never waits.
//
// Composite kernels and Python code read switches, too, but are no operators that we see. So a
// thread that runs alone also holds Python's lock, unless its operator in Python releases it.
//
// Functions are called with the engine's lock held. A wait releases this lock and Python's.

#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/live/machine/switches.h"

namespace dtr {

class UnderWay {
 public:
  // `turn`: the session's (locks.h), which a thread that runs alone holds.
  explicit UnderWay(std::recursive_mutex& turn) : turn_(turn) {}
  struct PythonLock;

  // An operator runs for the lifetime of this object. It is not counted if the lock is not held, or
  // if `apart`: an operator that waits for another process must not be waited for.
  class Operator {
   public:
    Operator(UnderWay& all, Lock& lock, bool apart);
    ~Operator();
    Operator(const Operator&) = delete;

   private:
    UnderWay& all_;
    const bool counted_;
  };

  // While this lives, the thread waits in the middle of its operators. They are not counted,
  // because none of them computes.
  class Aside {
   public:
    explicit Aside(UnderWay& all);
    ~Aside();
    Aside(const Aside&) = delete;

   private:
    UnderWay& all_;
    const int counted_;
  };

  // While this lives, no operator of another thread runs. Needs the session's turn.
  class Alone {
   public:
    Alone(UnderWay& all, Lock& lock);
    ~Alone();
    Alone(const Alone&) = delete;

   private:
    UnderWay& all_;
    const bool outermost_;
    std::unique_ptr<PythonLock> python_;
  };

  // The switches as the program has set them.
  Switches::Number switches() const { return alone_ ? switches_ : Switches::now(); }

 private:
  void wait_for_alone(Lock& lock);

  std::recursive_mutex& turn_;
  int running_ = 0;
  bool alone_ = false;
  Switches::Number switches_ = 0;  // The program's, while a replay runs alone.
  std::condition_variable ended_;
  // Of this thread, in the active session: number of operators that run; whether it runs alone.
  static constinit thread_local int here;
  static constinit thread_local bool alone_here;
};

}  // namespace dtr
