// The life of a scope: which session the operators and allocations of this process belong to, who
// has joined it, and what becomes of its tensors when it ends or the process forks.
//
// There is one at a time. When a scope ends, whatever the program holds becomes an ordinary tensor.
// If that does not fit the budget, it lies in ordinary memory from then on. If even that fails, the
// scope lingers: it stays the active one, and records nothing, until its last tensor has died.

#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <functional>
#include <vector>

#include "runtime/csrc/live/machine/device.h"

namespace dtr {

class Session;

class Scope {
 public:
  explicit Scope(Session& session) : session_(session) {}
  ~Scope();

  static Session* active() { return active_.load(std::memory_order_acquire); }  // Or null.

  void claim();  // Becomes the active one. Throws c10::Error if another scope is.
  void enter();  // The same, and the operators of this thread are the scope's.
  void join();   // The operators of this thread too. Not while a trace is recorded.
  void part();
  // Bytes that did not fit and are ordinary memory now, and those that were beyond the budget while
  // the rest came back.
  struct Left {
    Bytes spilled = 0, beyond = 0;
  };
  Left leave();  // Commits. Nothing where it is over.
  // The same of torch's memory, with nothing evicted, whatever the budget. Throws
  // torch.OutOfMemoryError, and all is as before, where the machine has not so much.
  void leave_beyond_budget();
  // Makes constant all that the program holds, and calls `then` before anybody can record more.
  void commit_and(const std::function<void()>& then) { freeze_all(false, then); }
  void commit() {
    freeze_all(false, [] {});
  }
  void bring_back_for_child();  // Before fork, what the budget has room for.
  void abandon_in_child();      // After it: the parent's scope is not the child's.

  static void record_this_thread(bool on);  // Whether its operators are the active scope's.
  static bool records_this_thread();
  // Whether this thread opened or joined the scope, and the key's bit is gone: torch's C++ fake
  // mode (from 2.14 on) and torchdistx clear the bit when they end.
  static bool lost_key() { return !records_this_thread() && member_; }
  static bool is_member() { return member_; }
  static void keep_recording();  // Sets the bit again if it is lost, unless a fake mode is on.
  static bool part_if_member();  // Clears a member's bit. Returns whether it was one.

  int joined() const { return joined_; }         // Threads.
  bool lingering() const { return lingering_; }  // It is over, and some tensors are still its own.
  // Of the commit that ends the scope, under the engine's lock: whether it is under way, and a
  // storage that it has made ordinary.
  bool leaving() const { return leaving_; }
  void outlives(c10::StorageImpl* storage) { outliving_.push_back(share(storage)); }

 private:
  void freeze_all(bool leaving, const std::function<void()>& then);
  void linger();
  void give_up();
  bool spill();
  bool lift_budget();
  void end_budget();
  void lower_budget();

  static inline std::atomic<Session*> active_{nullptr};
  static constinit thread_local bool member_;

  Session& session_;
  // Guarded by: nothing: atomic
  std::atomic<int> joined_ = 0;
  std::atomic<bool> lingering_ = false;

  // Guarded by: the engine's mutex
  bool leaving_ = false;
  std::vector<StoragePtr> outliving_;

  // Guarded by: nothing: of the thread that leaves, and of who finds the scope over
  Bytes spilled_ = 0, lifted_from_ = 0, peak_before_ = 0;  // The lift, if there was one.
};

}  // namespace dtr
