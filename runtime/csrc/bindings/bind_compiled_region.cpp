// Compiled regions whose code is Python's (live/operators/compiled_region.h).
//
// A recipe that goes may take the last reference to the code with it, while the engine's lock is
// held, and no thread may ask for Python's lock then. So the reference is put aside, and dropped by
// Python's main thread soon after.

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/operators/compiled_region.h"
#include "runtime/csrc/live/session/hold.h"
#include "runtime/csrc/live/session/session.h"

namespace py = pybind11;

namespace dtr {
namespace {

class PutAside {
 public:
  // Without Python's lock.
  static void add(PyObject* object) {
    std::lock_guard guard(mutex_);
    objects_.push_back(object);
    if (!called_ && Py_IsInitialized()) called_ = Py_AddPendingCall(&drop, nullptr) == 0;
  }

 private:
  static int drop(void*) {
    std::vector<PyObject*> objects;
    {
      std::lock_guard guard(mutex_);
      objects.swap(objects_);
      called_ = false;
    }
    for (PyObject* object : objects) Py_DECREF(object);
    return 0;
  }

  static inline std::mutex mutex_;
  static inline std::vector<PyObject*> objects_;
  static inline bool called_ = false;  // The main thread is to drop them.
};

// What a graph made, by the call that is not a recomputation: for the program.
thread_local py::object* made_for_program = nullptr;

const c10::StorageImpl* storage_of_tensor(PyObject* object) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.has_storage()
             ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
             : nullptr;
}

// Storages that others have besides the list of results. One that the code keeps, such as a
// constant of its own, would be evicted behind its back.
class Shared {
 public:
  explicit Shared(c10::ArrayRef<PyObject*> results) {
    std::unordered_map<PyObject*, Py_ssize_t> times;
    std::unordered_map<const c10::StorageImpl*, std::size_t> views;
    for (PyObject* result : results) {
      if (THPVariable_Check(result) && ++times[result] == 1) ++views[storage_of_tensor(result)];
    }
    for (const auto& [result, count] : times) {
      const c10::StorageImpl* storage = storage_of_tensor(result);
      const bool only = Py_REFCNT(result) == count && THPVariable_Unpack(result).use_count() == 1;
      const auto uses =
          storage ? c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(storage)) : 0;
      if (!only || uses != views[storage]) shared_.insert(storage);
    }
  }
  bool has(PyObject* result) const { return shared_.count(storage_of_tensor(result)) > 0; }

 private:
  std::unordered_set<const c10::StorageImpl*> shared_;
};

// Of each result the tensor, or an undefined one.
std::vector<at::Tensor> tensors_of(const py::object& made, bool recomputed) {
  TORCH_INTERNAL_ASSERT(PyList_Check(made.ptr()) || PyTuple_Check(made.ptr()));
  const c10::ArrayRef<PyObject*> results(
      PySequence_Fast_ITEMS(made.ptr()),
      static_cast<std::size_t>(PySequence_Fast_GET_SIZE(made.ptr())));
  const Shared shared(recomputed ? c10::ArrayRef<PyObject*>() : results);
  std::vector<at::Tensor> tensors;
  for (PyObject* result : results) {
    const bool ours = THPVariable_Check(result) && !shared.has(result);
    tensors.push_back(ours ? THPVariable_Unpack(result) : at::Tensor());
  }
  return tensors;
}

class PythonCode final : public CompiledCode {
 public:
  PythonCode(std::shared_ptr<CompiledRegion> region, py::object run)
      : CompiledCode(std::move(region)), run_(run.release().ptr()) {}
  ~PythonCode() override { release_resources(); }
  // Of the last recipe: the region keeps a weak reference, and with it this object's memory.
  void release_resources() override {
    if (PyObject* run = std::exchange(run_, nullptr)) PutAside::add(run);
    CompiledCode::release_resources();
  }

  std::vector<at::Tensor> run(std::vector<c10::IValue> arguments) override {
    py::gil_scoped_acquire gil;
    const bool recomputes = InOperator::state.replaying;
    py::list given(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      PyObject* item = arguments[i].isTensor() ? THPVariable_Wrap(arguments[i].toTensor())
                                               : PyLong_FromLongLong(arguments[i].toInt());
      if (!item) throw py::error_already_set();
      PyList_SET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    arguments.clear();
    py::object made = call(given);
    std::vector<at::Tensor> tensors = tensors_of(made, recomputes);
    if (!recomputes) *made_for_program = std::move(made);
    return tensors;
  }

 private:
  // Python's error of memory is one of torch's again, to which advice may be added.
  py::object call(const py::list& given) const {
    try {
      return py::reinterpret_borrow<py::object>(run_)(given);
    } catch (py::error_already_set& error) {
      if (!error.matches(py::module_::import("torch").attr("OutOfMemoryError"))) throw;
      const auto text = py::cast<std::string>(py::str(error.value()));
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    }
  }

  PyObject* run_;
};

c10::intrusive_ptr<CompiledCode> code_of(const std::shared_ptr<CompiledRegion>& region,
                                         const py::object& run) {
  c10::intrusive_ptr<CompiledCode> code = region->code.lock();
  if (!code) {
    code = c10::make_intrusive<PythonCode>(region, run);
    region->code = c10::weak_intrusive_ptr<CompiledCode>(code);
  }
  return code;
}

// What the graph makes of `inputs`, which are let go; or None, and nothing has happened: the call
// is a part of another operator, or has an input that no operator takes.
py::object call(const std::shared_ptr<CompiledRegion>& region, const py::list& inputs,
                const py::object& run) {
  if (InOperator::state.depth > 0 || Hold::here()) return py::none();
  RegionArguments arguments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    PyObject* input = PyList_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(input)) {
      const bool written = std::ranges::count(region->written, i) > 0;
      arguments.add(THPVariable_Unpack(input), written);
    } else if (PyLong_CheckExact(input)) {
      const long long number = PyLong_AsLongLong(input);
      if (number == -1 && PyErr_Occurred()) throw py::error_already_set();
      arguments.add(std::int64_t{number});
    } else {
      return py::none();
    }
  }
  inputs.attr("clear")();
  py::object made;
  const Meanwhile here(made_for_program, &made);
  c10::intrusive_ptr<CompiledCode> code = code_of(region, run);
  {
    py::gil_scoped_release open;
    call_region(std::move(code), std::move(arguments));
  }
  return made;
}

}  // namespace

void bind_compiled_region(py::module_& m) {
  register_region_operator();
  py::class_<CompiledRegion, std::shared_ptr<CompiledRegion>>(m, "CompiledRegion")
      .def(py::init([](std::string name, std::uint32_t results, std::vector<std::size_t> written,
                       bool random) {
             const bool writes = !written.empty();
             return std::make_shared<CompiledRegion>(
                 RegionTraits{std::move(name), results, writes, random}, std::move(written));
           }),
           py::arg("name"), py::arg("results"), py::arg("written"), py::arg("random"))
      .def("__call__", &call, py::arg("inputs"), py::arg("run"));
}

}  // namespace dtr
