// Keeps the constants that recipes read: storages that we do not track (parameters, inputs, results
// that are not recorded). A constant stays in memory while a recipe may need it.
//
// A program may write a constant, or give its memory to code that writes at any time, while recipes
// still need the old content. Then either recipes get a copy, or values computed from the constant
// are brought back and become constants. Recipes get the copy if those values take more memory than
// all copies, the new one included. Otherwise a program that changes its parameters could keep a
// copy of each for one small result.
//
// We find a constant by its storage, and one in a library's memory by its address too
// (library_constants.h). All functions are called with the engine's lock held.

#pragma once

#include <c10/util/flat_hash_map.h>

#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/live/storages/library_constants.h"
#include "runtime/csrc/live/storages/mutation_detector.h"
#include "runtime/csrc/live/storages/storage_table.h"

namespace dtr {

class Constants {
 public:
  // `detector` may be null.
  Constants(StorageTable& storages, MutationDetector* detector)
      : storages_(storages), detector_(detector) {}

  Value& of(c10::StorageImpl* storage);  // Makes the constant if there is none.
  Value* find(const c10::StorageImpl* storage) const;
  void add(Value& value, c10::StorageImpl* storage);  // Call when `value` became a constant.
  // Arms (storage_access.h) those of `storages` that recipes read. The others may have died.
  void arm(c10::ArrayRef<c10::StorageImpl*> storages) const;
  void forget(Value& constant);  // Call when no recipe reads it any more.

  // Call before the memory of `storage` is written. Keeps the content that recipes read there, even
  // through another storage. Returns the bytes of new copies, and of values kept instead of copies.
  struct Kept {
    Bytes copied = 0, kept = 0;
  };
  Kept keep_content(c10::StorageImpl* storage, Lock& lock);
  // Call when other code frees the content of `storage` and will restore it later: FSDP does so
  // with a layer's parameters between its passes. Until then the storage may be resized and
  // written, and recipes cannot read it. If different content is restored, as after an optimizer's
  // step, the old recipes can never run again.
  //
  // `stays`: which values computed from the content are first brought back and kept in memory,
  // because they may be read before the content is back. kAll, after the layer's last use: all.
  // kSinceItCame, if no backward pass will follow: those made or read since the content came.
  enum class Stays { kNothing, kSinceItCame, kAll };
  void content_goes(c10::StorageImpl* storage, Stays stays, Lock& lock);
  void content_is_back(c10::StorageImpl* storage);
  bool some_absent() const { return !absent_.empty(); }

  // Makes a copy of a constant, which the caller has locked. From then on recipes read the copy.
  void give_copy(Value& constant, Lock& lock);

  // Whether the program has dropped a constant, so that only recipes keep it in memory.
  static bool kept_for_recipes(const Value& constant) {
    return c10::raw::intrusive_ptr::use_count(constant_storage(constant)) == 1;
  }
  // Each time the number of constants has doubled, calls shed() (settle.h) for those that only
  // recipes hold. Else a program that never lacks memory could keep a batch for each small result.
  void shed_sometimes();

 private:
  static bool overlap(const c10::StorageImpl* one, const c10::StorageImpl* other);
  bool of_library(const c10::StorageImpl* storage) const;
  c10::SmallVector<Value*, 4> over(c10::StorageImpl* storage) const;
  Kept keep_content(Value& constant, Lock& lock);
  void move_to(Value& constant, StoragePtr storage);
  void erase(c10::StorageImpl* storage);

  static constexpr std::size_t kFirstShedding = 16;

  StorageTable& storages_;
  Engine& engine_ = storages_.engine();
  const SessionDevice& device_ = storages_.device();
  MutationDetector* const detector_;
  LibraryConstants in_libraries_;
  ska::flat_hash_map<c10::StorageImpl*, Value*> constants_;  // Constants not in `in_libraries_`.
  Bytes copies_ = 0;                                         // Bytes of all copies for recipes.
  ska::flat_hash_map<const Value*, std::uint64_t> absent_;   // Checksums of contents that are away.
  std::size_t shed_at_ = kFirstShedding;                     // Calls shed() at so many constants.
};

}  // namespace dtr
