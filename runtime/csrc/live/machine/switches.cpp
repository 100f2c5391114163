#include "runtime/csrc/live/machine/switches.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

// OpenMP's and MKL's, of the libraries that torch has loaded, if it was built with them.
extern "C" {
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] void omp_set_num_threads(int);
[[gnu::weak]] int MKL_Set_Num_Threads_Local(int);  // Returns the number before; 0: the process's.
}

namespace dtr {
namespace {

using at::Context;
using Backend = at::Float32Backend;
using Precise = at::Float32Op;

// Getters and setters of these tell and change more than one field. An explicit instantiation may
// name a private member, which is how we reach the field (storage_access.h does so, too).
auto& float32_precisions(Context& context);
auto& float32_matmul_precision(Context& context);
auto& allow_tf32_cudnn(Context& context);
template <auto precisions, auto matmul, auto cudnn>
struct Fields {
  friend auto& float32_precisions(Context& context) { return context.*precisions; }
  friend auto& float32_matmul_precision(Context& context) { return context.*matmul; }
  friend auto& allow_tf32_cudnn(Context& context) { return context.*cudnn; }
};
template struct Fields<&Context::fp32_precision, &Context::float32_matmul_precision,
                       &Context::allow_tf32_cudnn>;

using Setting = std::int64_t;

struct Switch {
  const char* name;  // As the program says it.
  Setting (*get)(Context&);
  void (*put)(Context&, Setting);
};

template <Backend backend, Precise op>
constexpr Switch precision(const char* name) {
  return {name,
          [](Context& context) {
            const auto& all = float32_precisions(context);
            const auto found = all.find({backend, op});
            return found == all.end() ? Setting{-1} : static_cast<Setting>(found->second);
          },
          [](Context& context, Setting to) {
            if (to >= 0) float32_precisions(context)[{backend, op}] = at::Float32Precision(to);
          }};
}

// A row of the table: two members of Context of that name, and the type that the setter takes.
#define DTR_SWITCH(name, getter, setter)                                           \
  Switch {                                                                         \
    name, [](Context& context) { return static_cast<Setting>(context.getter()); }, \
        [](Context& context, Setting to) {                                         \
          context.setter(static_cast<decltype(context.getter())>(to));             \
        }                                                                          \
  }

// One that not every release has: -1 where there is none.
#define DTR_NEW_SWITCH(name, getter, setter)                                              \
  Switch {                                                                                \
    name,                                                                                 \
        [](auto& context) {                                                               \
          if constexpr (requires { context.getter(); }) return Setting(context.getter()); \
          return Setting{-1};                                                             \
        },                                                                                \
        [](auto& context, Setting to) {                                                   \
          if constexpr (requires { context.getter(); }) {                                 \
            context.setter(static_cast<decltype(context.getter())>(to));                  \
          }                                                                               \
        }                                                                                 \
  }

using Reduction = at::CuBLASReductionOption;
bool reduces(Setting option) {
  return Reduction(option) == Reduction::AllowReducedPrecisionWithSplitK;
}
bool splits(Setting option) {
  return Reduction(option) != Reduction::DisallowReducedPrecisionDisallowSplitK;
}

constexpr Setting kNone = std::numeric_limits<Setting>::min();

// Those of which a result's bits may depend. To add one is to add a row.
constexpr Switch kSwitches[] = {
    {"torch.get_default_dtype()",
     [](Context&) { return static_cast<Setting>(c10::get_default_dtype_as_scalartype()); },
     [](Context&, Setting to) {
       c10::set_default_dtype(c10::scalarTypeToTypeMeta(c10::ScalarType(to)));
     }},
    {"torch.use_deterministic_algorithms()",
     [](Context& context) {
       return Setting{context.deterministicAlgorithms()} |
              Setting{context.deterministicAlgorithmsWarnOnly()} << 1;
     },
     [](Context& context, Setting to) { context.setDeterministicAlgorithms(to & 1, to & 2); }},
    DTR_SWITCH("torch.utils.deterministic.fill_uninitialized_memory",
               deterministicFillUninitializedMemory, setDeterministicFillUninitializedMemory),
    DTR_SWITCH("torch.backends.mkldnn.enabled", userEnabledMkldnn, setUserEnabledMkldnn),
    DTR_SWITCH("torch.backends.mkldnn.deterministic", deterministicMkldnn, setDeterministicMkldnn),
    DTR_SWITCH("torch.backends.mkldnn.allow_tf32", allowTF32OneDNN, setAllowTF32OneDNN),
    DTR_SWITCH("torch.backends.nnpack", userEnabledNNPACK, setUserEnabledNNPACK),
    DTR_SWITCH("torch.backends.cpu.allow_fp16_reduced_precision_reduction", allowFP16ReductionCPU,
               setAllowFP16ReductionCPU),
    DTR_SWITCH("torch.backends.quantized.engine", qEngine, setQEngine),
    DTR_SWITCH("torch.backends.cudnn.enabled", userEnabledCuDNN, setUserEnabledCuDNN),
    DTR_SWITCH("torch.backends.cudnn.benchmark", benchmarkCuDNN, setBenchmarkCuDNN),
    DTR_SWITCH("torch.backends.cudnn.benchmark_limit", benchmarkLimitCuDNN, setBenchmarkLimitCuDNN),
    DTR_SWITCH("torch.backends.cudnn.deterministic", deterministicCuDNN, setDeterministicCuDNN),
    DTR_NEW_SWITCH("torch.backends.cudnn.depthwise_kernel", cudnnDepthwiseKernel,
                   setCuDNNDepthwiseKernel),
    DTR_SWITCH("torch.backends.miopen.immediate", immediateMiopen, setImmediateMiopen),
    {"torch.get_float32_matmul_precision()",
     [](Context& context) { return static_cast<Setting>(float32_matmul_precision(context)); },
     [](Context& context, Setting to) {
       float32_matmul_precision(context) = at::Float32MatmulPrecision(to);
     }},
    {"torch.backends.cudnn.allow_tf32",
     [](Context& context) { return Setting{allow_tf32_cudnn(context)}; },
     [](Context& context, Setting to) { allow_tf32_cudnn(context) = to; }},
    precision<Backend::GENERIC, Precise::ALL>("torch.backends.fp32_precision"),
    precision<Backend::MKLDNN, Precise::ALL>("torch.backends.mkldnn.fp32_precision"),
    precision<Backend::MKLDNN, Precise::CONV>("torch.backends.mkldnn.conv.fp32_precision"),
    precision<Backend::MKLDNN, Precise::RNN>("torch.backends.mkldnn.rnn.fp32_precision"),
    precision<Backend::MKLDNN, Precise::MATMUL>("torch.backends.mkldnn.matmul.fp32_precision"),
    precision<Backend::CUDA, Precise::ALL>("torch.backends.cudnn.fp32_precision"),
    precision<Backend::CUDA, Precise::CONV>("torch.backends.cudnn.conv.fp32_precision"),
    precision<Backend::CUDA, Precise::RNN>("torch.backends.cudnn.rnn.fp32_precision"),
    precision<Backend::CUDA, Precise::MATMUL>("torch.backends.cuda.matmul.fp32_precision"),
    {"torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
     [](Context& context) { return static_cast<Setting>(context.allowFP16ReductionCuBLAS()); },
     [](Context& context, Setting to) {
       context.setAllowFP16ReductionCuBLAS(reduces(to), splits(to));
     }},
    {"torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
     [](Context& context) { return static_cast<Setting>(context.allowBF16ReductionCuBLAS()); },
     [](Context& context, Setting to) {
       context.setAllowBF16ReductionCuBLAS(reduces(to), splits(to));
     }},
    DTR_SWITCH("torch.backends.cuda.matmul.allow_fp16_accumulation", allowFP16AccumulationCuBLAS,
               setAllowFP16AccumulationCuBLAS),
    DTR_SWITCH("torch.backends.cuda.preferred_linalg_library()", linalgPreferredBackend,
               setLinalgPreferredBackend),
    DTR_SWITCH("torch.backends.cuda.preferred_blas_library()", blasPreferredBackend,
               setBlasPreferredBackend),
    DTR_NEW_SWITCH("the grouped product of cuBLASLt", preferCublasltGroupedGemm,
                   setPreferCublasltGroupedGemm),
    {"torch._C._set_sm_carveout_experimental()",
     [](Context& context) {
       const auto carveout = context._SMCarveout_EXPERIMENTAL();
       return carveout ? Setting{*carveout} : kNone;
     },
     [](Context& context, Setting to) {
       using Carveout = std::optional<std::int32_t>;
       context._setSMCarveout_EXPERIMENTAL(to == kNone ? Carveout() : Carveout(to));
     }},
    DTR_SWITCH("torch.backends.cuda.enable_flash_sdp()", userEnabledFlashSDP, setSDPUseFlash),
    DTR_SWITCH("flash attention 3", userEnabledFA3SDP, setSDPUseFA3),
    DTR_NEW_SWITCH("flash attention 4", userEnabledFA4SDP, setSDPUseFA4),
    DTR_NEW_SWITCH("torch._C._set_native_aot_enabled()", allowNativeAot, setAllowNativeAot),
    DTR_NEW_SWITCH("torch._C._set_native_aot_unconditional_masked()", maskUnconditionalNativeAot,
                   setMaskUnconditionalNativeAot),
    DTR_SWITCH("torch.backends.cuda.enable_mem_efficient_sdp()", userEnabledMemEfficientSDP,
               setSDPUseMemEfficient),
    DTR_SWITCH("torch.backends.cuda.enable_math_sdp()", userEnabledMathSDP, setSDPUseMath),
    DTR_SWITCH("torch.backends.cuda.enable_cudnn_sdp()", userEnabledCuDNNSDP, setSDPUseCuDNN),
    DTR_SWITCH("attention by a device's own kernel", userEnabledOverrideableSDP,
               setSDPUseOverrideable),
    DTR_SWITCH("torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp()",
               allowFP16BF16ReductionMathSDP, setAllowFP16BF16ReductionMathSDP),
    {"the order of torch.nn.attention.sdpa_kernel()",
     [](Context& context) {
       Setting all = 0;
       for (const at::SDPBackend one : context.sDPPriorityOrder()) {
         all = all << 4 | (static_cast<Setting>(one) + 1);
       }
       return all;
     },
     [](Context& context, Setting to) {
       std::vector<std::int64_t> order(at::num_sdp_backends);
       for (auto one = order.rbegin(); one != order.rend(); ++one, to >>= 4) *one = (to & 15) - 1;
       context.setSDPPriorityOrder(order);
     }},
};
#undef DTR_SWITCH
#undef DTR_NEW_SWITCH

constexpr std::size_t kDeterministic = 1;  // Its row.
static_assert(std::string_view(kSwitches[kDeterministic].name) ==
              "torch.use_deterministic_algorithms()");

using State = std::array<Setting, std::size(kSwitches)>;

State read_all() {
  State state;
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = kSwitches[i].get(at::globalContext());
  return state;
}

// What of the process tells whether a switch has changed. The context begins with flags of devices,
// one each, which are none; the precisions lie elsewhere, in a table that keeps its entries'
// places.
struct Image {
  static constexpr std::size_t kFlags =
      sizeof(std::array<c10::once_flag, at::COMPILE_TIME_MAX_DEVICE_TYPES>);
  static_assert(kFlags < sizeof(Context));

