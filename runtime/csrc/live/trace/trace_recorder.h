// Records what a scope's program does, so that the simulator can repeat it.
//
// The record has all that influences evictions: which storages an operator reads and makes, what it
// costs, every allocation and release inside it, when storages die, and when values stop being
// recomputable. It is one vector of integers, which runtime/scope/record.py turns into lines.
// Storages get names in program order, and replays are left out, so a trace is the same at every
// budget. Recording takes 0.2 to 0.4 us for an operator of few tensors
// (perf/cost/trace_overhead.py).

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

  // The first name comes after `last`, so that two recordings of a scope never share a name.
  TraceRecorder(Name last, bool recipes) : recipes_(recipes), first_(last + 1), last_(last) {}
  Name last() const { return last_; }

  // A record is its kind, the number of its fields, and the fields:
  //   kOperator: operator, cost, then four lists, each after its length: names of the arguments;
  //     positions of the written arguments; results (name, bytes, allocation's number, tracked)
  //     and written arguments (name, 0, -1, tracked); its memory events (MemoryEvent, number).
  //   kConstant: name, bytes in the pool.
  //   kRelease, kFreeze: name. The storage has died, or is a constant from now on.
  //   kStep, kOptimizing: no fields. An optimizer's step has ended, or begins.
  enum Kind : std::int64_t { DTR_RECORD_KINDS(DTR_ENUMERATOR) };
  enum MemoryEvent : std::int64_t { DTR_MEMORY_EVENTS(DTR_ENUMERATOR) };

  struct Result {
    const void* key;
    const void* data;  // Null for a written argument.
    bool tracked;
  };

  // A storage's key is its address; or its data pointer, if it has a block of the session's memory
  // but no value. `copies`: bytes of each argument that a replay copies before the operator runs.
  void begin(c10::ArrayRef<const void*> arguments, c10::ArrayRef<std::int64_t> written,
             c10::ArrayRef<Bytes> copies);
  void end(const OperatorInfo& info, Nanos cost, c10::ArrayRef<Result> results);
  void abandon();  // Call if the operator threw an exception.

  void found(const void* key, Bytes bytes);  // The storage existed before the recording began.
  void allocated(const void* data, Bytes size);
  void freed(const void* data);
  void died(const void* key);
  void rekey(const void* from, const void* to);
  void froze(const void* key);
  void mark(Kind kind);  // kStep or kOptimizing.
  void evicted(const Value& value);
  // For a session without recipes: a constant of `bytes` is about to be written. As in
  // Constants::keep_content, the tracked values made from it, even indirectly, then either have a
  // copy as their source, or stop being recomputable.
  void overwritten(const void* key, Bytes bytes);
  Name name_of(const void* key);  // Returns 0 if the storage has no name.
  // For a session without recipes: whether end() recorded the storage as a tracked result.
  bool tracks(const void* key);

  // Everything recorded so far.
  struct Records {
    std::vector<std::int64_t> records;
    std::vector<std::string> operators;
    // Evictions, in order, of values named in this recording: pairs (name, version).
    std::vector<std::int64_t> evictions;
  };
  Records take();
  Records copy();
  std::size_t length();  // Number of integers in the records.
  std::mutex& mutex() { return mutex_; }

 private:
  struct Local {
    const void* data;
    Bytes size;
    bool alive;
  };

  // A copy of a constant's content, made before a write because recipes would read the content.
  struct Copy {
    Name name;
    Bytes bytes;
    Name needed_by;  // One of the values made from this content.
  };
  struct Resting {  // Tracked values computed from a constant: their bytes, and one name.
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
  // These add an entry to `made_`: for a result, for a written argument, or for other memory that
  // the operator allocated and did not free.
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
  ska::flat_hash_map<Name, std::vector<Name>> made_of_;  // By name: tracked results made from it.
  std::vector<Copy> copies_;
  Bytes copied_ = 0;  // Sum of the bytes in `copies_`.
  ska::flat_hash_map<const OperatorInfo*, std::int64_t> operators_;
  const bool recipes_;
  Name first_, last_;
  // About the operator that is running.
  bool running_ = false;
  std::vector<std::int64_t> arguments_, written_, made_, memory_;
  std::vector<Local> locals_;
  std::vector<Name> released_;
};

}  // namespace dtr
