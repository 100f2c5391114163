// The locks of a session, in the order in which they are taken:
//
//   Turn    One thread at a time recomputes, so that each value is recomputed once; writes in
//           place, because a recomputation may be reading what is there before; draws random
//           numbers, because the recipe must have the state that they were drawn from; or commits.
//           It is given back while another process is waited for.
//           All other operators run side by side.
//   Guard   The engine's lock: it guards the engine and every table of the session. It is open
//           while an operator runs.
//
// Python's lock may be taken before a Turn, and never after a Guard.

#pragma once

#include "runtime/csrc/live/machine/unlocked.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {

// Holds the engine's lock. Storages that die meanwhile are released after the lock: a storage may
// run any code when it dies, such as Python's, which waits for locks of its own.
class Session::Guard {
 public:
  explicit Guard(Session& session, bool locked = true)
      : session_(session), lock_(session.engine_.mutex(), std::defer_lock) {
    if (locked) lock_.lock();
  }
  ~Guard() { open(); }
  Lock& lock() { return lock_; }

  // Opens the lock, if it is not open, for as long as this lives; afterwards it is held.
  class Opened {
   public:
    explicit Opened(Guard& guard) : guard_(guard) { guard.open(); }
    ~Opened() { guard_.lock_.lock(); }
    Opened(const Opened&) = delete;

   private:
    Guard& guard_;
  };

 private:
  void open() {
    if (!lock_.owns_lock()) return;
    if (!session_.storages_.has_dead()) return lock_.unlock();
    const auto dead = session_.storages_.take_dead();
    lock_.unlock();
  }

  Session& session_;
  Lock lock_;
};

// A thread that waits gives Python's lock away meanwhile, and its operators do not count: the owner
// of the turn may need the lock, or may wait until no operator computes (under_way.h).
class Session::Turn {
 public:
  explicit Turn(Session& session);
  ~Turn() { mutex_.unlock(); }
  Turn(const Turn&) = delete;

 private:
  std::recursive_mutex& mutex_;
};

}  // namespace dtr
