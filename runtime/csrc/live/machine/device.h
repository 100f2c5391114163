// Describes the device of a session's tensors: the host, where torch's CPU allocator makes tensors
// and work is done when a call returns, or a CUDA device, where work waits in streams (DeviceWork).
// For tests, CPU tensors can lie in memory of a fake CUDA driver, so that all code for devices runs
// without a GPU.

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

// Whether a tensor's content lies in its storage alone: not sparse, quantized, nested, ...
inline bool is_dense(const c10::TensorImpl& tensor) {
  return (tensor.key_set().raw_repr() & ~kDense.raw_repr()) == 0 && tensor.has_storage();
}

// The address modulo 64. By it (torch 2.13 on x86-64: modulo 16), kernels of matrix-vector and dot
// products choose the order in which they add, and thus the last bits of a result. Memory of
// allocators has remainder 0; a mapped file (safetensors) and rows of NumPy arrays may not. So a
// copy that recipes read has the remainder of the original (tests/live/test_alignment.py).
inline Bytes remainder_of(const void* data) {
  return static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(data) % 64);
}

struct SessionDevice {
  c10::Device device;
  at::Allocator* allocator;       // Makes the tensors of this device, in a replay too.
  c10::DeleterFnPtr deleter;      // Of an ordinary tensor; its context is the data pointer.
  Stream (*stream)(c10::Device);  // This thread's current stream.
  at::Generator (*generator)(c10::Device);  // The default generator.
  std::unique_ptr<DeviceWork> work;         // Null on the host.

  // Whether the tensor is dense, and on this device or a number on the host that recipes copy.
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

// The host. With `on_cuda`, for tests: CPU tensors on the memory of CUDA device 0, whose driver
// lets the host touch it.
SessionDevice host_device(bool on_cuda);
void set_host_stream(Stream stream);  // Sets this thread's stream in such tests.

}  // namespace dtr
