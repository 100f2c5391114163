// Manages the life of a scope: which session serves this process's operators and allocations, which
// threads have joined the scope, and what becomes of tensors when it ends or the process forks.
//
// A process has one scope at a time. When it ends, the program's tensors become ordinary ones. If
// the budget has no room for all, some get ordinary memory. If one cannot be brought back even
// then, the scope lingers: it stays active, and records nothing, until its last tensor has died.

#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
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

  void claim();          // Becomes the active scope. Throws c10::Error if another scope is.
  void enter();          // Calls claim(), and records this thread's operators.
  void join();           // Records this thread's operators, too. Throws if a trace is recorded.
  void part(bool here);  // `here`: whether in the thread that joined. Else that has ended.
  // When the scope ended, `spilled` bytes became ordinary memory, since they did not fit the
  // budget. Meanwhile live bytes exceeded the budget by up to `beyond`.
  struct Left {
    Bytes spilled = 0, beyond = 0;
  };
  Left leave();  // Ends the scope, unless it is over.
  // Ends a scope in torch's memory: brings all tensors back, whatever the budget. If the machine
  // has too little memory, throws torch.OutOfMemoryError and changes nothing.
  void leave_beyond_budget();
  // Makes all the program's values constants, and calls `then` before a thread can record more.
  void commit_and(const std::function<void()>& then) { freeze_all(false, then); }
  void commit() {
    freeze_all(false, [] {});
  }
  void bring_back_for_child();  // Call before a fork. Brings back what the budget has room for.
  void abandon_in_child();      // Call in the forked child, which has no part in the scope.

  static void record_this_thread(bool on);  // Sets whether the scope gets this thread's operators.
  static bool records_this_thread();
  static bool is_member();  // Whether this thread opened or joined the current scope.
  // Whether a member thread has lost kKey's bit: torch's C++ fake mode (from 2.14 on) and
  // torchdistx clear it when they end. Autograd's threads of a device inherit the bit from the
  // thread that called backward(), and are no members.
  static bool lost_key() { return !records_this_thread() && is_member(); }
  static void keep_recording();  // Sets the bit again if it is lost, unless a fake mode is on.
  static bool part_if_member();  // Clears kKey's bit if a scope set it; returns whether one did.

  int joined() const { return joined_; }
  bool lingering() const { return lingering_; }  // The scope is over, but still tracks tensors.
  // leaving(): whether the scope is ending, so that tensors become ordinary. outlives(): notes such
  // a tensor's storage. Both need the engine's lock.
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
  // The current scope's number. A thread may get it before the session exists: a device's session
  // is made at the first request for the device's memory.
  static std::uint64_t today() { return ended_ + 1; }

  static inline std::atomic<std::uint64_t> ended_ = 0;     // Number of scopes that are over.
  static constinit thread_local std::uint64_t member_of_;  // The scope's number; 0: none.

  Session& session_;
  // Guarded by: nothing: atomic
  std::atomic<int> joined_ = 0;
  std::atomic<bool> lingering_ = false;

  // Guarded by: the engine's mutex
  bool leaving_ = false;
  std::vector<StoragePtr> outliving_;

  // Guarded by: nothing: used by leave(), then by the next scope's claim()
  Bytes spilled_ = 0, lifted_from_ = 0, peak_before_ = 0;  // Last two: before lifting the budget.
};

}  // namespace dtr
