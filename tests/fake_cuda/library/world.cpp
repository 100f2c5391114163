// The fake driver's world, and how a test steers it: turn a call down, drop one without a word, say
// what a device has, count what is there. Every call enters here, so that a test of a failure needs
// no code in the call that fails. Names from fakecuda_ on are for tests (driver.py calls them).

#include "tests/fake_cuda/library/world.h"

#include <iterator>

namespace fake_cuda {

std::recursive_mutex mutex;
World world;
thread_local std::vector<Context> current;

Result enter(const char* name) {
  if (world.aside) return 0;
  world.calls[name]++;
  if (world.timed) {
    const auto latency = world.latencies.find(name);
    const std::int64_t takes = latency == world.latencies.end() ? 0 : latency->second;
    if (world.drains.contains(name)) wait_until(world.clocks.end);
    world.clocks.host += takes;
    world.clocks.driver += takes;
  }
  const auto injected = world.injections.find(name);
  if (injected != world.injections.end() && injected->second.after-- == 0) {
    const Result code = injected->second.code;
    world.injections.erase(injected);
    return code;
  }
  const std::string call = name;
  if (call == "cuInit" || call == "cuDriverGetVersion") return 0;
  return world.initialized ? 0 : kNotInitialized;
}

}  // namespace fake_cuda

using namespace fake_cuda;

FAKE void fakecuda_reset() {
  const std::lock_guard lock(mutex);
  forget_memory();
  world = World{};
  current.clear();
}

// Call number `after` from now (0: the next) answers `code`.
FAKE void fakecuda_fail(const char* name, long after, int code) {
  const std::lock_guard lock(mutex);
  world.injections[name] = {after, code};
}

// How many injections have not come to pass.
FAKE long fakecuda_pending_failures() { return static_cast<long>(world.injections.size()); }

// From now on the call answers success and does nothing.
FAKE void fakecuda_drop(const char* name) {
  const std::lock_guard lock(mutex);
  world.dropped.insert(name);
}

FAKE void fakecuda_aside(int on) { world.aside = on != 0; }

FAKE long fakecuda_calls(const char* name) {
  const std::lock_guard lock(mutex);
  return world.calls[name];
}

FAKE void fakecuda_capacity(int device, std::size_t bytes) { world.capacity[device] = bytes; }
// From now on the devices lack it.
FAKE void fakecuda_lacks(int attribute) { world.attributes.erase(attribute); }
FAKE void fakecuda_others(int device, std::size_t bytes) { world.others[device] = bytes; }
FAKE long fakecuda_used(int device) { return static_cast<long>(world.used[device]); }

FAKE long fakecuda_faults() { return static_cast<long>(world.faults.size()); }
FAKE const char* fakecuda_fault(long at) { return world.faults[at].c_str(); }

FAKE long fakecuda_count(const char* what) {
  const std::lock_guard lock(mutex);
  long handles = 0, rdma = 0, exportable = 0;
  for (const auto& [physical, allocation] : world.allocations) {
    handles += allocation.handles;
    rdma += allocation.rdma;
    exportable += allocation.exportable;
  }
  const std::map<std::string, long> known = {{"handles", handles},
                                             {"rdma", rdma},
                                             {"exportable", exportable},
                                             {"allocations", std::ssize(world.allocations)},
                                             {"mappings", std::ssize(world.mappings)},
                                             {"reservations", std::ssize(world.reservations)},
                                             {"events", std::ssize(world.events)},
                                             {"contexts", world.contexts[0] + world.contexts[1]},
                                             {"registered", std::ssize(world.registered)},
                                             {"modules", std::ssize(world.modules)},
                                             {"streams", std::ssize(world.streams)},  // With 0.
                                             {"current", std::ssize(current)}};
  const auto at = known.find(what);
  return at == known.end() ? -1 : at->second;
}