  std::array<char, sizeof(Context) - kFlags> fields;
  std::vector<std::pair<const at::Float32Precision*, at::Float32Precision>> precisions;
  c10::ScalarType type{};

  void take(Context& context) {
    std::memcpy(fields.data(), begin(context), fields.size());
    precisions.clear();
    for (const auto& [key, one] : float32_precisions(context)) precisions.emplace_back(&one, one);
    type = c10::get_default_dtype_as_scalartype();
  }
  bool is_of(Context& context) const {
    bool same = type == c10::get_default_dtype_as_scalartype();
    for (const auto& [at, before] : precisions) same &= *at == before;
    return same && std::memcmp(fields.data(), begin(context), fields.size()) == 0;
  }

 private:
  static const char* begin(Context& context) {
    return reinterpret_cast<const char*>(&context) + kFlags;
  }
};

// The distinct states so far; a number is a place. Guarded by the engine's lock, but what is there
// stays as and where it is.
struct KnownStates {
  std::deque<State> all;
  Image image;
  Switches::Number last = 0;
};
KnownStates& known_states() {
  static auto* known = new KnownStates;
  return *known;
}

int refusing = -1;  // Of tests: the row that cannot be put.

// Some setters complain and set all the same: what counts is what is there then.
void put(std::size_t i, Setting to) {
  TORCH_CHECK(static_cast<int>(i) != refusing);
  try {
    kSwitches[i].put(at::globalContext(), to);
  } catch (const c10::Error&) {
    if (kSwitches[i].get(at::globalContext()) != to) throw;
  }
}

void change(Switches::Number from, Switches::Number to) {
  const State &before = known_states().all[from], &after = known_states().all[to];
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    try {
      put(i, after[i]);
    } catch (const c10::Error& error) {
      for (std::size_t j = 0; j < i; ++j) {
        if (before[j] != after[j]) put(j, before[j]);
      }
      TORCH_CHECK(false, "an operator has to run again as it ran at first, and ", kSwitches[i].name,
                  " cannot be set for it as it was: ", error.what_without_backtrace(),
                  "; leave it as it is in the scope, or keep what was made in memory: "
                  "dtr_alloc.pin(tensor)");
    }
  }
}

}  // namespace

