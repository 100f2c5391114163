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

at::Tensor without_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

// A meta tensor whose own keys have ours.
at::Tensor fake(const at::Tensor& meta) {
  if (!meta.defined() || meta.key_set().has(kKey)) return meta;
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(meta.storage()),
                                                   meta.key_set().add(kKey), meta.dtype());
  impl->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  return at::Tensor(std::move(impl));
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
  for (std::size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    if ((*stack)[i].isDevice()) (*stack)[i] = c10::Device(c10::kMeta);
    change((*stack)[i], without_memory);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    change((*stack)[i], fake);
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
  m.def("fake", [](const at::Tensor& tensor) { return fake(without_memory(tensor)); });
}
