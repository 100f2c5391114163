// Records the computation: which contents the runtime may evict, and how to recompute them.
//
// A Value is the content of a storage at one version. An Op is its recipe: the operator that made
// the Value, with its inputs. A storage that is written in place gets a new Value; the old Value
// stays in the graph, without a storage, while a recipe reads it. A Value owns its producer (an
// Op), an Op its inputs; this makes no cycles. If nodes were storages, writes could make some.
//
// An Op is one block of memory: the struct, its uses (links to inputs), its outputs, then what the
// executor needs to run it. Values and Ops cost memory beyond the budget. So they are small (176
// bytes a Value, 384 with the recipe of an addition) and lie in slabs (records.h).
//
// By the rules of the paper's simulator, a view is a Value of 0 bytes, with its own recipe, linked
// to the Value whose bytes it shares. A view loses its content with that Value, but is recomputed
// by its own recipe. In the live runtime views cost nothing and have no Value.

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
  Use** link;  // The pointer to this Use: the Value's `uses`, or the previous Use's `next`.
};

constexpr std::int32_t kNowhere = -1;

// What class Needs (engine/needs.h) stores for a value. Its times are on the tape's clock (tape.h).
struct Need {
  Nanos next = 0ns, behind = 0ns;   // Its need; the first need of missing values made from it.
  std::uint32_t round = 0;          // Needs::round_ when both were set.
  std::int32_t awaited = kNowhere;  // Its index in Awaited (engine/awaited.h).
};

// What class Orphans (engine/orphans.h) stores for a value.
struct Want {
  std::int32_t by = 0;             // Number of wanted values that were made from it.
  std::int32_t orphan = kNowhere;  // Its index in the list of orphans.
};

// What class Histories (engine/histories.h) stores for a value: an estimate of the recipes in its
// history, now and after the last walk over them.
struct History {
  std::uint16_t recipes = 0, walked = 0;
};

struct Value {
  Bytes size = 0;
  Nanos cost = 0ns;         // The sum for the operators that made it and its views.
  Nanos last_access = 0ns;  // On the engine's clock, which each operator's cost advances.
  Op* producer = nullptr;   // Null for a constant, which is never evicted.
  Use* uses = nullptr;
  Value* base = nullptr;                  // For a view: the value whose bytes it shares.
  Value* views = nullptr;                 // Its first view; for a view, the next view of `base`.
  EvictedClass* evicted_class = nullptr;  // Its class (while missing) or set (if kMegEngine).
  Region* region = nullptr;               // Its regions (kFull, if resident).
  std::uint64_t mark = 0;                 // The number of the last graph walk that visited it.
  void* home = nullptr;                   // Executor's: the program's storage; null once dropped.
  void* data = nullptr;                   // Executor's: the content; null while evicted.
  std::int32_t candidate = kNowhere;      // Its row in the engine's columns.
  std::int32_t owned = kNowhere;          // Its index in Engine::owned().
  std::int32_t locks = 0;    // Operators, running or waiting, that need the content in memory.
  std::int32_t waiting = 0;  // Locks by operators that still wait for another input.
  std::int32_t recomputes = 0;
  std::int32_t access = kNowhere;  // Its last access: the index in its step's tape,
  std::uint32_t step = 0;          // and the step's number.
  std::int32_t name = 0;           // Its number in the trace that is being recorded.
  Need need;
  Want want;
  History history;
  std::uint16_t output = 0;           // Its index among its producer's outputs.
  std::uint16_t version = 0;          // How many in-place writes its storage had.
  bool dropped_while_locked = false;  // To be freed when the last lock is released.
  bool wanted = false;                // It is missing and wanted (engine/orphans.h).
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
  std::uint32_t together : 1 = 0;  // Its outputs are evicted together: one run makes them all.
  std::uint32_t reload : 1 = 0;    // No operator: it copies its one output back from the swap.
  std::uint16_t output_count = 0;
  std::uint16_t live_outputs = 0;  // Outputs still in the graph; without any, the Op is freed.
  std::uint32_t bytes = 0;         // The whole block's size.

  Use* uses() { return reinterpret_cast<Use*>(this + 1); }
  Value** outputs() { return reinterpret_cast<Value**>(uses() + use_count); }
  void* payload() { return outputs() + output_count; }
};

inline bool Value::movable() const { return producer && producer->reload; }

}  // namespace dtr
