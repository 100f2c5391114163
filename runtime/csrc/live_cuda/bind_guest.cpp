// Python's view of the guest on CUDA: to install it, to ask it by device and stream, and for tests
// to put it before another allocator than torch's.

#include <torch/csrc/utils/pybind.h>

#include "runtime/csrc/live/session/cpu_allocator.h"
#include "runtime/csrc/live_cuda/guest_allocator.h"

namespace py = pybind11;

namespace dtr {
namespace {

using Native = GuestAllocator::Native;

// Without a GPU tests compute on the host.
CurrentWork host_work() {
  return {.device = []() -> c10::DeviceIndex { return 0; },
          .stream = [](c10::DeviceIndex) { return host_device(false).stream(c10::kCPU); }};
}

// Torch and tensors hold it for ever; so do we, without ever destroying it.
class PyGuestAllocator {
 public:
  PyGuestAllocator(Bytes budget, int device, const Heuristic& heuristic, double thrash_limit,
                   ScorerPlace scorer, const std::string& image,
                   const std::vector<std::string>& recordable, std::uintptr_t native)
      : guest_(new GuestAllocator(native ? *reinterpret_cast<Native*>(native)
                                         : *c10::cuda::CUDACachingAllocator::allocator.load(),
                                  SessionOptions{.budget = budget,
                                                 .heuristic = heuristic,
                                                 .recordable = recordable,
                                                 .thrash_limit = thrash_limit,
                                                 .scorer = scorer,
                                                 .image = image},
                                  static_cast<c10::DeviceIndex>(device),
                                  native ? host_work() : current_cuda_work()),
               [](auto*) {}) {}

  std::shared_ptr<Native> native() const { return guest_; }
  std::uintptr_t address() const {
    return reinterpret_cast<std::uintptr_t>(static_cast<Native*>(guest_.get()));
  }
  GuestAllocator& operator*() const { return *guest_; }

 private:
  std::shared_ptr<GuestAllocator> guest_;
};

}  // namespace

c10::DeleterFnPtr deleter_of(std::uintptr_t native) {
  return reinterpret_cast<Native*>(native)->raw_deleter();
}

Memory::Handle memory_over(std::uintptr_t native, Bytes budget) {
  return NativeMemory::create(*reinterpret_cast<Native*>(native), 0, budget, host_work(),
                              deleter_of(native));
}

void bind_guest(py::module_& m) {
  using Open = py::call_guard<py::gil_scoped_release>;
  py::class_<PyGuestAllocator>(m, "GuestAllocator")
      .def(py::init<Bytes, int, const Heuristic&, double, ScorerPlace, const std::string&,
                    const std::vector<std::string>&, std::uintptr_t>(),
           py::arg("budget"), py::arg("device"), py::arg("heuristic"), py::arg("thrash_limit"),
           py::arg("scorer"), py::arg("image"), py::arg("recordable"), py::arg("native") = 0)
      .def("native", &PyGuestAllocator::native)
      .def("address", &PyGuestAllocator::address)
      .def(
          "install", [](PyGuestAllocator& self) { (*self).install(); }, Open())
      .def(
          "remove", [](PyGuestAllocator& self) { (*self).remove(); }, Open())
      .def("installed", [](PyGuestAllocator& self) { return (*self).installed(); })
      .def(
          "allocate",
          [](PyGuestAllocator& self, std::size_t size, int device, Stream stream) {
            return reinterpret_cast<std::uintptr_t>(
                (*self).allocate_on(size, static_cast<c10::DeviceIndex>(device),
                                    reinterpret_cast<cudaStream_t>(stream)));
          },
          py::arg("size"), py::arg("device"), py::arg("stream"), Open())
      .def(
          "free",
          [](PyGuestAllocator& self, std::uintptr_t address) {
            (*self).raw_delete(reinterpret_cast<void*>(address));
          },
          py::arg("address"), Open())
      .def(
          "retire_stream",
          [](PyGuestAllocator& self, Stream stream, int device) {
            (*self).retire_stream(stream, static_cast<c10::DeviceIndex>(device));
          },
          py::arg("stream"), py::arg("device"), Open())
      .def(
          "session", [](PyGuestAllocator& self) { return (*self).session(); },
          py::return_value_policy::reference)
      .def(
          "pool_stats",
          [](PyGuestAllocator& self, int device) -> std::optional<PoolStats> {
            const Memory* memory = (*self).memory(static_cast<c10::DeviceIndex>(device));
            if (!memory) return std::nullopt;
            return memory->stats();
          },
          py::arg("device"))
      .def(
          "check",
          [](PyGuestAllocator& self, int device) {
            const Memory* memory = (*self).memory(static_cast<c10::DeviceIndex>(device));
            if (memory) memory->check();
          },
          py::arg("device"))
      .def("serve", [](PyGuestAllocator& self, Session& session) { (*self).serve(session); });
}

}  // namespace dtr
