// The constants that recipes read: storages that we do not track (parameters, inputs, results that
// are not recorded), kept alive while a recipe may need them.
//
// A constant can be written, or handed out to be written at any time. The recipes that read it must
// still find what was there. They get a copy, or what rests on them is computed and becomes
// constant itself: whichever is smaller, and the copies that recipes hold already count. Otherwise
// a program that changes its parameters could keep one of each for the sake of a small result.
//
// A constant is found by its storage. A library may have handed the same memory out twice
// (from_numpy, DLPack): its constants are also found by the addresses that they cover.
//
// The engine's lock is held in all calls.

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

  Value& of(c10::StorageImpl* storage);  // Made where there was none.
  Value* find(const c10::StorageImpl* storage) const;
  void add(Value& value, c10::StorageImpl* storage);  // It has become one.
  // Those of the storages that recipes read still: others may be gone, or are the program's alone.
  void arm(c10::ArrayRef<c10::StorageImpl*> storages) const;
  void forget(Value& constant);  // No recipe reads it any more.

  // What recipes read of the memory that `storage` covers, through it or another storage, is about
  // to be written. Returns the bytes of copies, and of values that can no longer be evicted.
  struct Kept {
    Bytes copied = 0, kept = 0;
  };
  Kept keep_content(c10::StorageImpl* storage, Lock& lock);
  // Others take the content of `storage`, and bring it back: FSDP frees a layer's parameters
  // between its passes. Meanwhile the storage may be resized and written, and no recipe reads it.
  // Where other content comes back, as after a step of the optimizer, no recipe reads it ever
  // again.
  //
  // The program may hold what was computed from it and is evicted. That stays where nothing will
  // bring the content back in time: all of it after the last use, and what was made or read since
  // the content came where nothing is differentiated.
  enum class Stays { kNothing, kSinceItCame, kAll };
  void content_goes(c10::StorageImpl* storage, Stays stays, Lock& lock);
  void content_is_back(c10::StorageImpl* storage);
  bool some_absent() const { return !absent_.empty(); }

  // Gives the recipes that read a constant, locked by the caller, a copy of their own.
  void give_copy(Value& constant, Lock& lock);

  // Whether the program has let a constant go, so that its memory is spent for recipes alone.
  static bool kept_for_recipes(const Value& constant) {
    return c10::raw::intrusive_ptr::use_count(constant_storage(constant)) == 1;
  }
  // Lets go of constants that a small result is worth less than, once for each doubling of their
  // number: a program may keep a small result of each batch, and never want for memory.
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
  ska::flat_hash_set<c10::StorageImpl*> of_libraries_;      // Those whose memory is a library's.
  Bytes copies_ = 0;                                        // Held by recipes.
  ska::flat_hash_map<const Value*, std::uint64_t> absent_;  // The checksums of their contents.
  std::size_t shed_at_ = kFirstShedding;                    // Constants.
};

}  // namespace dtr