Switches::Number Switches::now() {
  static at::Context& context = at::globalContext();
  KnownStates& known = known_states();
  if (!known.all.empty() && known.image.is_of(context)) return known.last;
  known.image.take(context);
  const State state = read_all();
  const auto found = std::ranges::find(known.all, state);
  known.last = static_cast<Number>(found - known.all.begin());
  if (found == known.all.end()) {
    TORCH_CHECK(known.all.size() < std::numeric_limits<Number>::max(),
                "dtr_alloc: more than 65535 states of torch's global switches in one process");
    known.all.push_back(state);
  }
  return known.last;
}

DeterministicMode DeterministicMode::now() {
  const at::Context& context = at::globalContext();
  return {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly()};
}

DeterministicMode Switches::deterministic(Number number) {
  const Setting setting = known_states().all[number][kDeterministic];
  return {(setting & 1) != 0, (setting & 2) != 0};
}

SwitchesPut::SwitchesPut(Switches::Number there, Switches::Number wanted)
    : there_(there), wanted_(wanted) {
  change(there_, wanted_);
}

SwitchesPut::~SwitchesPut() {
  try {
    change(wanted_, there_);
  } catch (const c10::Error& error) {  // It was in that state a moment ago.
    TORCH_WARN(error.what_without_backtrace());
  }
}

