#include "runtime/csrc/live/operators/compiled_region.h"

#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "runtime/csrc/live/machine/in_operator.h"

namespace dtr {
namespace {

constexpr const char* kSchema =
    "region(Capsule code, Tensor[] read, Tensor(a!)[] written, int[] layout) -> Tensor[]";
enum Argument : std::size_t { kCode, kRead, kWritten, kLayout, kArguments };
enum Kind : std::int64_t { kReadTensor, kWrittenTensor, kInteger };

const c10::OperatorHandle& region_operator() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("dtr_alloc::region", "");
  return op;
}

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

}  // namespace

CompiledRegion::CompiledRegion(const RegionTraits& traits, std::vector<std::size_t> written)
    : info(info_of(traits)),
      written(std::move(written)),
      code(c10::intrusive_ptr<CompiledCode>()) {}

void RegionArguments::add(at::Tensor tensor, bool is_written) {
  layout.push_back(is_written ? kWrittenTensor : kReadTensor);
  (is_written ? written : read).push_back(std::move(tensor));
}

void RegionArguments::add(std::int64_t number) {
  layout.push_back(kInteger);
  layout.push_back(number);
}

void call_region(c10::intrusive_ptr<CompiledCode> code, RegionArguments arguments) {
  torch::jit::Stack stack;
  stack.push_back(c10::IValue::make_capsule(std::move(code)));
  stack.emplace_back(std::move(arguments.read));
  stack.emplace_back(std::move(arguments.written));
  stack.emplace_back(std::move(arguments.layout));
  const c10::DispatchKeySet keys{kKey, c10::DispatchKey::CPU};  // One kernel for all devices.
  region_operator().redispatchBoxed(keys, &stack);
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

}  // namespace dtr
