// Uses a session's swap (swap.h): decides which tensors may go there, saves old content before a
// write, and stores and reloads tensors.

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

  // Call after an operator: make its results, or storages noted by note_movable(), movable.
  void adopt_what_was_made(const Call& call, const torch::jit::Stack& stack);
  void adopt_what_was_written(const Call& call);
  void note_movable(Call& call, c10::StorageImpl* storage);  // To be made movable after the call.
  void let_write(Value& value, c10::StorageImpl& storage);   // Allows writes that we do not see.

  void store(Value& value);
  void reload(Op& op, Lock& lock);
  void copy_beside(bool met);  // Begins copies ahead of use.

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
