// Defines annotations, checked by clang, that say which mutex guards which data.
//
// With -Wthread-safety, clang warns if code accesses a guarded field without holding its mutex.
// libstdc++ does not annotate std::mutex, so the class Mutex wraps it. For other compilers, the
// annotations are empty. Source: clang's documentation, "Thread Safety Analysis".
// tests/pool/test_thread_safety.py runs the check.

#pragma once

#include <mutex>

#ifdef __clang__
#define DTR_ANNOTATION(text) __attribute__((text))
#else
#define DTR_ANNOTATION(text)
#endif
#define DTR_GUARDED_BY(mutex) DTR_ANNOTATION(guarded_by(mutex))
#define DTR_POINTS_TO_GUARDED_BY(mutex) DTR_ANNOTATION(pt_guarded_by(mutex))
#define DTR_REQUIRES(mutex) DTR_ANNOTATION(requires_capability(mutex))
#define DTR_UNCHECKED DTR_ANNOTATION(no_thread_safety_analysis)

namespace dtr {

class DTR_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() DTR_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() DTR_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Locks a mutex while the object lives.
class DTR_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) DTR_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() DTR_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace dtr
