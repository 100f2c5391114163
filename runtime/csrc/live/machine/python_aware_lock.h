// Locks a recursive mutex. While a thread waits for the mutex, it releases Python's lock (the GIL),
// because the mutex's owner may need the GIL.

#pragma once

#include <mutex>

namespace dtr {

class PythonAwareLock {
 public:
  explicit PythonAwareLock(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (!mutex_.try_lock()) wait(mutex_);
  }
  ~PythonAwareLock() { mutex_.unlock(); }
  PythonAwareLock(const PythonAwareLock&) = delete;

  static void wait(std::recursive_mutex& mutex);  // Returns with the mutex locked.

 private:
  std::recursive_mutex& mutex_;
};

}  // namespace dtr
