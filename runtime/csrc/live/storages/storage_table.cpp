#include "runtime/csrc/live/storages/storage_table.h"

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/graph/owner.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/profiler.h"
#include "runtime/csrc/live/machine/unlocked.h"
#include "runtime/csrc/live/trace/trace_recorder.h"

namespace dtr {
namespace {

// The text of raw access to an evicted tensor. It is copied at every eviction, hence short.
const char kEvictedText[] =
    "this tensor is evicted: dtr_alloc.materialize(tensor) brings it back; a thread other than the "
    "scope's joins it by dtr_alloc.join_scope(), or gets tensors after dtr_alloc.pin(tensor)";

const char kLostText[] =
    "this tensor was not in memory when this process was forked: dtr_alloc.pin(tensor) before the "
    "fork keeps it there";

}  // namespace

Value* StorageTable::value_of(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  return storage ? value_of(storage) : nullptr;
}

Block* StorageTable::block_of(const c10::StorageImpl* storage) const {
  const at::DataPtr& pointer = pointer_of(storage);
  if (pointer.get_deleter() != device_.deleter) return nullptr;
  return memory_.find(pointer.get());
}

StorageTable::Adopted StorageTable::adopt(const c10::StorageImpl* storage) {
  const at::DataPtr& pointer = pointer_of(storage);
  const bool ours = pointer.get_deleter() == device_.deleter;
  return Adopted(ours ? memory_.adopt(pointer.get(), bytes_of(storage)) : nullptr,
                 Disown{&memory_});
}

at::DataPtr StorageTable::ordinary(Block* block) {
  set_owner(*block, nullptr);
  void* data = memory_.data(block);
  events_.note(EventLog::Kind::kConstant, data);
  memory_.disown(block);
  return device_.ordinary(data);
}

void* StorageTable::data_of(const Value& value) const {
  return value.constant() ? pointer_of(constant_storage(value)).get()
                          : memory_.data(dtr::block_of(value));
}

const void* StorageTable::key_of(const c10::StorageImpl* storage) const {
  if (tracked(storage)) return storage;
  const Block* block = block_of(storage);
  return block ? data_of(*block) : static_cast<const void*>(storage);
}

c10::StorageImpl* StorageTable::home_of(Value& value) {
  if (!value.home) return nullptr;
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(home_storage(value));
  StoragePtr home = weak.lock();
  weak.release();
  if (home) {
    bury(home);  // Ours may be the last reference by the time it goes.
    return home.get();
  }
  keep_until_died(engine_, value);
  forget_home(value);
  return nullptr;
}

void StorageTable::forget_home(Value& value) {
  used(engine_, value);
  if (TraceRecorder* recorder = recorder_) recorder->died(value.home);
  c10::raw::weak_intrusive_ptr::decref(home_storage(value));
  engine_.dropped(value);
}

void StorageTable::attach(c10::StorageImpl* storage, Value& value, Block* block) {
  point(storage, value, block);
  if (TraceRecorder* recorder = recorder_) {
    recorder->rekey(memory_.data(block), storage);
    value.name = recorder->name_of(storage);
  }
}

void StorageTable::point(c10::StorageImpl* storage, Value& value, Block* block) {
  if (!tracked(storage)) c10::raw::weak_intrusive_ptr::incref(storage);
  repoint(storage, {memory_.data(block), &value, &storage_died, device_.device});
  own(value, block);
  dtr::arm(storage, &raw_access);
}

void StorageTable::own(Value& value, Block* block) {
  set_owner(*block, &value);
  if (events_.keeps()) events_.note(EventLog::Kind::kEvictable, memory_.data(block));
}

void StorageTable::detach(c10::StorageImpl* storage, Block* block) {
  c10::raw::weak_intrusive_ptr::decref(storage);
  // From now on no operator tells the memory who reads it (MemoryRequests::follow_stream).
  if (memory_.many_streams()) memory_.record_every_stream(block);
  repoint(storage, ordinary(block));
  disarm(storage);
  if (TraceRecorder* recorder = recorder_) recorder->rekey(storage, pointer_of(storage).get());
}

void StorageTable::empty(c10::StorageImpl* storage, Value& value) {
  repoint(storage, {nullptr, &value, &storage_died, device_.device});
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kEvictedText);
}

void StorageTable::lose(Value& value) {
  if (c10::StorageImpl* storage = home_of(value)) {
    repoint(storage, {nullptr, device_.device});
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kLostText);
    forget_home(value);
  }
}

void StorageTable::fill(Value& value, Block* block) {
  if (c10::StorageImpl* home = home_of(value)) {
    readmit(*home);
    point(home, value, block);  // Not a new value: its name, if it has one, stays.
  } else {
    own(value, block);
  }
  engine_.restore(value, block);
}

void StorageTable::arm(const Value& value) {
  if (value.producer && value.home) dtr::arm(home_storage(value), &raw_access);
}

void StorageTable::let_write(Value& value, c10::StorageImpl& storage) {
  used(engine_, value);
  if (TraceRecorder* recorder = recorder_) recorder->froze(&storage);
  detach(&storage, dtr::block_of(value));
  engine_.overwritten(value);
}

void StorageTable::free(Block* block) {
  if (memory_.is_torchs()) {
    const Bytes size = block->size;
    return bury(storage_over(ordinary(block), size));
  }
  set_owner(*block, nullptr);
  tell_profiler(memory_, *block, -block->size, device_.device);
  memory_.free(block);
}

at::DataPtr StorageTable::copy_of(const void* content, Bytes bytes) const {
  const Bytes remainder = remainder_of(content);
  void* const block = allocate_(bytes + remainder);
  at::DataPtr data(static_cast<char*>(block) + remainder, block, device_.deleter, device_.device);
  device_.copy(data.get(), content, bytes);
  return data;
}

// Of a storage that was resized behind the dispatcher there is nothing to copy: a recipe that reads
// the copy then says so (Replayer::lay_over).
StoragePtr StorageTable::copy_of(const c10::StorageImpl& storage, Bytes bytes, Lock& lock) const {
  Unlocked open(lock);
  at::DataPtr data = device_.ordinary(nullptr);
  if (bytes_of(&storage) >= bytes) data = copy_of(pointer_of(&storage).get(), bytes);
  return storage_over(std::move(data), bytes, device_.allocator);
}

void StorageTable::bury_with_lock_open(Lock& lock) {
  if (!has_dead()) return;
  Dead dead = take_dead();
  Unlocked open(lock);
  dead = Dead();
}

}  // namespace dtr