void Switches::refuse(const std::string& name) {
  const auto found = std::ranges::find_if(kSwitches, [&](auto& one) { return one.name == name; });
  refusing = found == std::end(kSwitches) ? -1 : static_cast<int>(found - std::begin(kSwitches));
}

std::vector<std::string> Switches::names() {
  std::vector<std::string> names;
  for (const Switch& one : kSwitches) names.emplace_back(one.name);
  return names;
}

// ---- The thread's

namespace {

#if defined(__SSE__)
constexpr std::uint32_t kFlushing = 0x8040;  // Results that are denormal, and operands that are.
std::uint32_t control() { return _mm_getcsr(); }
void set_control(std::uint32_t word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
constexpr std::uint32_t kFlushing = 1u << 24;
std::uint32_t control() {
  std::uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return static_cast<std::uint32_t>(word);
}
void set_control(std::uint32_t word) { asm volatile("msr fpcr, %0" ::"r"(std::uint64_t{word})); }
#else
constexpr std::uint32_t kFlushing = 0;
std::uint32_t control() { return 0; }
void set_control(std::uint32_t) {}
#endif

}  // namespace

// Not at::get_num_threads(): to ask that fixes the number of a thread that has not computed yet.
std::int32_t ThreadSwitches::threads_now() {
  return omp_get_max_threads ? omp_get_max_threads() : 0;
}

ThreadSwitches ThreadSwitches::now() {
  return {.threads = threads_now(), .flushing = control() & kFlushing};
}

// A thread's first parallel operator sets its number. To ask for the number does so too, which is
// over then and does not undo ours.
ThreadSwitchesPut::ThreadSwitchesPut(const ThreadSwitches& wanted) {
  const int threads = at::get_num_threads();
  before_ = {.threads = omp_get_max_threads ? threads : 0, .flushing = control() & kFlushing};
  if (wanted.threads > 0 && wanted.threads != before_.threads) {
    threads_ = true;
    omp_set_num_threads(wanted.threads);
    if (MKL_Set_Num_Threads_Local) mkl_before_ = MKL_Set_Num_Threads_Local(wanted.threads);
  }
  if (wanted.flushing == before_.flushing) return;
  flushing_ = true;
  set_control((control() & ~kFlushing) | wanted.flushing);
}

ThreadSwitchesPut::~ThreadSwitchesPut() {
  if (flushing_) set_control((control() & ~kFlushing) | before_.flushing);
  if (!threads_) return;
  omp_set_num_threads(before_.threads);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(mkl_before_);
}

}  // namespace dtr
