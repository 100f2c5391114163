// Torch's C functions for DLPack, which a library finds once and then calls with tensors of Python:
// tvm_ffi for each argument of each call. No method of the tensor runs, so raw_access.py sees
// nothing, and an evicted tensor has no memory to show.
//
// The table of these functions (torch.Tensor.__dlpack_c_exchange_api__, DLPack 1.2) is one object
// of torch's, whose address a library may keep from before our import on. So the table stays where
// it is, and two of its functions become ours, for as long as the process lives. Ours do what the
// method __dlpack__ does in a scope, and call torch's. Outside of scopes they cost one load.
//
// A library that had copied the functions themselves before our import is not seen. The table is
// writable in torch 2.11 to 2.15: a static variable of torch/csrc/Module.cpp, and not a constant.

#include <ATen/dlpack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "runtime/csrc/live/session/by_hand.h"
#include "runtime/csrc/live/session/session.h"

namespace py = pybind11;

namespace dtr {
namespace {

DLPackManagedTensorFromPyObjectNoSync torchs_managed = nullptr;
DLPackDLTensorFromPyObjectNoSync torchs_view = nullptr;  // May be absent.
PyObject* tell = nullptr;  // Where a scope is open that wants to know.

// 0, or -1 with an error of Python's, as the table's functions return. Python's lock is held.
int expose(void* object) {
  Session* session = Session::active();
  auto* tensor = static_cast<PyObject*>(object);
  if (!session || !THPVariable_Check(tensor)) return 0;
  HANDLE_TH_ERRORS
  Constants::Kept exposure;
  {
    py::gil_scoped_release open;
    exposure = expose(*session, THPVariable_Unpack(tensor));
  }
  if (tell && (exposure.copied || exposure.kept)) {
    py::reinterpret_borrow<py::function>(tell)(exposure.copied, exposure.kept);
  }
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

int managed(void* object, DLManagedTensorVersioned** out) {
  const int failed = expose(object);
  return failed ? failed : torchs_managed(object, out);
}

int view(void* object, DLTensor* out) {
  const int failed = expose(object);
  return failed ? failed : torchs_view(object, out);
}

// By the kernel, which returns an error where this process would crash. What is there stays.
bool is_writable(DLPackExchangeAPI* table) {
  std::array<int, 2> ends;
  if (pipe(ends.data()) != 0) return false;
  const ssize_t put = write(ends[1], table, sizeof *table);
  const bool written = put == sizeof *table && read(ends[0], table, sizeof *table) == put;
  for (const int end : ends) close(end);
  return written;
}

template <class Function>
void replace(Function& entry, Function& torchs, Function ours) {
  if (!entry) return;
  torchs = entry;
  std::atomic_ref(entry).store(ours, std::memory_order_release);
}

// Whether it is watched from now on: torch may have none.
bool watch() {
  const py::object tensor = py::module_::import("torch").attr("Tensor");
  const py::object found = py::getattr(tensor, "__dlpack_c_exchange_api__", py::none());
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(found.ptr(), kName)) return false;
  auto* table = static_cast<DLPackExchangeAPI*>(PyCapsule_GetPointer(found.ptr(), kName));
  if (table->header.version.major != DLPACK_MAJOR_VERSION || !is_writable(table)) return false;
  replace(table->managed_tensor_from_py_object_no_sync, torchs_managed, &managed);
  replace(table->dltensor_from_py_object_no_sync, torchs_view, &view);
  return true;
}

}  // namespace

void bind_exchange_table(py::module_& m) {
  m.attr("watches_exchange_table") = watch();
  m.def("tell_exposures", [](const py::object& to) {
    const auto before = py::reinterpret_steal<py::object>(tell);
    tell = to.is_none() ? nullptr : py::object(to).release().ptr();
  });
}

}  // namespace dtr
