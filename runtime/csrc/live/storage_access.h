// Who may look at a storage's memory. An evicted storage refuses raw access; a resident one that we
// track tells us when a mutable pointer is about to leave torch, where torch can (from 2.13 on).

#pragma once

#include <c10/core/StorageImpl.h>

#include <optional>
#include <utility>

namespace dtr {

using AccessHook = void (*)(c10::StorageImpl*);

inline void arm(c10::StorageImpl* storage, AccessHook hook) {
#if __has_include(<c10/core/StorageMaterializer.h>)
  if (!storage->has_materializer()) storage->set_materializer(hook);
#endif
}

inline void disarm(c10::StorageImpl* storage) {
#if __has_include(<c10/core/StorageMaterializer.h>)
  storage->clear_materializer();
#endif
}

// Older torch versions have a call that makes a storage refuse access, but none to allow it again.
// An explicit instantiation may name a private member, which is how we reach the flag.
void allow_access(c10::StorageImpl& storage);
template <bool c10::StorageImpl::* flag>
struct AccessFlag {
  friend void allow_access(c10::StorageImpl& storage) { storage.*flag = false; }
};
template struct AccessFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// The storage is resident again.
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
