// Which storage holds which value.
//
// Whether resident or evicted, a tracked storage carries its Value in its DataPtr (context = Value,
// deleter = storage_died), and the Value points back at the storage. So neither needs a table to
// find the other. When the storage dies, torch calls the deleter. An evicted storage has a null
// pointer and refuses raw access with a text that says what to do. Storages that we do not track
// are constants (constants.h).
//
// A storage may die in any thread, Python's collector's included, while another thread evicts it.
// So a tracked storage is held weakly. Torch then calls the deleter while the object is still
// whole, and the deleter waits for the engine's lock. Until the deleter has the lock, the pointer
// that it was called through belongs to it: home_of() is the only way to a value's storage
// (DESIGN.md, rule 9).
//
// The engine's lock is held in all calls but those that are static or const.

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

namespace dtr {

class TraceRecorder;

// What a live Value's `home` and `data` point at. `home` is a weak pointer while the value is
// tracked, and a strong one of a constant. Of a constant, `data` is its storage too.
inline c10::StorageImpl* home_storage(const Value& value) {
  return static_cast<c10::StorageImpl*>(value.home);
}
inline c10::StorageImpl* constant_storage(const Value& value) {
  return static_cast<c10::StorageImpl*>(value.data);
}
inline Block* block_of(const Value& value) { return static_cast<Block*>(value.data); }

// A storage whose pointer had a value for its context, or a new storage, points there.
inline void repoint(c10::StorageImpl* storage, at::DataPtr to) {
  at::DataPtr& pointer = pointer_of(storage);
  pointer.release_context();
  pointer = std::move(to);
}
inline StoragePtr storage_over(at::DataPtr data, Bytes bytes, at::Allocator* allocator = nullptr) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               std::move(data), allocator, false);
}
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {  // Null where it has none.
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

  // `allocate` gives memory, with the lock open; it throws torch.OutOfMemoryError.
  using Allocate = std::function<void*(Bytes)>;
  StorageTable(Engine& engine, Memory& memory, const SessionDevice& device, Allocate allocate,
               const std::atomic<TraceRecorder*>& recorder)
      : engine_(engine),
        memory_(memory),
        device_(device),
        allocate_(std::move(allocate)),
        recorder_(recorder) {}

  // Needs no lock: of a tracked storage, evicted or not, the deleter stays as it is.
  static bool tracked(const c10::StorageImpl* storage);
  static Value* value_of(const c10::StorageImpl* storage);  // Null of one that is not tracked.
  static Value* value_of(const at::Tensor& tensor);
  // The block of an ordinary storage that lies in this session's memory, else null.
  Block* block_of(const c10::StorageImpl* storage) const;
  // The same, of a storage about to be tracked. The block is disowned again unless it is released
  // to attach() or fill().
  Adopted adopt(const c10::StorageImpl* storage);
  at::DataPtr ordinary(Block* block);  // Its memory, which nobody tracks from now on.
  void* data_of(const Block& block) const { return memory_.data(&block); }
  void* data_of(const Value& value) const;                    // Resident; a constant's too.
  const void* key_of(const c10::StorageImpl* storage) const;  // Of a trace (trace_recorder.h).
  Engine& engine() const { return engine_; }
  Memory& memory() const { return memory_; }
  const SessionDevice& device() const { return device_; }

  // The storage of a value, alive until the lock is next opened. Null where the program has let it
  // go: its deleter may be waiting for the lock in another thread, and what the deleter would do
  // is done at once.
  c10::StorageImpl* home_of(Value& value);
  void forget_home(Value& value);

  void attach(c10::StorageImpl* storage, Value& value, Block* block);  // Tracked from now on.
  void detach(c10::StorageImpl* storage, Block* block);                // Ordinary from now on.
  void empty(c10::StorageImpl* storage, Value& value);  // Tracked, and evicted from now on.
  void lose(Value& value);  // Missing, and never to be there again: this is a forked child.
  // A missing value has the content of `block`; where the program holds it, its storage shows it.
  void fill(Value& value, Block* block);
  // Tells of raw access again, if the value is one that the program holds.
  void arm(const Value& value);
  static void arm(c10::StorageImpl* constant) { dtr::arm(constant, &raw_access); }
  // The program may write a storage from now on without telling: it is an ordinary one. Its value
  // stays for the recipes that read it, without memory.
  void let_write(Value& value, c10::StorageImpl& storage);
  void free(Block* block);

  // New memory, and some with the same content; with the lock open.
  at::DataPtr new_memory(Bytes bytes) const { return device_.ordinary(allocate_(bytes)); }
  at::DataPtr copy_of(const void* content, Bytes bytes) const;
  // A storage with so many bytes of another. Opens the lock meanwhile.
  StoragePtr copy_of(const c10::StorageImpl& storage, Bytes bytes, Lock& lock) const;

  // What must not die under the lock does once it is open: storages, and tensors that Python has
  // seen.
  void bury(StoragePtr storage) { dead_.storages.push_back(std::move(storage)); }
  void bury(at::Tensor tensor) { dead_.tensors.push_back(std::move(tensor)); }
  bool has_dead() const { return !dead_.storages.empty() || !dead_.tensors.empty(); }
  bool has_dead_tensors() const { return !dead_.tensors.empty(); }
  Dead take_dead() { return std::exchange(dead_, Dead()); }
  void bury_with_lock_open(Lock& lock);

 private:
  void point(c10::StorageImpl* storage, Value& value, Block* block);
  // Torch calls these two, in any thread: session/storage_callbacks.cpp.
  static void storage_died(void* value);      // Deleter of tracked storages.
  static void raw_access(c10::StorageImpl*);  // A mutable pointer is about to leave torch.

  Engine& engine_;
  Memory& memory_;
  const SessionDevice& device_;
  const Allocate allocate_;
  const std::atomic<TraceRecorder*>& recorder_;  // Null while nothing is recorded.
  Dead dead_;
};

}  // namespace dtr
