// What the engine asks of whoever holds the bytes and knows the operators: live torch tensors, or a
// simulated run.

#pragma once

#include <mutex>
#include <utility>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

using Lock = std::unique_lock<std::mutex>;

// Why a value loses its content: to make room, or because the program let it go.
enum class Loss { kEvicted, kDropped };

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `op` again and hands every missing output's content to Engine::restore. All inputs are
  // resident and locked. The engine's lock is held on entry and on return, also by exception, and
  // must be open while the operator itself runs.
  virtual void recompute(Op& op, Lock& lock) = 0;

  // Gives the bytes of a resident value back; its storage, if the program still holds one, becomes
  // the evicted kind.
  virtual void release(Value& value, Loss loss) = 0;

  // `value`, resident, is no longer the engine's to evict: its storage becomes an ordinary one. If
  // recipes still read it, the executor keeps the content alive until `forget(value)`. The program
  // may have dropped the storage (Policy::kBanish); only recipes read the content then.
  virtual void make_ordinary(Value& value) = 0;

  // Free bytes of the pool directly before and after a resident value.
  virtual std::pair<Bytes, Bytes> free_neighbours(const Value& value) const = 0;
  virtual const Pool* pool_of_values() const = 0;  // Null where memory is only counted.

  // Whether the program has let a constant go, so that its memory is spent for recipes alone.
  // Only where histories are cut.
  virtual bool kept_for_recipes(const Value&) const { return false; }

  // An Op::reload for a value, with its cost. Null where it cannot be moved.
  virtual Op* reload_for(const Value& /*value*/) { return nullptr; }

  virtual void forget(Value& value) = 0;  // A constant that no recipe reads any more.
  virtual void forget(Op& op) = 0;        // A recipe that nothing needs any more.
};

}  // namespace dtr
