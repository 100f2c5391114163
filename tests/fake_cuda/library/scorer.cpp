// The one kernel that the fake driver runs: the scorer's, as a function here. A launch with other
// parameters than its PTX has fails as on a device. The device sees memory of the host at other
// addresses than the host does, so that a pointer that was not translated shows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/csrc/policy/score.h"
#include "tests/fake_cuda/library/world.h"

namespace fake_cuda {
namespace {

constexpr Result kInvalidImage = 200;
constexpr Result kNotFound = 500;
constexpr Result kAlreadyRegistered = 712;
constexpr Result kNotRegistered = 713;
constexpr Pointer kSeenAt = Pointer{1} << 62;  // From the host's address to the device's.

}  // namespace

// What kernels/_kernels.py says of least_of_tiles. The device's rounding is not the host's.
void least_of_tiles(const Launch& launch) {
  const std::vector<std::uint64_t>& given = launch.parameters;
  const auto count = static_cast<std::int64_t>(given[9]);
  constexpr std::int64_t kTile = 256;
  const auto fail = [&](const std::string& what) {
    world.faults.push_back(launch.name + " " + what);
  };
  const auto host = [&](std::size_t at, std::size_t size) -> char* {
    void* const begin = pointer(given[at] - kSeenAt);
    return page_locked(begin, size) ? static_cast<char*>(begin) : nullptr;
  };
  char* columns[9];
  for (std::size_t at = 0; at < 9; at++) {
    const std::size_t width = at < 6 || at == 8 ? 8 : at == 6 ? 4 : 1;
    const std::size_t rows = at == 8 ? launch.blocks : static_cast<std::size_t>(count);
    columns[at] = host(at, rows * width);
    if (columns[at] == nullptr) return fail("touched memory of the host that it does not see");
    if (given[at] % 16 != 0) return fail("was given a column that its wide loads cannot read");
  }
  if (count % 16 != 0) return fail("was given a number of rows that is not one of 16");
  const auto whole = [&](std::size_t column, std::int64_t row) {
    return reinterpret_cast<std::int64_t*>(columns[column])[row];
  };
  const auto real = [&](std::size_t at) {
    double value;
    std::memcpy(&value, &given[at], sizeof value);
    return value;
  };
  const bool general = launch.name == "least_of_tiles_general";
  dtr::Heuristic h;
  std::size_t next = 12;
  dtr::for_each_parameter([&](const dtr::Parameter& parameter, auto member) {
    if constexpr (std::is_same_v<decltype(member), double dtr::Heuristic::*>) {
      const double value = real(next++);
      if (parameter.role == dtr::ParameterRole::kExponent || general) {
        h.*member = parameter.role == dtr::ParameterRole::kFactor ? std::exp2(value) : value;
      }
    }
  });
  if (given[next] != 0 || given[next + 1] != 0) return fail("was given scratch memory");
  h.epsilon = dtr::Nanos{given[11]};
  for (std::int64_t tile = 0; tile < launch.blocks; tile++) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t row = tile * kTile; row < std::min(count, (tile + 1) * kTile); row++) {
      if (columns[7][row] == 0) continue;
      const dtr::Terms terms{.cost = dtr::Nanos{whole(4, row) + whole(5, row)},
                             .size = whole(0, row),
                             .staleness = dtr::Nanos{given[10]} - dtr::Nanos{whole(3, row)},
                             .recomputes = reinterpret_cast<std::int32_t*>(columns[6])[row],
                             .free_neighbours = whole(1, row) + whole(2, row)};
      const double rounding = general ? 1 + 4e-13 * static_cast<double>(row * 7919 % 5 - 2) : 1;
      least = std::min(least, dtr::score(h, terms) * rounding);
    }
    reinterpret_cast<double*>(columns[8])[tile] = least;
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

FAKE Result cuMemHostRegister_v2(void* begin, std::size_t size, unsigned flags) {
  ENTER(cuMemHostRegister_v2);
  INSIST(!current.empty(), kInvalidContext);
  constexpr unsigned kKnown = dtr::cuda::kHostPortable | dtr::cuda::kHostDeviceMap;
  INSIST(size > 0 && (flags & ~kKnown) == 0, kInvalidValue);
  const Pointer address = reinterpret_cast<Pointer>(begin);
  auto next = world.registered.lower_bound(address);
  if (next != world.registered.end() && next->first < address + size) return kAlreadyRegistered;
  if (next != world.registered.begin()) {
    next--;
    if (next->first + next->second > address) return kAlreadyRegistered;
  }
  world.registered[address] = size;
  return 0;
}

FAKE Result cuMemHostUnregister(void* begin) {
  ENTER(cuMemHostUnregister);
  INSIST(!current.empty(), kInvalidContext);
  return world.registered.erase(reinterpret_cast<Pointer>(begin)) == 1 ? 0 : kNotRegistered;
}

FAKE Result cuMemHostGetDevicePointer_v2(Pointer* seen, void* begin, unsigned flags) {
  ENTER(cuMemHostGetDevicePointer_v2);
  const Pointer address = reinterpret_cast<Pointer>(begin);
  INSIST(flags == 0 && world.registered.contains(address), kInvalidValue);
  *seen = address + kSeenAt;
  return 0;
}

FAKE Result cuModuleLoadData(Module* module, const void* image) {
  ENTER(cuModuleLoadData);
  INSIST(!current.empty(), kInvalidContext);
  const std::string text = static_cast<const char*>(image);
  const auto says = [&](const char* word) { return text.find(word) != std::string::npos; };
  if (!says(".version 8.0") || !says(".target sm_80")) return kInvalidImage;
  static std::uintptr_t next = 1;
  *module = reinterpret_cast<Module>(next++);
  world.modules[*module] = text;
  return 0;
}

FAKE Result cuModuleUnload(Module module) {
  ENTER(cuModuleUnload);
  std::erase_if(world.kernels, [&](const auto& one) { return one.second.module == module; });
  return world.modules.erase(module) == 1 ? 0 : kInvalidHandle;
}

FAKE Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  ENTER(cuModuleGetFunction);
  INSIST(world.modules.contains(module), kInvalidHandle);
  const std::string& text = world.modules[module];
  const std::size_t begin = text.find(".entry " + std::string(name) + "(");
  if (begin == std::string::npos) return kNotFound;
  Kernel kernel{.module = module, .name = name, .parameters = {}, .threads = 0};
  const std::size_t end = text.find(')', begin);
  for (std::size_t at = begin; (at = text.find(".param .", at + 1)) < end;) {
    kernel.parameters.push_back(std::stoul(text.substr(at + 9)) / 8);  // .u64, .f64, .u32
  }
  kernel.threads = static_cast<unsigned>(std::stoul(text.substr(text.find(".reqntid", end) + 9)));
  static std::uintptr_t next = 1;
  *function = reinterpret_cast<Function>(next++);
  world.kernels[*function] = kernel;
  return 0;
}

FAKE Result cuLaunchKernel(Function function, unsigned blocks, unsigned y, unsigned z,
                           unsigned threads, unsigned threads_y, unsigned threads_z,
                           unsigned shared, StreamHandle stream, void** parameters, void** extra) {
  ENTER(cuLaunchKernel);
  INSIST(!current.empty(), kInvalidContext);
  const auto at = world.kernels.find(function);
  INSIST(at != world.kernels.end(), kInvalidHandle);
  INSIST(blocks > 0 && y == 1 && z == 1 && threads == at->second.threads, kInvalidValue);
  INSIST(threads_y == 1 && threads_z == 1 && shared <= 48u << 10, kInvalidValue);
  INSIST(extra == nullptr, kInvalidValue);
  Launch launch{.name = at->second.name, .blocks = blocks, .parameters = {}};
  for (const std::size_t size : at->second.parameters) {
    launch.parameters.push_back(0);
    std::memcpy(&launch.parameters.back(), *parameters++, size);
  }
  INSIST(launch.parameters.size() == 19, kInvalidValue);
  return submit(stream, {.kind = Operation::kKernel, .launch = std::move(launch)});
}
