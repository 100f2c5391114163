// Uses a session's swap (swap.h): decides which tensors may move there, stores and reloads them,
// and stores old content before a write.

#pragma once

#include <ATen/core/stack.h>

#include "runtime/csrc/live/recipes/call.h"
#include "runtime/csrc/live/session/memory_requests.h"
#include "runtime/csrc/live/storages/swap.h"
#include "runtime/csrc/live/trace/event_log.h"

namespace dtr {

class Session;

class SessionSwap {
 public:
  SessionSwap(Session& session, Swap* swap);  // `swap`: null if there is none.

  bool is_there() const { return swap_ != nullptr; }
  void close();  // Call when the session is over.

  // Call these after an operator. They make its results, or what note_movable() noted, movable.
  void adopt_what_was_made(const Call& call, const torch::jit::Stack& stack);
  void adopt_what_was_written(const Call& call);
  void note_movable(Call& call, c10::StorageImpl* storage);  // Notes what to make movable later.
  void let_write(Value& value, c10::StorageImpl& storage);   // Call before writes unseen by us.

  void store(Value& value);
  void reload(Op& op, Lock& lock);
  void copy_beside(bool met);  // Begins to reload what is needed soon. `met`: our stream is known.

 private:
  bool may_adopt(const Call& call) const;
  void adopt_movable(const Call& call, c10::StorageImpl* storage);
  void reload_ahead();
  bool begin_ahead(Value& value);

  Session& session_;
  Swap* const swap_;
  Engine& engine_;
  Memory& memory_;
  StorageTable& storages_;
  const SessionDevice& device_;
  MemoryRequests& requests_;
  EventLog& events_;
};

}  // namespace dtr
