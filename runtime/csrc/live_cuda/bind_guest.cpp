// Python's view of the guest on CUDA: to install it, to ask it by device and stream, and for tests
// to put it before another allocator than torch's.

#include "runtime/csrc/live/session/cpu_allocator.h"
#include "runtime/csrc/live/session/named_options.h"
#include "runtime/csrc/live_cuda/bind_allocator.h"
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
  using Self = PyAllocator<GuestAllocator>;
  py::class_<Self> allocator(m, "GuestAllocator");
  bind_requests(allocator);
  allocator
      .def(py::init([](c10::DeviceIndex device, std::uintptr_t native, const py::kwargs& options) {
             return Self(new GuestAllocator(
                 native ? *reinterpret_cast<Native*>(native) : *caching::allocator.load(),
                 options_of(options), device, native ? host_work() : current_cuda_work()));
           }),
           py::kw_only(), py::arg("device"), py::arg("native") = 0)
      .def(
          "address",
          [](Self& self) { return reinterpret_cast<std::uintptr_t>(static_cast<Native*>(&*self)); })
      .def(
          "install", [](Self& self) { (*self).install(); }, Open())
      .def(
          "remove", [](Self& self) { (*self).remove(); }, Open())
      .def("installed", [](Self& self) { return (*self).installed(); })
      .def("serve", [](Self& self, Session& session) { (*self).serve(session); });
}

}  // namespace dtr
