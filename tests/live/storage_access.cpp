// What an extension in C++ does with a tensor that it is given, past the dispatcher: the ways by
// which it takes the address, and an optimizer's step through it.

#include <torch/csrc/utils/pybind.h>

#include <cstdint>

namespace {

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void descend(const at::Tensor& parameter, const at::Tensor& gradient) {
  float* to = parameter.data_ptr<float>();
  const float* by = gradient.const_data_ptr<float>();
  for (std::int64_t i = 0; i < parameter.numel(); ++i) to[i] -= 0.1F * by[i];
}

}  // namespace

PYBIND11_MODULE(storage_access, m) {
  m.def("data_ptr", [](const at::Tensor& tensor) { return number(tensor.data_ptr()); });
  m.def("data_ptr<float>",
        [](const at::Tensor& tensor) { return number(tensor.data_ptr<float>()); });
  m.def("mutable_data_ptr",
        [](const at::Tensor& tensor) { return number(tensor.mutable_data_ptr()); });
  m.def("storage().mutable_data",
        [](const at::Tensor& tensor) { return number(tensor.storage().mutable_data()); });
  m.def("const_data_ptr", [](const at::Tensor& tensor) { return number(tensor.const_data_ptr()); });
  m.def("descend", &descend);
}
