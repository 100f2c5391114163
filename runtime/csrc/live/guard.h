// Small scopes of the live runtime: who holds the engine's lock, and whether this thread is inside
// an operator.

#pragma once

#include "runtime/csrc/live/session.h"

namespace dtr {

// Holds the engine's lock. What died meanwhile is let go after the lock: a storage of somebody else
// may run any code when it dies, such as Python's, which waits for locks of its own.
class Session::Guard {
 public:
  explicit Guard(Session& session) : session_(session), lock_(session.engine_.mutex()) {}
  ~Guard() {
    if (session_.graveyard_.empty()) return;
    auto dead = std::move(session_.graveyard_);
    session_.graveyard_.clear();
    if (lock_.owns_lock()) lock_.unlock();
  }
  Lock& lock() { return lock_; }

 private:
  Session& session_;
  Lock lock_;
};

// Whoever waits gives Python's lock away meanwhile: the owner may need it.
class Session::Turn {
 public:
  explicit Turn(Session& session) : mutex_(session.turn_) {
    if (!mutex_.try_lock()) wait();
  }
  ~Turn() { mutex_.unlock(); }
  Turn(const Turn&) = delete;

 private:
  void wait();

  std::recursive_mutex& mutex_;
};

// Opens a held lock for a while.
class Unlocked {
 public:
  explicit Unlocked(Lock& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }

 private:
  Lock& lock_;
};

// This thread runs an operator: pointers that torch hands out now go to a kernel, not to the
// program.
class InOperator {
 public:
  explicit InOperator(bool by_handler = false) : before_(handled) {
    ++depth;
    handled |= by_handler;
  }
  ~InOperator() {
    --depth;
    handled = before_;
  }
  static thread_local int depth;
  // Python code runs whose operators torch hides from us: what they read is not locked.
  static thread_local bool handled;
  static thread_local bool replaying;
  static thread_local std::int64_t search_ticks;  // Spent looking for memory, not computing.

 private:
  bool before_;
};

// Python copies a tensor's content through a pointer (`tolist`), which is no reason to pin it.
class Session::Reading {
 public:
  Reading(Session& session, const at::Tensor& tensor);
  ~Reading();
  static thread_local int depth;

 private:
  Session& session_;
  Value* value_ = nullptr;
};

inline void disarm(c10::StorageImpl* storage) {
#if __has_include(<c10/core/StorageMaterializer.h>)
  storage->clear_materializer();
#endif
}

// Older torch can refuse access to a storage but has no call to allow it again. An explicit
// instantiation may name a private member, which is how we reach the flag.
void allow_access(c10::StorageImpl& storage);
template <bool c10::StorageImpl::* flag>
struct AccessFlag {
  friend void allow_access(c10::StorageImpl& storage) { storage.*flag = false; }
};
template struct AccessFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// The storage is resident again.
template <typename Storage>
void readmit(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    allow_access(storage);
    storage.get_extra_meta().custom_data_ptr_error_msg_ = std::nullopt;
    storage.set_data_ptr_noswap(std::move(storage._mutable_data_ptr_no_checks()));
  }
}

}  // namespace dtr
