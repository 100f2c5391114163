#include "runtime/csrc/live/trace/trace_recorder.h"

#include <utility>

namespace dtr {

void TraceRecorder::put(Kind kind, std::initializer_list<std::int64_t> fields) {
  out_.records.push_back(kind);
  out_.records.push_back(static_cast<std::int64_t>(fields.size()));
  out_.records.insert(out_.records.end(), fields);
}

TraceRecorder::Name TraceRecorder::find(const void* key) const {
  const auto known = names_.find(key);
  return known == names_.end() ? 0 : known->second;
}

TraceRecorder::Name TraceRecorder::constant(const void* key, Bytes bytes) {
  Name name = names_[key] = ++last_;
  put(kConstant, {name, bytes});
  return name;
}

void TraceRecorder::begin(c10::ArrayRef<const void*> arguments, c10::ArrayRef<std::int64_t> written,
                          c10::ArrayRef<Bytes> copies) {
  std::lock_guard guard(mutex_);
  for (const void* key : arguments) {
    const Name known = find(key);
    arguments_.push_back(known ? known : constant(key, 0));
  }
  written_.assign(written.begin(), written.end());
  for (Bytes bytes : copies) {
    if (bytes > 0) memory_.insert(memory_.end(), {kCopied, bytes});
  }
  running_ = true;
}

void TraceRecorder::end(const OperatorInfo& info, Nanos cost, c10::ArrayRef<Result> results) {
  std::lock_guard guard(mutex_);
  if (!running_) return;  // The recording began inside the operator.
  auto [known, fresh] = operators_.insert({&info, static_cast<std::int64_t>(operators_.size())});
  if (fresh) out_.operators.push_back(info.name);
  std::size_t written = 0;
  for (const Result& result : results) {
    if (result.data) {
      name_result(result);
    } else {
      name_written(static_cast<Name>(arguments_[written_[written++]]), result.tracked);
    }
  }
  name_other_locals();
  if (!recipes_) follow_results();
  put_operator(known->second, cost);
  forget_operator();
}

void TraceRecorder::name_result(const Result& result) {
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    if (locals_[i].data != result.data || !locals_[i].alive) continue;
    locals_[i].alive = false;  // It has a name now.
    name_local(i, result.key, result.tracked);
    if (result.tracked && !recipes_) tracked_[last_] = locals_[i].size;
  }
}

void TraceRecorder::name_written(Name name, bool tracked) {
  made_.insert(made_.end(), {name, 0, -1, std::int64_t{tracked}});
  if (!tracked) untrack(name);
}

void TraceRecorder::name_local(std::size_t index, const void* key, bool tracked) {
  names_[key] = ++last_;
  made_.insert(made_.end(), {std::int64_t{last_}, locals_[index].size,
                             static_cast<std::int64_t>(index), std::int64_t{tracked}});
}

// What is no result: a cache, say.
void TraceRecorder::name_other_locals() {
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    if (locals_[i].alive) name_local(i, locals_[i].data, false);
  }
}

void TraceRecorder::follow_results() {
  for (std::size_t i = 0; i < made_.size(); i += 4) {
    if (!made_[i + 3]) continue;
    const auto made = static_cast<Name>(made_[i]);
    for (std::int64_t argument : arguments_) {
      if (argument != made) made_of_[static_cast<Name>(argument)].push_back(made);
    }
  }
}

void TraceRecorder::put_operator(std::int64_t number, Nanos cost) {
  auto& out = out_.records;
  out.push_back(kOperator);
  out.push_back(static_cast<std::int64_t>(6 + arguments_.size() + written_.size() + made_.size() +
                                          memory_.size()));
  out.insert(out.end(), {number, cost.count()});
  for (const auto* list : {&arguments_, &written_, &made_, &memory_}) {
    out.push_back(static_cast<std::int64_t>(list->size()));
    out.insert(out.end(), list->begin(), list->end());
  }
}

// What it left behind comes from outside as far as the trace can tell.
void TraceRecorder::abandon() {
  std::lock_guard guard(mutex_);
  for (const Local& local : locals_) {
    if (local.alive) constant(local.data, local.size);
  }
  forget_operator();
}

void TraceRecorder::forget_operator() {
  for (Name name : released_) put(kRelease, {name});
  arguments_.clear();
  written_.clear();
  made_.clear();
  memory_.clear();
  locals_.clear();
  released_.clear();
  running_ = false;
}

void TraceRecorder::found(const void* key, Bytes bytes) {
  std::lock_guard guard(mutex_);
  constant(key, bytes);
}

