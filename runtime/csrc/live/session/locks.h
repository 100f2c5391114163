// The locks of a session, in the order in which they are taken:
//
//   Turn    One thread at a time holds it. Only the holder recomputes (so that each value is
//           recomputed once), writes in place (since a recomputation may be reading the old
//           content), draws random numbers (since the recipe needs the generator's state), or makes
//           all values constants (commit() in settle.h). A thread that waits for another process
//           releases its Turn. Operators that need no Turn run side by side.
//   Guard   Holds the engine's lock, which guards the engine and every table of the session. The
//           lock is released while an operator runs.
//
// A thread may take Python's lock before a Turn, but never after a Guard. A resize has its own
// mutex, taken after its Turn and before a Guard (memory_requests.h). The mutexes of the notes, the
// trace recorder and the operators' costs come last: who holds one of these takes no other lock.

#pragma once

#include <mutex>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/live/machine/under_way.h"
#include "runtime/csrc/live/machine/unlocked.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

struct Locks {
  Engine& engine;  // A Guard locks the engine's mutex.
  StorageTable& storages;
  std::recursive_mutex turn{};
  UnderWay under_way{turn};
};

// Holds the engine's lock. Storages that die while it is held are destroyed only after its release,
// because their destruction may run any code, such as Python's, which waits for locks of its own.
class Guard {
 public:
  explicit Guard(Locks& locks, bool locked = true)
      : storages_(locks.storages), lock_(locks.engine.mutex(), std::defer_lock) {
    if (locked) lock_.lock();
  }
  ~Guard() { open(); }
  Lock& lock() { return lock_; }

  // Releases the lock, if held, for the lifetime of this object. Its destructor takes the lock.
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
    if (!storages_.has_dead()) return lock_.unlock();
    const auto dead = storages_.take_dead();
    lock_.unlock();
  }

  StorageTable& storages_;
  Lock lock_;
};

// While a thread waits for the turn, it releases Python's lock, and its operators do not count as
// running: the turn's owner may need Python's lock, or wait until no operator runs (under_way.h).
class Turn {
 public:
  explicit Turn(Locks& locks);
  ~Turn() { mutex_.unlock(); }
  Turn(const Turn&) = delete;

 private:
  std::recursive_mutex& mutex_;
};

}  // namespace dtr
