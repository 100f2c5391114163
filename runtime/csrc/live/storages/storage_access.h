// Controls access to a storage's memory. An evicted storage throws on raw access. Torch calls our
// hook before it gives out a mutable pointer to a resident tracked storage, or to a constant that
// recipes read (from torch 2.13 on: StorageMaterializer.h). Torch calls a hook only once, even for
// a kernel's access, so we arm a storage (set its hook) again after each operator.

#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>

#include <optional>
#include <utility>

namespace dtr {

using AccessHook = void (*)(c10::StorageImpl*);

template <typename Storage>
void arm(Storage* storage, AccessHook hook) {
  if constexpr (requires { storage->set_materializer(hook); }) {
    if (!storage->has_materializer()) storage->set_materializer(hook);
  }
}

template <typename Storage>
bool is_armed(const Storage* storage) {
  if constexpr (requires { storage->has_materializer(); }) return storage->has_materializer();
  return false;
}

// Removes our hook. A lazy clone and its original keep torch's hook (copy before write).
template <typename Storage>
void disarm(Storage* storage) {
  if constexpr (requires { storage->clear_materializer(); }) {
    const at::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
    if (!c10::impl::cow::is_cow_data_ptr(pointer)) storage->clear_materializer();
  }
}

// Older torch has a function that makes a storage refuse access, but none to allow access again. So
// we set the private flag: C++ allows an explicit instantiation to use it.
void allow_access(c10::StorageImpl& storage);
template <bool c10::StorageImpl::* flag>
struct AccessFlag {
  friend void allow_access(c10::StorageImpl& storage) { storage.*flag = false; }
};
template struct AccessFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// Allows access to a storage that is resident again.
template <typename Storage>
void readmit(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    allow_access(storage);
    storage.get_extra_meta().custom_data_ptr_error_msg_ = std::nullopt;
    storage.set_data_ptr_noswap(std::move(storage._mutable_data_ptr_no_checks()));
  }
}

}  // namespace dtr
