// Writes down what a scope's program does, so that the simulator can do it again.
//
// What decides an eviction is on record: which storages an operator reads and makes, what it costs,
// every allocation and release inside it, when storages die, and what stops being recomputable.
// It goes into one vector of integers; runtime/scope/record.py makes lines of it afterwards. Names
// follow the program, not the evictions: a trace is the same at every budget. Replays are left out.
// Cost: 0.2 to 0.4 us for an operator of few tensors (perf/cost/trace_overhead.py).

#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/csrc/engine/trace_kinds.h"
#include "runtime/csrc/graph/graph.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

class TraceRecorder {
 public:
  using Name = std::int32_t;

  // Names go on from `last`, so that no two recordings of a scope share one.
  TraceRecorder(Name last, bool recipes) : recipes_(recipes), first_(last + 1), last_(last) {}
  Name last() const { return last_; }

  // Each record is its kind, its length without these two, and
  //   kOperator: operator, cost, then four lists with their lengths: names of the arguments;
  //     positions of those that are written; results as (name, bytes, block, tracked), for written
  //     ones (name, 0, -1, tracked); what happened to memory meanwhile, as (MemoryEvent, value).
  //   kConstant: name, bytes in the pool.
  //   kRelease, kFreeze: name.
  //   kStep, kOptimizing: nothing. A step of an optimizer ends; begins.
  enum Kind : std::int64_t { DTR_RECORD_KINDS(DTR_ENUMERATOR) };
  enum MemoryEvent : std::int64_t { DTR_MEMORY_EVENTS(DTR_ENUMERATOR) };

  struct Result {
    const void* key;
    const void* data;  // Null for a written argument.
    bool tracked;
  };

  // A storage's key is the storage itself where it is tracked or not from the pool, else its data.
  // `copies`: bytes that are copied each time before it runs again.
  void begin(c10::ArrayRef<const void*> arguments, c10::ArrayRef<std::int64_t> written,
             c10::ArrayRef<Bytes> copies);
  void end(const OperatorInfo& info, Nanos cost, c10::ArrayRef<Result> results);
  void abandon();  // The operator raised.

  void found(const void* key, Bytes bytes);  // In memory before the recording began.
  void allocated(const void* data, Bytes size);
  void freed(const void* data);
  void died(const void* key);
  void rekey(const void* from, const void* to);
  void froze(const void* key);
  void mark(Kind kind);  // kStep or kOptimizing.
  void evicted(const Value& value);
  // Where no recipes are made that would tell: a constant of so many bytes is about to be written.
  // What is tracked and was made of it, however indirectly, gets a copy to rest on, or stops being
  // recomputable, as in Constants::keep_content.
  void overwritten(const void* key, Bytes bytes);
  Name name_of(const void* key);  // 0 where it has none.
  // Whether it is a result that was said to be tracked, where no recipes tell.
  bool tracks(const void* key);

  // Everything so far.
  struct Records {
    std::vector<std::int64_t> records;
    std::vector<std::string> operators;
    // Pairs (name, version), in order; not of what was there before.
    std::vector<std::int64_t> evictions;
  };
  Records take();
  Records copy();
  std::size_t length();  // Of the records, in integers.
  std::mutex& mutex() { return mutex_; }

 private:
  struct Local {
    const void* data;
    Bytes size;
    bool alive;
  };

  // A constant's content from before a write, which recipes would read.
  struct Copy {
    Name name;
    Bytes bytes;
    Name needed_by;  // One of the values that rest on it.
  };
  struct Resting {
    Bytes bytes = 0;
    Name one = 0;
  };

  Name find(const void* key) const;
  Name constant(const void* key, Bytes bytes);
  void release(const void* key);
  void put_release(Name name);
  void untrack(Name name);
  Resting resting_on(Name constant, Bytes enough) const;
  void retire(Name constant);
  void put(Kind kind, std::initializer_list<std::int64_t> fields);
  // These add to `made_` what the operator leaves: the memory of a result, an argument that it
  // wrote, or memory that it allocated.
  void name_result(const Result& result);
  void name_written(Name name, bool tracked);
  void name_local(std::size_t index, const void* key, bool tracked);
  void name_other_locals();
  void follow_results();  // Links each argument to the tracked results.
  void put_operator(std::int64_t number, Nanos cost);
  void forget_operator();

  std::mutex mutex_;
  Records out_;
  ska::flat_hash_map<const void*, Name> names_;
  ska::flat_hash_map<Name, Bytes> tracked_;
  ska::flat_hash_map<Name, std::vector<Name>> made_of_;  // The tracked results of what reads it.
  std::vector<Copy> copies_;
  Bytes copied_ = 0;  // The bytes of them.
  ska::flat_hash_map<const OperatorInfo*, std::int64_t> operators_;
  const bool recipes_;  // Whether the session has them.
  Name first_, last_;
  // Of the operator that runs.
  bool running_ = false;
  std::vector<std::int64_t> arguments_, written_, made_, memory_;
  std::vector<Local> locals_;
  std::vector<Name> released_;
};

}  // namespace dtr
