// Another library that has taken the runtime's dispatch key, as torch's own C++ FakeTensor will: a
// boxed fallback that runs the meta kernel and returns tensors without memory. Its mode sets the
// key's bit of the thread, from torch 2.14 on by torch's own functions, and clears it at the end. It
// lists the operators that reach it.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#if __has_include(<c10/core/impl/FakeTensorModeTLS.h>)
#include <c10/core/impl/FakeTensorModeTLS.h>
#define HAS_FAKE_MODE 1
#else
#define HAS_FAKE_MODE 0
#endif

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr auto kKey = c10::DispatchKey::Fake;
std::vector<std::string> seen;
std::optional<torch::Library> library;

bool is_fake(const at::Tensor& tensor) { return tensor.key_set().has(kKey); }

at::Tensor on_storage_of(const at::Tensor& tensor, c10::DispatchKeySet keys) {
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(c10::Storage(tensor.storage()), keys, tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return at::Tensor(std::move(impl));
}

// What the meta kernel takes for a tensor: one without memory, of the same storage if it was fake.
at::Tensor without_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || (tensor.is_meta() && !is_fake(tensor))) return tensor;
  if (is_fake(tensor)) return on_storage_of(tensor, c10::DispatchKeySet(c10::DispatchKey::Meta));
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

// A tensor without memory whose own keys have ours. From torch 2.14 on it says which device it
// stands for.
at::Tensor fake(const at::Tensor& meta) {
  if (!meta.defined() || is_fake(meta)) return meta;
  at::Tensor made = on_storage_of(meta, meta.key_set().add(kKey));
#if HAS_FAKE_MODE
  made.unsafeGetTensorImpl()->set_fake_device(c10::kCPU);
#endif
  return made;
}

template <typename Change>
void change(c10::IValue& value, Change to) {
  if (value.isTensor()) {
    value = to(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(to(tensor));
    value = changed;
  }
}

void theirs(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  seen.push_back(c10::toString(op.operator_name()));
  c10::impl::ExcludeDispatchKeyGuard below(kKey);
  std::vector<std::pair<at::Tensor, at::Tensor>> given;  // As the program has it, and the kernel.
  for (std::size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    if ((*stack)[i].isDevice()) (*stack)[i] = c10::Device(c10::kMeta);
    change((*stack)[i], [&](const at::Tensor& tensor) {
      return given.emplace_back(tensor, without_memory(tensor)).second;
    });
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    change((*stack)[i], [&](const at::Tensor& made) {
      for (const auto& [tensor, meta] : given) {
        if (!made.is_same(meta) || !is_fake(tensor)) continue;
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(),
                                                            made.storage_offset());
        return tensor;
      }
      return fake(made);
    });
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register", [] {
    library.emplace(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&theirs>());
  });
  m.def("drop", [] { library.reset(); });
  m.attr("has_fake_mode") = bool{HAS_FAKE_MODE};
  m.def("mode", [](bool on) {
#if HAS_FAKE_MODE
    using Mode = c10::impl::FakeTensorModeTLS;
    if (!on) return Mode::reset_state();
    Mode::set_state(std::make_shared<c10::FakeTensorMode>(nullptr, nullptr));
#else
    c10::impl::tls_set_dispatch_key_included(kKey, on);
#endif
  });
  m.def("seen", [] { return std::exchange(seen, {}); });
  m.def("is_fake", &is_fake);
  m.def("fake", [](const at::Tensor& tensor) { return fake(without_memory(tensor)); });
}
