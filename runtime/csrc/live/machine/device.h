// Describes the device of a session's tensors: the host or a CUDA device. On the host, an
// operator's work is done when its call returns. On a CUDA device, work waits in streams
// (DeviceWork). In tests, CPU tensors can lie in memory of a fake CUDA driver, so that the code for
// devices runs without a GPU.

#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "dtr_alloc/pool/csrc/device_work.h"
#include "runtime/csrc/engine/rules.h"

namespace dtr {

constexpr c10::DispatchKeySet kDense = c10::DispatchKeySet(
    {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU,
     c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutocastCUDA,
     c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

inline c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.unsafe_storage().unsafeGetStorageImpl();
}
inline at::DataPtr& pointer_of(const c10::StorageImpl* storage) {
  return const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
}
inline Bytes bytes_of(const c10::StorageImpl* storage) {
  return static_cast<Bytes>(storage->nbytes());
}
using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
inline StoragePtr share(c10::StorageImpl* storage) { return StoragePtr::reclaim_copy(storage); }

// Whether one storage holds all of a tensor's content. False for sparse, quantized, nested tensors.
inline bool is_dense(const c10::TensorImpl& tensor) {
  return (tensor.key_set().raw_repr() & ~kDense.raw_repr()) == 0 && tensor.has_storage();
}

// Returns the address modulo 64. An address's remainder (in torch 2.13 on x86-64: modulo 16)
// decides in which order kernels of matrix-vector and dot products add, and thus a result's last
// bits. Allocators return remainder 0; a mapped file (safetensors) or a NumPy array's row may have
// another. So a recipe's copy has the original's remainder (tests/live/test_alignment.py).
inline Bytes remainder_of(const void* data) {
  return static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(data) % 64);
}

struct SessionDevice {
  c10::Device device;
  at::Allocator* allocator;       // Makes the tensors of this device, in a replay too.
  c10::DeleterFnPtr deleter;      // Frees an untracked tensor, whose context is its data pointer.
  Stream (*stream)(c10::Device);  // Returns this thread's current stream.
  at::Generator (*generator)(c10::Device);  // Returns the default generator.
  std::unique_ptr<DeviceWork> work;         // Null on the host, which has no streams.

  // Whether the tensor is dense, and on this device or so small a CPU tensor that recipes copy it.
  bool holds(const c10::TensorImpl& tensor) const {
    if (!is_dense(tensor)) return false;
    if (tensor.device() == device) return true;
    return tensor.is_cpu() && kept_in_recipe(bytes_of(storage_of(tensor)));
  }
  at::DataPtr ordinary(void* data) const { return {data, data, deleter, device}; }
  Stream current_stream() const { return work ? stream(device) : 0; }
  void copy(void* to, const void* from, Bytes bytes) const {
    work ? work->copy(to, from, bytes, current_stream()) : void(std::memcpy(to, from, bytes));
  }
};

// Describes the host. With `on_cuda`, for tests, CPU tensors lie in memory of CUDA device 0, which
// the host must be able to touch.
SessionDevice host_device(bool on_cuda);
void set_host_stream(Stream stream);  // Sets this thread's stream, in tests with `on_cuda`.

}  // namespace dtr
