// Torch's CPU operators as work of the fake device: how long each would run there. Torch tells of
// each (ATen/record_function.h), also of those that a scope runs again. For it the host is busy for
// a while, and then its stream has work, as long as moving its arguments' bytes twice or
// multiplying its matrices takes, and no shorter than a kernel can be: a function of shapes, the
// same on every machine. Only the outermost kernel counts. Views and empty tensors are no work.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

struct Device {
  double host_ns, kernel_ns;               // Of each operator; of each kernel at least.
  double bytes_per_ns, operations_per_ns;  // A sum and a product are two.
  void (*operator_begins)(std::int64_t host, std::int64_t takes) = nullptr;
  void (*operator_ends)(void* stream) = nullptr;
};

Device device;
at::CallbackHandle handle = 0;
thread_local int inside = 0;  // An operator that counts.
std::int64_t operators = 0, replayed = 0;
double worked = 0;  // Nanoseconds.
constexpr const char* kReplay = "dtr::rematerialize(";

struct Counts : at::ObserverContext {};  // Of an operator that does.

bool is_view(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
  };
  return std::ranges::any_of(schema.returns(), aliases);
}

// Whether a device would run a kernel for it.
bool is_kernel(const c10::OperatorName& name) {
  static std::unordered_map<std::string, bool> known;  // Programs here have one thread.
  const auto [at, is_new] = known.try_emplace(c10::toString(name), false);
  if (!is_new) return at->second;
  const auto op = c10::Dispatcher::singleton().findOp(name);
  if (!op || !op->hasSchema() || is_view(op->schema())) return false;
  if (name.name.find("empty") != std::string::npos) return false;
  for (const char* none : {"aten::_local_scalar_dense", "aten::_unsafe_view"}) {
    if (name.name == none) return false;
  }
  return at->second = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                      op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

std::vector<at::Tensor> tensors_of(Inputs inputs) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : inputs) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

// Of the operators of a transformer; all others only move bytes.
double operations(const std::string& name, const std::vector<at::Tensor>& tensors) {
  const auto is = [&](const char* what) { return name.find(what) != std::string::npos; };
  if (is("aten::mm") || is("aten::addmm") || is("aten::bmm")) {
    const at::Tensor& a = tensors[tensors.size() - 2];
    return 2.0 * static_cast<double>(a.numel()) *
           static_cast<double>(tensors.back().sizes().back());
  }
  if (is("_scaled_dot_product_flash_attention")) {  // Two products forward, five backward.
    const at::Tensor& query = tensors[is("backward") ? 1 : 0];
    const double products = is("backward") ? 5 : 2;
    return products * 2 * static_cast<double>(query.numel()) * static_cast<double>(query.size(-2));
  }
  return 0;
}

double device_ns(const std::string& name, Inputs inputs) {
  const std::vector<at::Tensor> tensors = tensors_of(inputs);
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += 2 * static_cast<double>(tensor.nbytes());
  return std::max({device.kernel_ns, bytes / device.bytes_per_ns,
                   operations(name, tensors) / device.operations_per_ns});
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string name = function.name();
  const bool replay = name.starts_with(kReplay);
  if (!replay) {
    if (inside > 0) return nullptr;
    const auto named = function.operator_name();
    if (!named || !is_kernel(*named)) return nullptr;
  }
  ++operators;
  replayed += replay;
  ++inside;
  const double takes = device_ns(name, function.inputs());
  worked += takes;
  device.operator_begins(static_cast<std::int64_t>(device.host_ns),
                         static_cast<std::int64_t>(takes));
  return std::make_unique<Counts>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  --inside;
  device.operator_ends(nullptr);
}

}  // namespace

#define FOR_TESTS extern "C" __attribute__((visibility("default")))

// From now on torch's operators are work for the default stream of the driver at `path`.
FOR_TESTS int operator_work_begin(const char* path, double host_ns, double kernel_ns,
                                  double bytes_per_ns, double operations_per_ns) {
  void* driver = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return 1;
  device = {host_ns, kernel_ns, bytes_per_ns, operations_per_ns};
  device.operator_begins = reinterpret_cast<void (*)(std::int64_t, std::int64_t)>(
      dlsym(driver, "fakecuda_operator_begins"));
  device.operator_ends = reinterpret_cast<void (*)(void*)>(dlsym(driver, "fakecuda_operator_ends"));
  operators = replayed = 0;
  worked = 0;
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  return 0;
}

FOR_TESTS void operator_work_end() { at::removeCallback(handle); }

// "operators" with those that a scope ran again, "replayed" ones alone, "worked" nanoseconds.
FOR_TESTS std::int64_t operator_work_count(const char* what) {
  if (std::strcmp(what, "operators") == 0) return operators;
  if (std::strcmp(what, "replayed") == 0) return replayed;
  return static_cast<std::int64_t>(worked);
}
