// Python's view of the CUDA allocator: the object that change_current_allocator wants, and beside
// it what torch has no name for (the session, requests by device and stream).

#include <torch/csrc/utils/pybind.h>

#include "runtime/csrc/live_cuda/cuda_allocator.h"

namespace py = pybind11;

namespace dtr {

void bind_guest(py::module_& m);  // bind_guest.cpp

namespace {

cudaStream_t handle(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Torch holds the allocator by a shared pointer for ever; so do we, without ever destroying it.
class PyCudaAllocator {
 public:
  PyCudaAllocator(Bytes budget, int device, bool rematerialize, const Heuristic& heuristic,
                  double thrash_limit, ScorerPlace scorer, const std::string& image, bool rdma,
                  bool exportable, const std::vector<std::string>& recordable, Bytes swap)
      : allocator_(new CudaAllocator(SessionOptions{.budget = budget,
                                                    .heuristic = heuristic,
                                                    .recordable = recordable,
                                                    .thrash_limit = thrash_limit,
                                                    .swap = swap,
                                                    .scorer = scorer,
                                                    .image = image,
                                                    .page_uses = {rdma, exportable}},
                                     static_cast<c10::DeviceIndex>(device), rematerialize),
                   [](auto*) {}) {}

  std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> native() const {
    return allocator_;
  }
  CudaAllocator& operator*() const { return *allocator_; }

 private:
  std::shared_ptr<CudaAllocator> allocator_;
};

}  // namespace

void bind_torch_cuda(py::module_& m) {
  using Open = py::call_guard<py::gil_scoped_release>;
  py::class_<PyCudaAllocator>(m, "CudaAllocator")
      .def(py::init<Bytes, int, bool, const Heuristic&, double, ScorerPlace, const std::string&,
                    bool, bool, const std::vector<std::string>&, Bytes>(),
           py::arg("budget"), py::arg("device"), py::arg("rematerialize"), py::arg("heuristic"),
           py::arg("thrash_limit"), py::arg("scorer"), py::arg("image"), py::arg("rdma"),
           py::arg("exportable"), py::arg("recordable"), py::arg("swap"))
      .def("native", &PyCudaAllocator::native)
      .def(
          "allocate",
          [](PyCudaAllocator& self, std::size_t size, int device, Stream stream) {
            auto index = static_cast<c10::DeviceIndex>(device);
            return reinterpret_cast<std::uintptr_t>(
                (*self).allocate_on(size, index, handle(stream)));
          },
          py::arg("size"), py::arg("device"), py::arg("stream"), Open())
      .def(
          "free",
          [](PyCudaAllocator&, std::uintptr_t address) {
            DeviceMemory::deleter(reinterpret_cast<void*>(address));
          },
          py::arg("address"), Open())
      .def(
          "retire_stream",
          [](PyCudaAllocator& self, Stream stream, int device) {
            DeviceMemory* memory = (*self).at(static_cast<c10::DeviceIndex>(device));
            if (memory) memory->retire_stream(stream);
          },
          py::arg("stream"), py::arg("device"), Open())
      .def(
          "session", [](PyCudaAllocator& self) { return (*self).session(); },
          py::return_value_policy::reference)
      .def(
          "pool_stats",
          [](PyCudaAllocator& self, int device) -> std::optional<PoolStats> {
            DeviceMemory* memory = (*self).at(static_cast<c10::DeviceIndex>(device));
            if (!memory) return std::nullopt;
            return memory->pool.stats();
          },
          py::arg("device"))
      .def(
          "check",
          [](PyCudaAllocator& self, int device) {
            DeviceMemory* memory = (*self).at(static_cast<c10::DeviceIndex>(device));
            if (memory) memory->pool.check();
          },
          py::arg("device"))
      // What torch calls where no Python name leads to it, for tests without a GPU.
      .def("begin_capture",
           [](PyCudaAllocator& self, int device, std::uint64_t id, std::vector<Stream> streams) {
             (*self).beginAllocateToPool(
                 static_cast<c10::DeviceIndex>(device), {id, 0}, [streams](cudaStream_t stream) {
                   auto name = reinterpret_cast<Stream>(stream);
                   return std::find(streams.begin(), streams.end(), name) != streams.end();
                 });
           })
      .def("end_capture",
           [](PyCudaAllocator& self, int device, std::uint64_t id) {
             (*self).endAllocateToPool(static_cast<c10::DeviceIndex>(device), {id, 0});
           })
      .def("record_stream",
           [](PyCudaAllocator& self, int device, std::uintptr_t data, Stream stream) {
             auto index = static_cast<c10::DeviceIndex>(device);
             (*self).recordStream(
                 {reinterpret_cast<void*>(data), c10::Device(c10::kCUDA, index)},
                 c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream), index));
           })
      .def("release_pool",
           [](PyCudaAllocator& self, int device, std::uint64_t id) {
             (*self).releasePool(static_cast<c10::DeviceIndex>(device), {id, 0});
           })
      .def("pool_uses",
           [](PyCudaAllocator& self, int device, std::uint64_t id) {
             return (*self).getPoolUseCount(static_cast<c10::DeviceIndex>(device), {id, 0});
           })
      .def("live_in_pool",
           [](PyCudaAllocator& self, int device, std::uint64_t id,
              const std::vector<std::uintptr_t>& expected) {
             std::unordered_set<void*> pointers;
             for (std::uintptr_t address : expected) {
               pointers.insert(reinterpret_cast<void*>(address));
             }
             return (*self).checkPoolLiveAllocations(static_cast<c10::DeviceIndex>(device), {id, 0},
                                                     pointers);
           })
      .def("checkpoint", [](PyCudaAllocator& self) { (*self).getCheckpointState(0, {1, 0}); })
      .def("share", [](PyCudaAllocator& self) { (*self).shareIpcHandle(nullptr); })
      .def("open_shared", [](PyCudaAllocator& self) { (*self).getIpcDevPtr(""); })
      .def("record_history",
           [](PyCudaAllocator& self) {
             using c10::CachingDeviceAllocator::RecordContext;
             (*self).recordHistory(true, nullptr, 0, RecordContext::NEVER, false, {});
           })
      .def("enable_peer", [](PyCudaAllocator& self) { (*self).enablePeerAccess(0, 1); })
      .def("init", [](PyCudaAllocator& self) { (*self).init(1); })
      .def("largest_cached", [](PyCudaAllocator& self, int device) {
        std::size_t largest = 0;
        (*self).cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
        return largest;
      });
  bind_guest(m);
  m.def("cuda_allocator_in_use",
        [] { return c10::cuda::CUDACachingAllocator::allocator.load()->initialized(); });
  m.def("current_cuda_allocator",
        [] { return c10::cuda::CUDACachingAllocator::allocator.load()->name(); });
}

}  // namespace dtr
