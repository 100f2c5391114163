// Python's view of the CUDA allocator: the object that change_current_allocator wants, and beside
// it what torch has no name for (the session, requests by device and stream).

#include "runtime/csrc/live/session/named_options.h"
#include "runtime/csrc/live_cuda/bind_allocator.h"
#include "runtime/csrc/live_cuda/cuda_allocator.h"

namespace py = pybind11;

namespace dtr {

void bind_guest(py::module_& m);  // bind_guest.cpp

void bind_torch_cuda(py::module_& m) {
  using Self = PyAllocator<CudaAllocator>;
  using Device = c10::DeviceIndex;
  py::class_<Self> allocator(m, "CudaAllocator");
  bind_requests(allocator);
  allocator
      .def(py::init([](Device device, bool rematerialize, bool rdma, bool exportable,
                       const py::kwargs& given) {
             SessionOptions options = options_of(given);
             options.page_uses = {rdma, exportable};
             return Self(new CudaAllocator(options, device, rematerialize));
           }),
           py::kw_only(), py::arg("device"), py::arg("rematerialize"), py::arg("rdma"),
           py::arg("exportable"))
      // What torch calls where no Python name leads to it, for tests without a GPU.
      .def("begin_capture",
           [](Self& self, Device device, std::uint64_t id, std::vector<Stream> streams) {
             (*self).beginAllocateToPool(device, {id, 0}, [streams](cudaStream_t stream) {
               auto name = reinterpret_cast<Stream>(stream);
               return std::find(streams.begin(), streams.end(), name) != streams.end();
             });
           })
      .def("end_capture", [](Self& self, Device device,
                             std::uint64_t id) { (*self).endAllocateToPool(device, {id, 0}); })
      .def("record_stream",
           [](Self& self, Device device, std::uintptr_t data, Stream stream) {
             (*self).recordStream(
                 {reinterpret_cast<void*>(data), c10::Device(c10::kCUDA, device)},
                 c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream), device));
           })
      .def("release_pool", [](Self& self, Device device,
                              std::uint64_t id) { (*self).releasePool(device, {id, 0}); })
      .def("pool_uses", [](Self& self, Device device,
                           std::uint64_t id) { return (*self).getPoolUseCount(device, {id, 0}); })
      .def("live_in_pool",
           [](Self& self, Device device, std::uint64_t id,
              const std::vector<std::uintptr_t>& expected) {
             std::unordered_set<void*> pointers;
             for (std::uintptr_t address : expected) {
               pointers.insert(reinterpret_cast<void*>(address));
             }
             return (*self).checkPoolLiveAllocations(device, {id, 0}, pointers);
           })
      .def("checkpoint", [](Self& self) { (*self).getCheckpointState(0, {1, 0}); })
      .def("share", [](Self& self) { (*self).shareIpcHandle(nullptr); })
      .def("open_shared", [](Self& self) { (*self).getIpcDevPtr(""); })
      .def("record_history",
           [](Self& self) {
             using c10::CachingDeviceAllocator::RecordContext;
             (*self).recordHistory(true, nullptr, 0, RecordContext::NEVER, false, {});
           })
      .def("enable_peer", [](Self& self) { (*self).enablePeerAccess(0, 1); })
      .def("init", [](Self& self) { (*self).init(1); })
      .def("largest_cached", [](Self& self, Device device) {
        std::size_t largest = 0;
        (*self).cacheInfo(device, &largest);
        return largest;
      });
  bind_guest(m);
  m.def("cuda_allocator_in_use", [] { return caching::allocator.load()->initialized(); });
  m.def("current_cuda_allocator", [] { return caching::allocator.load()->name(); });
}

}  // namespace dtr