void TraceRecorder::allocated(const void* data, Bytes size) {
  std::lock_guard guard(mutex_);
  if (!running_) {
    constant(data, size);
    return;
  }
  memory_.insert(memory_.end(), {kAllocated, size});
  locals_.push_back({data, size, true});
}

void TraceRecorder::freed(const void* data) {
  std::lock_guard guard(mutex_);
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    if (locals_[i].data != data || !locals_[i].alive) continue;
    locals_[i].alive = false;
    memory_.insert(memory_.end(), {kFreed, static_cast<std::int64_t>(i)});
    return;
  }
  release(data);
}

void TraceRecorder::died(const void* key) {
  std::lock_guard guard(mutex_);
  release(key);
}

void TraceRecorder::release(const void* key) {
  const Name name = find(key);
  if (!name) return;  // From before the trace.
  names_.erase(key);
  put_release(name);
  untrack(name);
}

void TraceRecorder::put_release(Name name) {
  if (running_) {
    memory_.insert(memory_.end(), {kReleased, name});
    released_.push_back(name);
  } else {
    put(kRelease, {name});
  }
}

// A copy goes with the last value that rests on it.
void TraceRecorder::untrack(Name name) {
  if (!tracked_.erase(name)) return;
  std::erase_if(copies_, [&](Copy& copy) {
    if (copy.needed_by != name) return false;
    copy.needed_by = resting_on(copy.name, 1).one;
    if (copy.needed_by) return false;
    copied_ -= copy.bytes;
    put_release(copy.name);
    made_of_.erase(copy.name);
    return true;
  });
}

void TraceRecorder::rekey(const void* from, const void* to) {
  std::lock_guard guard(mutex_);
  const Name name = find(from);
  if (!name || from == to) return;
  names_.erase(from);
  names_[to] = name;
}

void TraceRecorder::froze(const void* key) {
  std::lock_guard guard(mutex_);
  const Name name = find(key);
  if (!name) return;
  put(kFreeze, {name});
  untrack(name);
}

void TraceRecorder::mark(Kind kind) {
  std::lock_guard guard(mutex_);
  put(kind, {});
}

void TraceRecorder::evicted(const Value& value) {
  std::lock_guard guard(mutex_);
  if (value.name < first_) return;
  out_.evictions.insert(out_.evictions.end(), {value.name, value.version});
}

TraceRecorder::Name TraceRecorder::name_of(const void* key) {
  std::lock_guard guard(mutex_);
  return find(key);
}

void TraceRecorder::overwritten(const void* key, Bytes bytes) {
  std::lock_guard guard(mutex_);
  const Name name = find(key);
  if (!name) return;
  const Resting resting = resting_on(name, copied_ + bytes + 1);
  if (resting.bytes <= copied_ + bytes) return retire(name);
  const Name copy = ++last_;
  put(kConstant, {copy, bytes});
  std::vector<Name> readers = std::move(made_of_[name]);
  made_of_.erase(name);
  made_of_[copy] = std::move(readers);
  copies_.push_back({copy, bytes, resting.one});
  copied_ += bytes;
}

TraceRecorder::Resting TraceRecorder::resting_on(Name constant, Bytes enough) const {
  Resting found;
  ska::flat_hash_set<Name> seen{constant};
  std::vector<Name> pending{constant};
  while (!pending.empty() && found.bytes < enough) {
    auto edges = made_of_.find(pending.back());
    pending.pop_back();
    if (edges == made_of_.end()) continue;
    for (Name name : edges->second) {
      if (!seen.insert(name).second) continue;
      pending.push_back(name);
      auto alive = tracked_.find(name);
      if (alive != tracked_.end()) found.bytes += alive->second, found.one = name;
    }
  }
  return found;
}

// What was found once has no live recipe left, so no edge is followed twice.
void TraceRecorder::retire(Name constant) {
  std::vector<Name> pending{constant};
  while (!pending.empty()) {
    const Name name = pending.back();
    pending.pop_back();
    if (tracked_.count(name)) put(kFreeze, {name}), untrack(name);
    auto edges = made_of_.find(name);
    if (edges == made_of_.end()) continue;
    pending.insert(pending.end(), edges->second.begin(), edges->second.end());
    made_of_.erase(edges);
  }
}

bool TraceRecorder::tracks(const void* key) {
  std::lock_guard guard(mutex_);
  return tracked_.count(find(key)) > 0;
}

std::size_t TraceRecorder::length() {
  std::lock_guard guard(mutex_);
  return out_.records.size();
}

TraceRecorder::Records TraceRecorder::copy() {
  std::lock_guard guard(mutex_);
  return out_;
}

TraceRecorder::Records TraceRecorder::take() {
  std::lock_guard guard(mutex_);
  return std::exchange(out_, {});
}

}  // namespace dtr
