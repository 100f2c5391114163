// Maps storages to values, and values to storages.
//
// A tracked storage, resident or evicted, carries its Value in its DataPtr (context = Value,
// deleter = storage_died). The Value points back at the storage, so no lookup is needed. When the
// storage dies, torch calls the deleter. An evicted storage has a null pointer, and refuses raw
// access with a text that says what to do. Untracked storages are constants (constants.h).
//
// A storage may die in any thread, even in Python's garbage collector, while another thread evicts
// its value. So the Value has only a weak pointer to the storage: we keep no garbage cycle and no
// retained graph alive (DESIGN.md, rules 9 and 10). When the storage dies, torch calls the deleter
// while the object still exists. The deleter waits for the engine's lock, and meanwhile nothing
// else may use the storage's DataPtr. So home_of() is the only way to a value's storage.
//
// Functions are called with the engine's lock held, unless they are static or const.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dtr_alloc/pool/csrc/memory.h"
#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/storages/storage_access.h"
#include "runtime/csrc/live/trace/event_log.h"

namespace dtr {

class TraceRecorder;

// Read a Value's `home` and `data`. In a tracked value, `home` is a weak pointer to its storage,
// and `data` its block. In a constant both are its storage, and `home` is a strong pointer.
inline c10::StorageImpl* home_storage(const Value& value) {
  return static_cast<c10::StorageImpl*>(value.home);
}
inline c10::StorageImpl* constant_storage(const Value& value) {
  return static_cast<c10::StorageImpl*>(value.data);
}
inline Block* block_of(const Value& value) { return static_cast<Block*>(value.data); }

// Replaces the DataPtr of a tracked or new storage, without a call of the old one's deleter.
inline void repoint(c10::StorageImpl* storage, at::DataPtr to) {
  at::DataPtr& pointer = pointer_of(storage);
  pointer.release_context();
  pointer = std::move(to);
}
inline StoragePtr storage_over(at::DataPtr data, Bytes bytes, at::Allocator* allocator = nullptr) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               std::move(data), allocator, false);
}
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {  // Null if it has none.
  return storage_of(*tensor.unsafeGetTensorImpl());
}

class StorageTable {
 public:
  struct Dead {
    c10::SmallVector<StoragePtr, 8> storages;
    std::vector<at::Tensor> tensors;
  };
  struct Disown {
    Memory* memory = nullptr;
    void operator()(Block* block) const { memory->disown(block); }
  };
  using Adopted = std::unique_ptr<Block, Disown>;

  // `allocate` is called without the engine's lock. It may throw torch.OutOfMemoryError.
  using Allocate = std::function<void*(Bytes)>;
  StorageTable(Engine& engine, Memory& memory, const SessionDevice& device, Allocate allocate,
               const std::atomic<TraceRecorder*>& recorder, EventLog& events)
      : engine_(engine),
        memory_(memory),
        device_(device),
        allocate_(std::move(allocate)),
        recorder_(recorder),
        events_(events) {}

  // Needs no lock: a tracked storage has the same deleter whether it is evicted or not.
  static bool tracked(const c10::StorageImpl* storage) {
    return pointer_of(storage).get_deleter() == &storage_died;
  }
  static Value* value_of(const c10::StorageImpl* storage) {  // Null if it is not tracked.
    return tracked(storage) ? static_cast<Value*>(pointer_of(storage).get_context()) : nullptr;
  }
  static Value* value_of(const at::Tensor& tensor);
  // Returns the block of an untracked storage in this session's memory, else null.
  Block* block_of(const c10::StorageImpl* storage) const;
  // The same, for a storage that will be tracked now. The result's destructor disowns the block
  // (memory.h), unless the block was released to attach() or fill().
  Adopted adopt(const c10::StorageImpl* storage);
  at::DataPtr ordinary(Block* block);  // Ends the block's tracking, and returns its memory.
  void* data_of(const Block& block) const { return memory_.data(&block); }
  void* data_of(const Value& value) const;                    // For a resident value or a constant.
  const void* key_of(const c10::StorageImpl* storage) const;  // For traces (trace_recorder.h).
  Engine& engine() const { return engine_; }
  Memory& memory() const { return memory_; }
  const SessionDevice& device() const { return device_; }
  EventLog& events() const { return events_; }

  // Returns a value's storage, which lives until the lock is next released. Returns null if the
  // program has dropped the storage. Its deleter may then be waiting for the lock in another
  // thread, so this function does the deleter's work.
  c10::StorageImpl* home_of(Value& value);
  void forget_home(Value& value);

  void attach(c10::StorageImpl* storage, Value& value, Block* block);  // Begins to track `storage`.
  void detach(c10::StorageImpl* storage, Block* block);                // Makes `storage` ordinary.
  void empty(c10::StorageImpl* storage, Value& value);  // Marks a tracked storage as evicted.
  void lose(Value& value);  // In a forked child: gives up a missing value for good.
  // Makes `block` the memory of a missing value, and of its storage if the program holds that.
  void fill(Value& value, Block* block);
  // Arms the value's storage again (storage_access.h), if the program holds it.
  void arm(const Value& value);
  static void arm(c10::StorageImpl* constant) { dtr::arm(constant, &raw_access); }
  // Makes the storage ordinary, so that the program may write it without our notice. The old value
  // remains, without memory, while recipes read it.
  void let_write(Value& value, c10::StorageImpl& storage);
  void free(Block* block);

  // Both allocate memory; copy_of() copies `content` there. Called without the engine's lock.
  at::DataPtr new_memory(Bytes bytes) const { return device_.ordinary(allocate_(bytes)); }
  at::DataPtr copy_of(const void* content, Bytes bytes) const;
  // Copies the storage's first `bytes`, with the lock released during the copy.
  StoragePtr copy_of(const c10::StorageImpl& storage, Bytes bytes, Lock& lock) const;

  // Keep storages, and tensors that Python has seen, until the lock is released, because they must
  // not die while it is held.
  void bury(StoragePtr storage) { dead_.storages.push_back(std::move(storage)); }
  void bury(at::Tensor tensor) { dead_.tensors.push_back(std::move(tensor)); }
  bool has_dead() const { return !dead_.storages.empty() || !dead_.tensors.empty(); }
  bool has_dead_tensors() const { return !dead_.tensors.empty(); }
  Dead take_dead() { return std::exchange(dead_, Dead()); }
  void bury_with_lock_open(Lock& lock);

 private:
  void point(c10::StorageImpl* storage, Value& value, Block* block);
  void own(Value& value, Block* block);
  // Torch calls these two, in any thread: session/storage_callbacks.cpp.
  static void storage_died(void* value);      // The deleter of tracked storages.
  static void raw_access(c10::StorageImpl*);  // Our hook, before torch gives out a mutable pointer.

  Engine& engine_;
  Memory& memory_;
  const SessionDevice& device_;
  const Allocate allocate_;
  const std::atomic<TraceRecorder*>& recorder_;  // Null while nothing is recorded.
  EventLog& events_;
  Dead dead_;
};

}  // namespace dtr
