// Binds to Python the members that both our CUDA allocators have: the object that torch installs,
// requests for a device and stream, the session, and the memory's statistics for tests.

#pragma once

#include <torch/csrc/utils/pybind.h>

#include "runtime/csrc/live_cuda/device_memory.h"

namespace dtr {

// Holds an allocator and never destroys it, since torch and tensors refer to it for ever.
template <class Allocator>
class PyAllocator {
 public:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  explicit PyAllocator(Allocator* allocator) : allocator_(allocator, [](auto*) {}) {}

  std::shared_ptr<Native> native() const { return allocator_; }
  Allocator& operator*() const { return *allocator_; }

 private:
  std::shared_ptr<Allocator> allocator_;
};

template <class Allocator>
void bind_requests(pybind11::class_<PyAllocator<Allocator>>& bound) {
  namespace py = pybind11;
  using Open = py::call_guard<py::gil_scoped_release>;
  using Self = PyAllocator<Allocator>;
  bound.def("native", &Self::native)
      .def(
          "allocate",
          [](Self& self, std::size_t size, c10::DeviceIndex device, Stream stream) {
            return reinterpret_cast<std::uintptr_t>(
                (*self).allocate_on(size, device, reinterpret_cast<cudaStream_t>(stream)));
          },
          py::arg("size"), py::arg("device"), py::arg("stream"), Open())
      .def(
          "free",
          [](Self& self, std::uintptr_t address) {
            (*self).raw_delete(reinterpret_cast<void*>(address));
          },
          py::arg("address"), Open())
      .def(
          "retire_stream",
          [](Self& self, Stream stream, c10::DeviceIndex device) {
            (*self).retire_stream(stream, device);
          },
          py::arg("stream"), py::arg("device"), Open())
      .def(
          "session", [](Self& self) { return (*self).session(); },
          py::return_value_policy::reference)
      .def(
          "pool_stats",
          [](Self& self, c10::DeviceIndex device) -> std::optional<PoolStats> {
            const Memory* memory = (*self).memory(device);
            if (!memory) return std::nullopt;
            return memory->stats();
          },
          py::arg("device"), Open())
      .def(
          "check",
          [](Self& self, c10::DeviceIndex device) {
            const Memory* memory = (*self).memory(device);
            if (memory) memory->check();
          },
          py::arg("device"), Open());
}

}  // namespace dtr
