// A graph that torch.compile made, as one operator: `dtr_alloc::region`.
//
// The dispatcher sees a call of the graph as it sees any operator, so the runtime records it: its
// results, saved activations among them, can be evicted and computed again. Two things differ. What
// an operator tells by its schema (how many results, what it writes, whether it draws random
// numbers), each region has of its own: an OperatorInfo, with a name and hence with costs of its
// own. And the first argument is the code itself, so a recipe owns what it must run again, and the
// code goes with the last recipe and the graph. Costs some microseconds for each call.
//
// The code is Python's. A recipe that goes may take the last reference to it, while the engine's
// lock is held, and no thread may ask for Python's lock then. So the reference is put aside, and
// dropped by Python's main thread soon after.

#include <ATen/record_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/csrc/live/machine/in_operator.h"
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

struct CompiledRegion;

class CompiledCode final : public torch::CustomClassHolder {
 public:
  CompiledCode(std::shared_ptr<CompiledRegion> region, py::object run)
      : region_(std::move(region)), run_(run.release().ptr()) {}
  ~CompiledCode() override { release_resources(); }
  // The last recipe is gone. The region has a weak reference to this, which must not keep it.
  void release_resources() override {
    if (PyObject* run = std::exchange(run_, nullptr)) PutAside::add(run);
    region_.reset();
  }

  CompiledRegion& region() const { return *region_; }

  // Runs the graph and lets go of the arguments as the graph does. Of each result the tensor, and
  // an undefined one for what is no tensor or belongs to somebody else besides.
  std::vector<at::Tensor> run(std::vector<c10::IValue> arguments) const {
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

  std::shared_ptr<CompiledRegion> region_;
  PyObject* run_;
};

// What stays the same from call to call. It belongs to the graph, and does not own it.
struct CompiledRegion {
  const OperatorInfo& info;                // For as long as the process: logs and traces name it.
  const std::vector<std::size_t> written;  // Positions among the arguments.
  std::atomic<bool> ran = false;
  // That recipes own; guarded by Python's lock.
  c10::weak_intrusive_ptr<CompiledCode> code{c10::intrusive_ptr<CompiledCode>()};
};

// ---- The operator

constexpr const char* kSchema =
    "region(Capsule code, Tensor[] read, Tensor(a!)[] written, int[] layout) -> Tensor[]";
enum Argument : std::size_t { kCode, kRead, kWritten, kLayout, kArguments };
enum Kind : std::int64_t { kReadTensor, kWrittenTensor, kInteger };

const c10::OperatorHandle& region_operator() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("dtr_alloc::region", "");
  return op;
}

struct RegionTraits {
  std::string name;
  std::uint32_t results = 0;
  bool writes = false;
  bool random = false;
  auto operator<=>(const RegionTraits&) const = default;
};

// One for each region that is unlike all before it.
const OperatorInfo& info_of(const RegionTraits& traits) {
  static std::mutex mutex;
  static auto* infos = new std::map<RegionTraits, OperatorInfo>;
  std::lock_guard guard(mutex);
  auto [at, fresh] = infos->try_emplace(traits, region_operator());
  if (fresh) {
    OperatorInfo& info = at->second;
    info.name = traits.name;
    info.returns = traits.results;
    info.listed = info.fresh = info.recordable = true;
    info.random = traits.random;
    if (!traits.writes) info.writes = 0;
  }
  return at->second;
}

c10::intrusive_ptr<CompiledCode> code_on(const torch::jit::Stack& stack) {
  return c10::static_intrusive_pointer_cast<CompiledCode>(
      stack[stack.size() - kArguments + kCode].toCapsule());
}

std::vector<c10::IValue> in_order(const c10::IValue* first) {
  std::vector<c10::IValue> arguments;
  auto read = first[kRead].toListRef().begin(), written = first[kWritten].toListRef().begin();
  const std::vector<std::int64_t> layout = first[kLayout].toIntVector();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (layout[i] == kInteger) {
      arguments.emplace_back(layout[++i]);
    } else {
      arguments.push_back(layout[i] == kWrittenTensor ? *written++ : *read++);
    }
  }
  return arguments;
}

