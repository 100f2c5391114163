// Which operators of a scope run at this moment, so that a replay can run alone. A replay that has
// to change a switch of the process (switches.h) must not do so beside an operator of another
// thread, which would see it. It waits until those under way have ended. An operator that begins
// meanwhile waits for the replay. In a program of one thread nothing ever waits.
//
// Composite kernels and Python code are no operators that we see, and read switches too. So who
// runs alone has Python's lock as well, unless the operator is written in Python and gives it away.
//
// The engine's lock is held in all calls. Waiting opens it, and gives Python's lock away.

#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "runtime/csrc/graph/executor.h"
#include "runtime/csrc/live/machine/switches.h"

namespace dtr {

class UnderWay {
 public:
  // `turn` is the session's: who runs alone has it (locks.h).
  explicit UnderWay(std::recursive_mutex& turn) : turn_(turn) {}
  struct PythonLock;

  // One that runs as long as this lives. Where the lock is not held, or `apart`, it is not counted:
  // what waits for another process must not be waited for.
  class Operator {
   public:
    Operator(UnderWay& all, Lock& lock, bool apart);
    ~Operator();
    Operator(const Operator&) = delete;

   private:
    UnderWay& all_;
    const bool counted_;
  };

  // As long as this lives, this thread waits in the middle of its operators, and they do not count:
  // none of them computes.
  class Aside {
   public:
    explicit Aside(UnderWay& all);
    ~Aside();
    Aside(const Aside&) = delete;

   private:
    UnderWay& all_;
    const int counted_;
  };

  // As long as this lives, in the session's turn, no operator of another thread runs.
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
  Switches::Number switches_ = 0;  // While a replay is alone.
  std::condition_variable ended_;
  // This thread's, of the one session that there is at a time: operators that run, whether alone.
  static constinit thread_local int here;
  static constinit thread_local bool alone_here;
};

}  // namespace dtr
