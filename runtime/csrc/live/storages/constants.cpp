#include "runtime/csrc/live/storages/constants.h"

#include <c10/core/CPUAllocator.h>

#include <vector>

#include "runtime/csrc/engine/settle.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/storages/checksum.h"

namespace dtr {

Value& Constants::of(c10::StorageImpl* storage) {
  if (Value* known = find(storage)) return *known;
  c10::raw::intrusive_ptr::incref(storage);
  Value& constant = engine_.constant(bytes_of(storage), storage, storage);
  if (of_library(storage)) {
    in_libraries_.add(storage, constant);
  } else {
    constants_[storage] = &constant;
  }
  return constant;
}

Value* Constants::find(const c10::StorageImpl* storage) const {
  auto found = constants_.find(const_cast<c10::StorageImpl*>(storage));
  return found == constants_.end() ? in_libraries_.find(storage) : found->second;
}

void Constants::erase(c10::StorageImpl* storage) {
  if (!constants_.erase(storage)) in_libraries_.remove(storage);
}

void Constants::add(Value& value, c10::StorageImpl* storage) { constants_[storage] = &value; }

void Constants::arm(c10::ArrayRef<c10::StorageImpl*> storages) const {
  for (c10::StorageImpl* storage : storages) {
    if (find(storage)) StorageTable::arm(storage);
  }
}

void Constants::forget(Value& constant) {
  if (constant.copied) copies_ -= constant.size;
  absent_.erase(&constant);
  if (detector_) detector_->forget(constant);
  c10::StorageImpl* storage = home_storage(constant);
  if (find(storage) == &constant) {
    disarm(storage);
    erase(storage);
  }
  storages_.bury(StoragePtr::reclaim(storage));
}

bool Constants::overlap(const c10::StorageImpl* one, const c10::StorageImpl* other) {
  const auto* a = static_cast<const char*>(pointer_of(one).get());
  const auto* b = static_cast<const char*>(pointer_of(other).get());
  return a < b + other->nbytes() && b < a + one->nbytes();
}

// Whether others may have a name for its memory too: torch's allocators did not make it.
bool Constants::of_library(const c10::StorageImpl* storage) const {
  const c10::DeleterFnPtr deleter = pointer_of(storage).get_deleter();
  return deleter != device_.deleter && !StorageTable::tracked(storage) &&
         deleter != c10::GetDefaultCPUAllocator()->raw_deleter();
}

c10::SmallVector<Value*, 4> Constants::over(c10::StorageImpl* storage) const {
  c10::SmallVector<Value*, 4> found;
  Value* const own = find(storage);
  if (own) found.push_back(own);
  const auto add = [&](Value* constant) {
    if (constant != own) found.push_back(constant);
  };
  // In no memory. While a graph is traced, its size may be a symbol, which nbytes() refuses.
  if (!pointer_of(storage).get()) return found;
  in_libraries_.over(storage, add);
  if (of_library(storage)) {
    for (const auto& [other, constant] : constants_) {
      if (overlap(other, storage)) add(constant);
    }
  }
  return found;
}

Constants::Kept Constants::keep_content(c10::StorageImpl* storage, Lock& lock) {
  const auto constants = over(storage);
  std::vector<Held> held;
  for (Value* constant : constants) held.emplace_back(engine_, *constant);
  Kept sum;
  for (Value* constant : constants) {
    const Kept one = keep_content(*constant, lock);
    sum.copied += one.copied, sum.kept += one.kept;
  }
  return sum;
}

Constants::Kept Constants::keep_content(Value& constant, Lock& lock) {
  if (!constant.uses || constant.absent) return {};
  const Bytes copies = copies_ + constant.size;
  Bytes resting = engine_.histories().resting_on(constant, copies + 1).bytes;
  if (resting > copies) {
    try {
      give_copy(constant, lock);
      return {.copied = constant.size};
    } catch (const c10::OutOfMemoryError&) {
      forget_refusal();  // It is no error of the program's.
      resting = engine_.histories().resting_on(constant, std::numeric_limits<Bytes>::max()).bytes;
    }
  }
  try {
    retire(engine_, constant, lock);
    return {.kept = resting};
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // Something needs a constant that is absent. A copy does then.
    give_copy(constant, lock);
    return {.copied = constant.size};
  }
}

void Constants::move_to(Value& constant, StoragePtr storage) {
  c10::StorageImpl* before = home_storage(constant);
  disarm(before);
  erase(before);
  storages_.bury(StoragePtr::reclaim(before));
  constants_[storage.get()] = &constant;
  constant.home = constant.data = storage.release();
}

void Constants::give_copy(Value& constant, Lock& lock) {
  move_to(constant, storages_.copy_of(*home_storage(constant), constant.size, lock));
  constant.copied = true;
  copies_ += constant.size;
}

void Constants::content_goes(c10::StorageImpl* storage, Stays stays, Lock& lock) {
  Value* constant = find(storage);
  if (!constant || constant->absent) return;
  if (stays != Stays::kNothing) {
    const Held held(engine_, *constant);
    const Nanos since = stays == Stays::kAll ? Nanos::min() : constant->last_access;
    try {
      retire(engine_, *constant, lock, since);
    } catch (const c10::OutOfMemoryError&) {
      forget_refusal();  // It is no error of the program's.
    } catch (const c10::Error&) {
      // What cannot be brought back says so when it is read.
    }
  }
  constant = find(storage);
  if (!constant) return;
  constant->absent = true;
  absent_[constant] = checksum(storage);
}

void Constants::content_is_back(c10::StorageImpl* storage) {
  Value* constant = find(storage);
  if (!constant || !constant->absent) return;
  const std::uint64_t before = absent_.at(constant);
  absent_.erase(constant);
  if (checksum(storage) == before) {
    constant->absent = false;
    engine_.touch(*constant);
    return;
  }
  const Held held(engine_, *constant);
  forsake(engine_, *constant);
  // An empty storage takes the place of this one, whose content is another constant's now.
  move_to(*constant, storage_over({}, 0));
}

void Constants::shed_sometimes() {
  if (constants_.size() + in_libraries_.count() < shed_at_) return;
  std::vector<Held> kept;
  const auto hold = [&](Value* constant) {
    if (constant->uses && kept_for_recipes(*constant)) kept.emplace_back(engine_, *constant);
  };
  for (const auto& [storage, constant] : constants_) hold(constant);
  in_libraries_.for_each(hold);
  for (const Held& constant : kept) shed(engine_, *constant.value());
  kept.clear();
  shed_at_ = 2 * (constants_.size() + in_libraries_.count()) + kFirstShedding;
}

}  // namespace dtr
