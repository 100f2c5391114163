// Holds the bytes and runs the operators for the engine: live on torch tensors, or in a simulated
// run.

#pragma once

#include <mutex>
#include <utility>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/graph/graph.h"

namespace dtr {

using Lock = std::unique_lock<std::mutex>;

// Why a value loses its content: to make room, or because the program dropped it.
enum class Loss { kEvicted, kDropped };

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `op` again and hands every missing output's content to Engine::restore. All inputs are
  // resident and locked. The engine's lock is held on entry and exit (also by exception), but must
  // be released while the operator runs.
  virtual void recompute(Op& op, Lock& lock) = 0;

  // Frees the bytes of a resident value. If the program still holds the value's storage, this
  // storage becomes evicted.
  virtual void release(Value& value, Loss loss) = 0;

  // Makes the storage of a resident value ordinary: the engine no longer evicts it. If recipes
  // still read the value, the executor keeps the content alive until `forget(value)`. If the
  // program has dropped the storage (Policy::kBanish), only recipes read the content.
  virtual void make_ordinary(Value& value) = 0;

  // Free bytes of the pool directly before and after a resident value.
  virtual std::pair<Bytes, Bytes> free_neighbours(const Value& value) const = 0;
  virtual const Pool* pool_of_values() const = 0;  // Null if memory is only counted.

  // Whether the program has dropped a constant, so that only recipes need its memory. Executors
  // that cut histories (engine/histories.h) override this.
  virtual bool kept_for_recipes(const Value&) const { return false; }

  // Makes an Op::reload for a value, with the op's cost. Null if no second tier can take the value.
  virtual Op* reload_for(const Value& /*value*/) { return nullptr; }

  virtual void forget(Value& value) = 0;  // A constant that no recipe reads any more.
  virtual void forget(Op& op) = 0;        // A recipe that nothing needs any more.
};

}  // namespace dtr