// Storages of the arguments. They keep no memory, but no new storage gets an address of theirs.
class Storages {
 public:
  explicit Storages(const std::vector<c10::IValue>& arguments) {
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensor() && argument.toTensor().has_storage()) {
        seen_.emplace_back(argument.toTensor().storage().getWeakStorageImpl());
      }
    }
  }
  // Whether the storage is neither an argument's nor one that was asked for before.
  bool is_new(const c10::Storage& storage) {
    const auto is = [&](const auto& one) {
      return one._unsafe_get_target() == storage.unsafeGetStorageImpl();
    };
    if (std::ranges::any_of(seen_, is)) return false;
    seen_.emplace_back(storage.getWeakStorageImpl());
    return true;
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen_;
};

// The operator's kernel. Its results are tensors over new storages, one for each storage: whoever
// has another view of it, or an argument, needs no recipe for that.
void run_region(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const c10::intrusive_ptr<CompiledCode> code = code_on(*stack);
  std::vector<c10::IValue> arguments = in_order(stack->data() + stack->size() - kArguments);
  torch::jit::drop(*stack, kArguments);
  Storages seen(arguments);
  CompiledRegion& region = code->region();
  RECORD_FUNCTION(region.info.name, c10::ArrayRef<const c10::IValue>());
  InOperator::state.first_run |= !region.ran.exchange(true);
  std::vector<at::Tensor> made = code->run(std::move(arguments));
  made.resize(region.info.returns);
  c10::List<at::Tensor> results;
  for (at::Tensor& result : made) {
    const bool fresh = result.defined() && result.has_storage() && seen.is_new(result.storage());
    results.push_back(fresh ? std::move(result) : at::Tensor());
  }
  stack->emplace_back(std::move(results));
}

void intercept_region(const c10::OperatorHandle&, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const OperatorInfo& info = code_on(*stack)->region().info;
  intercept(info, keys, stack);
}

void register_region_operator() {
  using torch::CppFunction;
  using torch::Library;
  static auto* library =  // Registrations live as long as the process.
      new Library(Library::DEF, "dtr_alloc", std::nullopt, __FILE__, __LINE__);
  library->def(kSchema);
  library->impl("region", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                          CppFunction::makeFromBoxedFunction<&run_region>()));
  library->impl("region",
                torch::dispatch(kKey, CppFunction::makeFromBoxedFunction<&intercept_region>()));
}

// ---- A call

c10::intrusive_ptr<CompiledCode> code_of(const std::shared_ptr<CompiledRegion>& region,
                                         const py::object& run) {
  c10::intrusive_ptr<CompiledCode> code = region->code.lock();
  if (!code) {
    code = c10::make_intrusive<CompiledCode>(region, run);
    region->code = c10::weak_intrusive_ptr<CompiledCode>(code);
  }
  return code;
}

// What the graph makes of `inputs`, which are let go; or None, and nothing has happened: the call
// is a part of another operator, or has an input that no operator takes.
py::object call(const std::shared_ptr<CompiledRegion>& region, const py::list& inputs,
                const py::object& run) {
  if (InOperator::state.depth > 0 || Hold::here()) return py::none();
  c10::List<at::Tensor> read, written;
  c10::List<std::int64_t> layout;  // In the graph's order: a kind, of an integer its value too.
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    PyObject* input = PyList_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(input)) {
      const bool writes = std::ranges::count(region->written, i) > 0;
      layout.push_back(writes ? kWrittenTensor : kReadTensor);
      (writes ? written : read).push_back(THPVariable_Unpack(input));
    } else if (PyLong_CheckExact(input)) {
      const long long number = PyLong_AsLongLong(input);
      if (number == -1 && PyErr_Occurred()) throw py::error_already_set();
      layout.push_back(kInteger);
      layout.push_back(number);
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
    torch::jit::Stack stack;
    stack.push_back(c10::IValue::make_capsule(std::move(code)));
    stack.emplace_back(std::move(read));
    stack.emplace_back(std::move(written));
    stack.emplace_back(std::move(layout));
    const c10::DispatchKeySet keys{kKey, c10::DispatchKey::CPU};  // One kernel for all devices.
    region_operator().redispatchBoxed(keys, &stack);
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
             const OperatorInfo& info = info_of({std::move(name), results, writes, random});
             return std::shared_ptr<CompiledRegion>(new CompiledRegion{info, std::move(written)});
           }),
           py::arg("name"), py::arg("results"), py::arg("written"), py::arg("random"))
      .def("__call__", &call, py::arg("inputs"), py::arg("run"));
}

}  // namespace dtr
