// Holds values' contents and reruns operators for the engine: on torch's tensors in a live run, as
// numbers in a simulation.

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
  // resident and locked. The engine's lock is held on entry and on exit (also by exception); a live
  // run releases it while the operator runs.
  virtual void recompute(Op& op, Lock& lock) = 0;

  // Frees the bytes of a resident value. Marks its storage, if there still is one, as evicted.
  virtual void release(Value& value, Loss loss) = 0;

  // Turns the storage of a resident value into an ordinary one, which the engine never evicts.
  // Keeps the content until `forget(value)`, since recipes may read it. With Policy::kBanish the
  // program may have dropped the storage already.
  virtual void make_ordinary(Value& value) = 0;

  // Returns the free bytes of the pool directly before and after a resident value.
  virtual std::pair<Bytes, Bytes> free_neighbours(const Value& value) const = 0;
  virtual const Pool* pool_of_values() const = 0;  // Null if memory is only counted.

  // Returns whether the program has dropped a constant, so that only recipes keep its memory.
  // Executors override this if they drop histories (engine/histories.h).
  virtual bool kept_for_recipes(const Value&) const { return false; }

  // Makes an Op::reload, with its cost, for a value; null if no swap can take the value.
  virtual Op* reload_for(const Value& /*value*/) { return nullptr; }

  virtual void forget(Value& value) = 0;  // Called when no recipe reads the constant any more.
  virtual void forget(Op& op) = 0;        // Called when nothing needs the recipe any more.
};

}  // namespace dtr
