// Time in the fake driver, which passes only where a test says so (fakecuda_timed). Then every call
// takes its latency of the host's clock, streams have clocks of their own, and work takes as long
// as it is said to. So a figure is the same on every machine. Bytes still change when work is
// given.

#include <algorithm>
#include <chrono>
#include <utility>

#include "tests/fake_cuda/library/world.h"

namespace fake_cuda {

// What a call takes of the host, in nanoseconds. These are assumptions: nobody has measured them on
// a device yet (perf/gpu's probe does).
std::map<std::string, std::int64_t> assumed_latencies() {
  return {{"cuMemCreate", 25'000},
          {"cuMemRelease", 10'000},
          {"cuMemMap", 8'000},
          {"cuMemSetAccess", 8'000},
          {"cuMemUnmap", 12'000},
          {"cuEventRecord", 1'000},
          {"cuEventQuery", 1'000},
          {"cuStreamWaitEvent", 1'000},
          {"cuEventSynchronize", 5'000},
          {"cuEventCreate", 2'000},
          {"cuStreamSynchronize", 5'000},
          {"cuLaunchKernel", 4'000},
          {"cuMemcpyDtoDAsync_v2", 3'000},
          {"cuMemcpyDtoHAsync_v2", 3'000},
          {"cuMemcpyHtoDAsync_v2", 3'000},
          {"cuCtxPushCurrent_v2", 100},
          {"cuCtxPopCurrent_v2", 100},
          {"cuCtxGetCurrent", 30},
          {"cuThreadExchangeStreamCaptureMode", 30}};
}

// Each direction at 25 bytes a nanosecond, which is assumed too: a bus of PCIe 4.0 or 5.0.
std::int64_t time_on_the_bus(std::size_t bytes) { return static_cast<std::int64_t>(bytes / 25); }

void wait_until(std::int64_t time) {
  Clocks& clocks = world.clocks;
  clocks.waited += std::max<std::int64_t>(time - clocks.host, 0);
  clocks.host = std::max(clocks.host, time);
}

void schedule(std::uintptr_t stream, const Operation& operation) {
  Clocks& clocks = world.clocks;
  std::int64_t& end = clocks.streams[stream];
  if (operation.kind == Operation::kWait) {
    const std::int64_t at = operation.event->at;
    if (stream == 0) clocks.stalled += std::max<std::int64_t>(at - std::max(end, clocks.host), 0);
    end = std::max(end, at);
    return;
  }
  const std::int64_t begin = std::max(end, clocks.host);
  if (operation.kind == Operation::kRecord) {
    operation.event->at = begin;
    return;
  }
  end = begin + operation.takes;
  if (operation.takes == 0) return;
  if (clocks.busy > 0) clocks.idle += std::max<std::int64_t>(begin - clocks.end, 0);
  clocks.busy += std::max<std::int64_t>(end - std::max(begin, clocks.end), 0);
  clocks.end = std::max(clocks.end, end);
}

void launch(StreamHandle stream) {
  const std::int64_t takes = std::exchange(world.running.back().takes, 0);
  if (takes > 0) submit(stream, {.kind = Operation::kWork, .takes = takes});
}

}  // namespace fake_cuda

using namespace fake_cuda;

// From now on time passes. Call it before any work.
FAKE void fakecuda_timed() { world.timed = true; }

// Where it does not: the milliseconds before an event is complete.
FAKE void fakecuda_event_takes(double milliseconds) { world.event_takes = milliseconds; }

FAKE void fakecuda_latency(const char* name, std::int64_t nanoseconds) {
  const std::lock_guard lock(mutex);
  world.latencies[name] = nanoseconds;
}

FAKE void fakecuda_drains(const char* name) {
  const std::lock_guard lock(mutex);
  world.drains.insert(name);
}

// The host is busy with something else.
FAKE void fakecuda_host_works(std::int64_t nanoseconds) {
  const std::lock_guard lock(mutex);
  world.clocks.host += nanoseconds;
}

// A stream is given work that takes so long.
FAKE int fakecuda_work(StreamHandle stream, std::int64_t nanoseconds) {
  const std::lock_guard lock(mutex);
  return submit(stream, {.kind = Operation::kWork, .takes = nanoseconds});
}

// An operator of torch's that keeps the host busy and then the stream (operator_work.cpp).
FAKE void fakecuda_operator_begins(std::int64_t host, std::int64_t takes) {
  const std::lock_guard lock(mutex);
  world.clocks.host += host;
  world.running.push_back({takes});
}

FAKE void fakecuda_operator_ends(StreamHandle stream) {
  const std::lock_guard lock(mutex);
  launch(stream);
  world.running.pop_back();
}

FAKE std::int64_t fakecuda_time(const char* what) {
  const std::lock_guard lock(mutex);
  const Clocks& clocks = world.clocks;
  const std::map<std::string, std::int64_t> known = {
      {"host", clocks.host},      {"driver", clocks.driver}, {"waited", clocks.waited},
      {"busy", clocks.busy},      {"idle", clocks.idle},     {"end", clocks.end},
      {"stalled", clocks.stalled}};
  const auto at = known.find(what);
  return at == known.end() ? -1 : at->second;
}

// By which the pool times its calls (dtr_alloc/pool/csrc/cuda/driver.h).
FAKE std::int64_t dtr_alloc_clock() {
  const std::lock_guard lock(mutex);
  if (world.timed) return world.clocks.host;
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
