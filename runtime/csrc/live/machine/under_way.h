// Counts a scope's running operators, so that a replay can run alone if it has to change a switch
// of the process (switches.h): an operator of another thread would see the change. Such a replay
// waits until no operator of another thread runs. Operators that want to begin during the replay
// wait for its end. A program of one thread never waits.
//
// Composite kernels and Python code read switches, too, but we do not see them as operators. So a
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
  // `turn`: the session's mutex of that name (locks.h). A thread that runs alone holds it.
  explicit UnderWay(std::recursive_mutex& turn) : turn_(turn) {}
  struct PythonLock;

  // An operator runs for the lifetime of this object. It is not counted if the lock is not held, or
  // with `apart`: such an operator waits for another process, and no replay waits for it.
  class Operator {
   public:
    Operator(UnderWay& all, Lock& lock, bool apart);
    ~Operator();
    Operator(const Operator&) = delete;

   private:
    UnderWay& all_;
    const bool counted_;
  };

  // While this lives, the thread waits in the middle of its operators, so none of them computes,
  // and none is counted.
  class Aside {
   public:
    explicit Aside(UnderWay& all);
    ~Aside();
    Aside(const Aside&) = delete;

   private:
    UnderWay& all_;
    const int counted_;
  };

  // While this lives, no operator of another thread runs. The thread must hold the session's turn.
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

  // Returns the program's switches, even while a replay has changed them.
  Switches::Number switches() const { return alone_ ? switches_ : Switches::now(); }

 private:
  void wait_for_alone(Lock& lock);

  std::recursive_mutex& turn_;
  int running_ = 0;
  bool alone_ = false;
  Switches::Number switches_ = 0;  // The program's switches, while a replay runs alone.
  std::condition_variable ended_;
  // For this thread: how many counted operators it runs, and whether it runs alone.
  static constinit thread_local int here;
  static constinit thread_local bool alone_here;
};

}  // namespace dtr
