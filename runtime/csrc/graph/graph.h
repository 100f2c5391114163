// Records the computation: which contents the runtime may evict, and how to compute them again.
//
// A Value is the content of a storage at one version. An Op is the recipe that made it: an operator
// with its inputs. A storage that is written in place gets a new Value; the old Value lives on,
// without a storage, while a recipe reads it. Ownership runs Value -> producer -> inputs, and has
// no cycle. In a graph over storages, in-place writes would make cycles.
//
// An Op is one block of memory: the struct, its uses, its outputs, then what the executor needs to
// run it. Records cost memory beyond the budget, so they are kept small (176 bytes a Value, 384
// with the recipe of an addition) and lie in slabs (records.h).
//
// By the rules of the paper's simulator, a view is a Value without bytes, with its own recipe,
// linked to the Value whose bytes it shares. A view is lost with that Value, but recomputed
// separately. Live views are free and have no Value.

#pragma once

#include <cstddef>
#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

struct Op;
struct Value;
struct EvictedClass;
struct Region;

// One place where an Op reads a Value: an entry in the Value's list of readers.
struct Use {
  Value* value;
  Op* op;
  Use* next;
  Use** link;  // What points at this Use: the Value's head, or the previous Use's `next`.
};

constexpr std::int32_t kNowhere = -1;

// What the class Needs (engine/needs.h) knows of a value. Times are the tape's, if one is followed.
struct Need {
  Nanos next = 0ns, behind = 0ns;   // Its next need; the next need of missing values made from it.
  std::uint32_t round = 0;          // The round in which both were set.
  std::int32_t awaited = kNowhere;  // Its index in Awaited (engine/awaited.h).
};

// What the class Orphans (engine/orphans.h) knows of a value.
struct Want {
  std::int32_t by = 0;             // Number of wanted values that were made from it.
  std::int32_t orphan = kNowhere;  // Its index in the list of orphans.
};

// What the class Histories (engine/histories.h) knows of a value: about how many recipes lead to
// it, now and at the last count.
struct History {
  std::uint16_t recipes = 0, walked = 0;
};

struct Value {
  Bytes size = 0;
  Nanos cost = 0ns;         // Sum over the distinct operators that made it and its views.
  Nanos last_access = 0ns;  // On the engine's clock, which each operator's cost advances.
  Op* producer = nullptr;   // Null: a constant. It is never evicted.
  Use* uses = nullptr;
  Value* base = nullptr;                  // Of a view: the value whose bytes it shares.
  Value* views = nullptr;                 // The first view of these bytes; of a view, the next one.
  EvictedClass* evicted_class = nullptr;  // With neighbourhood eqclass: its class while missing.
  Region* region = nullptr;               // With neighbourhood full: its regions while resident.
  std::uint64_t mark = 0;                 // Stamp of the last graph walk that visited it.
  void* home = nullptr;                   // Executor's: the program's storage; null once dropped.
  void* data = nullptr;                   // Executor's: the content; null while evicted.
  std::int32_t candidate = kNowhere;      // Its row in the engine's columns.
  // Index in the engine's list of recomputable values that the program holds.
  std::int32_t owned = kNowhere;
  std::int32_t locks = 0;    // Running and pending operators that need the content where it is.
  std::int32_t waiting = 0;  // Locks of recomputations that have not begun.
  std::int32_t recomputes = 0;
  std::int32_t access = kNowhere;  // The index of the last access in the tape,
  std::uint32_t step = 0;          // and its step.
  std::int32_t name = 0;           // Its number in the trace that is being recorded.
  Need need;
  Want want;
  History history;
  std::uint16_t output = 0;           // Which output of its producer.
  std::uint16_t version = 0;          // In-place writes since the storage was fresh.
  bool dropped_while_locked = false;  // The last lock's release frees the content.
  bool wanted = false;                // Missing, and counted by its inputs' `want`.
  bool stone = false;                 // Dropped, but kept (engine/stepping_stones.h).
  bool unfilled = false;              // Executor's: locked until an operator fills or reads it.
  bool copied = false;   // Executor's: a copy of a constant's old content, for recipes.
  bool absent = false;   // Executor's: a constant whose content is not in memory.
  bool dying = false;    // Executor's: locked until its storage's deleter is called.
  bool counted = false;  // For Lineages: missing, and counted by a walk.

  bool constant() const { return producer == nullptr; }
  bool movable() const;
  bool resident() const { return data != nullptr; }
  bool needed() const { return uses || locks || (producer && home); }
  Value& storage() { return base ? *base : *this; }
};

struct Op {
  Nanos cost = 0ns;
  std::uint32_t use_count : 30 = 0;
  // Its outputs are evicted together: one run makes them all, however many are missing.
  std::uint32_t together : 1 = 0;
  // Not an operator: reads nothing, and brings its one output back from a second tier.
  std::uint32_t reload : 1 = 0;
  std::uint16_t output_count = 0;
  std::uint16_t live_outputs = 0;  // Outputs still in the graph; the Op is freed with the last.
  std::uint32_t bytes = 0;         // Of the whole block.

  Use* uses() { return reinterpret_cast<Use*>(this + 1); }
  Value** outputs() { return reinterpret_cast<Value**>(uses() + use_count); }
  void* payload() { return outputs() + output_count; }
};

inline bool Value::movable() const { return producer && producer->reload; }

}  // namespace dtr
