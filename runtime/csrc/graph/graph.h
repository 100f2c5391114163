// The recorded computation: what the runtime may forget, and how to get it back.
//
// A Value is the content of a storage at one version, an Op is the recipe that made it. A storage
// that is written in place gets a new Value; the old one lives on, without a storage, for as long
// as a recipe reads it. Ownership runs Value -> producer -> inputs and so has no cycle, which a
// graph over storages would have under mutation.
//
// An Op is one block of memory: the struct, its uses, its outputs, then whatever the executor needs
// to run it. Records are what the budget costs besides the budget, so they are kept small (176
// bytes a Value, 384 with the recipe of an addition) and lie in slabs (records.h).
//
// In a trace a view has a recipe of its own, as in the paper's simulator: it is a Value without
// bytes that hangs on the Value whose bytes it shares, goes with it, and must be computed again by
// itself. Live views are free and have no Value.

#pragma once

#include <cstddef>
#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

namespace dtr {

struct Op;
struct Value;
struct EvictedClass;
struct Region;

// One place where an Op reads a Value: a link of the Value's list of readers.
struct Use {
  Value* value;
  Op* op;
  Use* next;
  Use** link;  // What points at this Use: the Value's head, or the previous Use's `next`.
};

constexpr std::int32_t kNowhere = -1;

// What Needs knows of a value (engine/needs.h), on the tape's time where one is followed.
struct Need {
  Nanos next = 0ns, behind = 0ns;   // When it is needed; the least need of what was made from it.
  std::uint32_t round = 0;          // In which these are so.
  std::int32_t awaited = kNowhere;  // Its place among those that a copy brings back.
};

// What Orphans knows of a value (engine/orphans.h).
struct Want {
  std::int32_t by = 0;             // Wanted values that were made from it.
  std::int32_t orphan = kNowhere;  // Its place in the list of orphans.
};

// What Histories knows of a value (engine/histories.h): the recipes behind it, as an estimate, and
// how many they were when they were last counted.
struct History {
  std::uint16_t recipes = 0, walked = 0;
};

struct Value {
  Bytes size = 0;
  Nanos cost = 0ns;         // Of the distinct operators that made it and its views.
  Nanos last_access = 0ns;  // On the engine's clock, which each operator's cost advances.
  Op* producer = nullptr;   // Null: a constant. It is never evicted.
  Use* uses = nullptr;
  Value* base = nullptr;                  // Of a view: whose bytes it shares.
  Value* views = nullptr;                 // The first view of these bytes; of a view, the next one.
  EvictedClass* evicted_class = nullptr;  // Neighbourhood::eqclass: while it is missing.
  Region* region = nullptr;               // Neighbourhood::full: while it is resident.
  std::uint64_t mark = 0;                 // Of the last walk over the graph that met it.
  void* home = nullptr;               // Executor's: the program's storage. Null once that is gone.
  void* data = nullptr;               // Executor's: the content. Null while evicted.
  std::int32_t candidate = kNowhere;  // Its row in the engine's columns.
  // Index in the engine's list of recomputable values the program holds.
  std::int32_t owned = kNowhere;
  std::int32_t locks = 0;    // Running and pending operators that need the content where it is.
  std::int32_t waiting = 0;  // Of the locks, those of recomputations whose turn has not come.
  std::int32_t recomputes = 0;
  std::int32_t access = kNowhere;  // The last one: its place in the tape,
  std::uint32_t step = 0;          // and in which step it was.
  std::int32_t name = 0;           // In the trace that is being recorded.
  Need need;
  Want want;
  History history;
  std::uint16_t output = 0;           // Which output of its producer.
  std::uint16_t version = 0;          // In-place writes since the storage was fresh.
  bool dropped_while_locked = false;  // The content goes with the last lock.
  bool wanted = false;                // Missing, and its inputs count it (engine/orphans.h).
  bool stone = false;                 // Dropped, and it stays (engine/stepping_stones.h).
  bool unfilled = false;  // Executor's: locked until an operator that fills or reads it comes.
  bool copied = false;    // Executor's: a copy of what a constant was, for recipes alone.
  bool absent = false;    // Executor's: a constant whose content others took, and bring back.
  bool dying = false;     // Executor's: locked until the deleter of its storage has come.
  bool counted = false;   // Lineages': missing, and a walk came by.

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
  // No operator: it reads nothing, and brings its one output back from outside of memory.
  std::uint32_t reload : 1 = 0;
  std::uint16_t output_count = 0;
  std::uint16_t live_outputs = 0;  // Outputs still in the graph; the Op goes with the last.
  std::uint32_t bytes = 0;         // Of the whole block.

  Use* uses() { return reinterpret_cast<Use*>(this + 1); }
  Value** outputs() { return reinterpret_cast<Value**>(uses() + use_count); }
  void* payload() { return outputs() + output_count; }
};

inline bool Value::movable() const { return producer && producer->reload; }

}  // namespace dtr
