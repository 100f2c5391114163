// Keeps the constants that recipes read: storages that we do not track (parameters, inputs, results
// that are not recorded), which stay in memory while a recipe may need them.
//
// A program may write a constant, or hand its memory out to be written at any time, but recipes
// still need the old content. So either recipes get a copy, or the values that rest on the constant
// are computed and become constants: whichever takes less memory, earlier copies included.
// Otherwise a program that changes its parameters could keep a copy of each for one small result.
//
// A constant is found by its storage. A library may have handed the same memory out twice
// (from_numpy, DLPack), so constants in its memory are also found by their addresses.
//
// All functions are called with the engine's lock held.

#pragma once

#include <c10/util/flat_hash_map.h>

#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/live/storages/mutation_detector.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

class Constants {
 public:
  // `detector` may be null.
  Constants(StorageTable& storages, MutationDetector* detector)
      : storages_(storages), detector_(detector) {}

  Value& of(c10::StorageImpl* storage);  // Makes it if there is none.
  Value* find(const c10::StorageImpl* storage) const;
  void add(Value& value, c10::StorageImpl* storage);  // It has become a constant.
  // Arms (storage_access.h) the storages that recipes still read; other pointers may be invalid.
  void arm(c10::ArrayRef<c10::StorageImpl*> storages) const;
  void forget(Value& constant);  // No recipe reads it any more.

  // Call before the memory that `storage` covers is written: keeps what recipes read of it, through
  // this or another storage. Returns the bytes of copies, and of values no longer evictable.
  struct Kept {
    Bytes copied = 0, kept = 0;
  };
  Kept keep_content(c10::StorageImpl* storage, Lock& lock);
  // Other code frees the content of `storage`, and restores it later: FSDP does so with a layer's
  // parameters between its passes. Meanwhile the storage may be resized and written, and no recipe
  // reads it. If different content comes back, as after an optimizer's step, no recipe reads it
  // ever again.
  //
  // The program may hold evicted values that were computed from it. Those that would be needed
  // before the content is back stay in memory: all after the last use; only those made or read
  // since the content came, if nothing is differentiated.
  enum class Stays { kNothing, kSinceItCame, kAll };
  void content_goes(c10::StorageImpl* storage, Stays stays, Lock& lock);
  void content_is_back(c10::StorageImpl* storage);
  bool some_absent() const { return !absent_.empty(); }

  // Gives the recipes that read a constant, locked by the caller, a copy of their own.
  void give_copy(Value& constant, Lock& lock);

  // Whether the program has dropped a constant, so that only recipes keep it in memory.
  static bool kept_for_recipes(const Value& constant) {
    return c10::raw::intrusive_ptr::use_count(constant_storage(constant)) == 1;
  }
  // Calls shed() (settle.h) for constants that only recipes hold, each time the constants have
  // doubled: a program may keep a small result of each batch, and never lack memory.
  void shed_sometimes();

 private:
  static bool overlap(const c10::StorageImpl* one, const c10::StorageImpl* other);
  bool of_library(const c10::StorageImpl* storage) const;
  c10::SmallVector<Value*, 4> over(c10::StorageImpl* storage) const;
  Kept keep_content(Value& constant, Lock& lock);
  void move_to(Value& constant, StoragePtr storage);

  static constexpr std::size_t kFirstShedding = 16;

  StorageTable& storages_;
  Engine& engine_ = storages_.engine();
  const SessionDevice& device_ = storages_.device();
  MutationDetector* const detector_;
  ska::flat_hash_map<c10::StorageImpl*, Value*> constants_;
  ska::flat_hash_set<c10::StorageImpl*> of_libraries_;      // Constants in a library's memory.
  Bytes copies_ = 0;                                        // Bytes that recipes hold.
  ska::flat_hash_map<const Value*, std::uint64_t> absent_;  // Checksums of absent contents.
  std::size_t shed_at_ = kFirstShedding;                    // Number of constants.
};

}  // namespace dtr
