// The compiled module `dtr_alloc._core`: one function per part registers its classes, this file
// lists them.

#include <pybind11/pybind11.h>
#include <torch/headeronly/version.h>

namespace dtr {
void bind_pool(pybind11::module_& m);
void bind_heuristic(pybind11::module_& m);
void bind_session(pybind11::module_& m);
void bind_exchange_table(pybind11::module_& m);
void bind_brackets(pybind11::module_& m);
void bind_silence(pybind11::module_& m);
void bind_compiled_region(pybind11::module_& m);
void bind_simulation(pybind11::module_& m);
void bind_torch_cuda(pybind11::module_& m);  // Only where torch has CUDA (setup.py).
}  // namespace dtr

PYBIND11_MODULE(_core, m) {
  m.attr("torch_version") = TORCH_VERSION;
#ifdef __clang__
  m.attr("compiler") = __VERSION__;
#else
  m.attr("compiler") = "GCC " __VERSION__;
#endif
  dtr::bind_pool(m);
  dtr::bind_heuristic(m);
  dtr::bind_session(m);
  dtr::bind_exchange_table(m);
  dtr::bind_brackets(m);
  dtr::bind_silence(m);
  dtr::bind_compiled_region(m);
  dtr::bind_simulation(m);
#ifdef DTR_TORCH_CUDA
  dtr::bind_torch_cuda(m);
#endif
}
