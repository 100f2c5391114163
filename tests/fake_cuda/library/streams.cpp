// Streams and events of the fake driver. A stream is a queue of operations, each of which runs when
// it is given, or in manual mode when a test steps the stream, so that a missing wait shows every
// time. An operation that touches memory that is gone, or reads what it should not, is a fault:
// counted and described. A host call that waits runs exactly the operations that it must.

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "tests/fake_cuda/library/world.h"

namespace fake_cuda {
namespace {

void fault(const Operation& operation, const std::string& what) {
  world.faults.push_back((operation.kind == Operation::kWrite ? "a write of " : "a read of ") +
                         std::to_string(operation.size) + " bytes for " +
                         std::to_string(operation.value) + " " + what);
}

// All of a small range; of a large one the ends and every 16 KiB, the same places for every
// operation.
void each_byte(const Operation& operation, const std::function<bool(unsigned char*)>& visit) {
  unsigned char* bytes = static_cast<unsigned char*>(pointer(operation.address));
  const std::size_t size = operation.size;
  constexpr std::size_t kEnd = 512;
  for (std::size_t i = 0; i < size; i++) {
    if (size > 16384 && i == kEnd) {
      i = (operation.address + i + 16383) / 16384 * 16384 - operation.address;
      for (; i < size - kEnd; i += 16384) {
        if (!visit(bytes + i)) return;
      }
      i = size - kEnd;
    }
    if (!visit(bytes + i)) return;
  }
}

bool reachable(Pointer address, std::size_t size) {
  return accessible(address, size) || page_locked(pointer(address), size);
}

void perform(const Operation& operation) {
  switch (operation.kind) {
    case Operation::kRecord:
      operation.event->complete = std::max(operation.event->complete, operation.version);
      operation.event->milliseconds = world.milliseconds += world.event_takes;
      return;
    case Operation::kWait:
    case Operation::kWork:
      return;
    case Operation::kKernel:
      return least_of_tiles(operation.launch);
    case Operation::kCopy:
      if (!reachable(operation.address, operation.size) ||
          !reachable(operation.from, operation.size)) {
        return fault(operation, "touched memory that is not there");
      }
      std::memmove(pointer(operation.address), pointer(operation.from), operation.size);
      return;
    case Operation::kWrite:
    case Operation::kExpect:
      if (!accessible(operation.address, operation.size)) {
        return fault(operation, "touched memory that is not there");
      }
      each_byte(operation, [&](unsigned char* byte) {
        if (operation.kind == Operation::kWrite) {
          *byte = operation.value;
        } else if (*byte != operation.value) {
          fault(operation, "found " + std::to_string(*byte));
          return false;
        }
        return true;
      });
  }
}

bool blocked(const Queue& queue) {
  const Operation& first = queue.front();
  return first.kind == Operation::kWait && first.event->complete < first.version;
}

// Runs what must run before an event is complete, and no more.
void reach(const std::shared_ptr<EventState>& event, std::uint64_t version) {
  for (Queue* queue : queues()) {
    const auto holds = [&](const Operation& operation) {
      return operation.kind == Operation::kRecord && operation.event == event &&
             operation.version == version;
    };
    while (event->complete < version && std::any_of(queue->begin(), queue->end(), holds)) {
      if (blocked(*queue)) reach(queue->front().event, queue->front().version);
      step(*queue);
    }
  }
}

}  // namespace

bool step(Queue& queue) {
  if (queue.empty() || blocked(queue)) return false;
  const Operation operation = queue.front();
  queue.pop_front();
  perform(operation);
  return true;
}

std::vector<Queue*> queues() {
  std::vector<Queue*> all;
  for (auto& [name, queue] : world.streams) all.push_back(&queue);
  for (Queue& queue : world.destroyed) all.push_back(&queue);
  return all;
}

void run_out(Queue& queue) {
  while (!queue.empty()) {
    if (blocked(queue)) reach(queue.front().event, queue.front().version);
    step(queue);
  }
}

Result submit(StreamHandle stream, Operation operation) {
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  if (at == world.streams.end()) return kInvalidHandle;
  if (world.timed) schedule(at->first, operation);
  at->second.push_back(std::move(operation));
  if (!world.manual) run_out(at->second);
  return 0;
}

namespace {

Result copy(Pointer to, Pointer from, std::size_t size, StreamHandle stream, std::int64_t takes) {
  return submit(
      stream,
      {.kind = Operation::kCopy, .address = to, .size = size, .from = from, .takes = takes});
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

FAKE Result cuStreamCreate(StreamHandle* stream, unsigned) {
  ENTER(cuStreamCreate);
  INSIST(!current.empty(), kInvalidContext);
  std::uintptr_t name = 0x1000;  // The lowest that is free: names are soon used again.
  while (world.streams.contains(name)) name += 0x10;
  world.streams[name];
  *stream = reinterpret_cast<StreamHandle>(name);
  return 0;
}

FAKE Result cuStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int) {
  ENTER(cuStreamCreateWithPriority);
  INSIST(flags == dtr::cuda::kStreamNonBlocking, kInvalidValue);
  return cuStreamCreate(stream, flags);
}

FAKE Result cuStreamDestroy_v2(StreamHandle stream) {
  ENTER(cuStreamDestroy_v2);
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  INSIST(stream != nullptr && at != world.streams.end(), kInvalidHandle);
  if (!at->second.empty()) world.destroyed.push_back(std::move(at->second));
  world.streams.erase(at);
  return 0;
}

FAKE Result cuStreamSynchronize(StreamHandle stream) {
  ENTER(cuStreamSynchronize);
  const auto at = world.streams.find(reinterpret_cast<std::uintptr_t>(stream));
  INSIST(at != world.streams.end(), kInvalidHandle);
  if (world.timed) wait_until(world.clocks.streams[at->first]);
  run_out(at->second);
  return 0;
}

FAKE Result cuStreamWaitEvent(StreamHandle stream, Event event, unsigned) {
  ENTER(cuStreamWaitEvent);
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  return submit(stream,
                {.kind = Operation::kWait, .event = at->second, .version = at->second->recorded});
}

FAKE Result cuEventCreate(Event* event, unsigned flags) {
  ENTER(cuEventCreate);
  INSIST(!current.empty(), kInvalidContext);
  static std::uintptr_t next = 1;
  *event = reinterpret_cast<Event>(next++);
  world.events[*event] = std::make_shared<EventState>();
  world.events[*event]->stamps = flags == dtr::cuda::kEventDefault;
  return 0;
}

FAKE Result cuEventDestroy_v2(Event event) {
  ENTER(cuEventDestroy_v2);
  return world.events.erase(event) == 1 ? 0 : kInvalidHandle;
}

FAKE Result cuEventRecord(Event event, StreamHandle stream) {
  ENTER(cuEventRecord);
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  INSIST(world.streams.contains(reinterpret_cast<std::uintptr_t>(stream)), kInvalidHandle);
  if (at->second->stamps && !world.running.empty() && ++world.running.back().stamps == 2) {
    launch(stream);
  }
  // Who waits for an earlier recording goes on waiting for that one.
  at->second = std::make_shared<EventState>(EventState{.stamps = at->second->stamps});
  return submit(
      stream, {.kind = Operation::kRecord, .event = at->second, .version = ++at->second->recorded});
}

FAKE Result cuEventQuery(Event event) {
  ENTER(cuEventQuery);
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  if (world.timed && at->second->at > world.clocks.host) return kNotReady;
  return at->second->complete >= at->second->recorded ? 0 : kNotReady;
}

FAKE void fakecuda_host_function(void (*function)()) { world.host_function = function; }

FAKE Result cuEventSynchronize(Event event) {
  ENTER(cuEventSynchronize);
  if (world.host_function) {
    std::packaged_task<void()> task(std::exchange(world.host_function, nullptr));
    const std::future<void> done = task.get_future();
    std::thread(std::move(task)).detach();
    if (done.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      world.faults.push_back("a host function waits for a lock of the thread that waits for it");
    }
  }
  const auto at = world.events.find(event);
  INSIST(at != world.events.end(), kInvalidHandle);
  if (world.timed) wait_until(at->second->at);
  reach(at->second, at->second->recorded);
  return 0;
}

FAKE Result cuEventElapsedTime(float* milliseconds, Event first, Event last) {
  ENTER(cuEventElapsedTime);
  const auto begin = world.events.find(first);
  const auto end = world.events.find(last);
  INSIST(begin != world.events.end() && end != world.events.end(), kInvalidHandle);
  for (const auto& event : {begin->second, end->second}) {
    INSIST(event->recorded > 0, kInvalidHandle);
    INSIST(event->complete >= event->recorded, kNotReady);
    INSIST(!world.timed || event->at <= world.clocks.host, kNotReady);
  }
  *milliseconds = static_cast<float>(
      world.timed ? static_cast<double>(end->second->at - begin->second->at) * 1e-6
                  : end->second->milliseconds - begin->second->milliseconds);
  return 0;
}

FAKE Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, std::size_t size, StreamHandle stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  return copy(to, from, size, stream, 0);
}

// A copy to or from memory that is not page-locked would keep the host waiting.
FAKE Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, std::size_t size, StreamHandle stream) {
  ENTER(cuMemcpyDtoHAsync_v2);
  INSIST(page_locked(to, size), kInvalidValue);
  return copy(reinterpret_cast<Pointer>(to), from, size, stream, time_on_the_bus(size));
}

FAKE Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, std::size_t size,
                                 StreamHandle stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  INSIST(page_locked(from, size), kInvalidValue);
  return copy(to, reinterpret_cast<Pointer>(from), size, stream, time_on_the_bus(size));
}

FAKE Result cuMemsetD8Async(Pointer address, unsigned char value, std::size_t size,
                            StreamHandle stream) {
  ENTER(cuMemsetD8Async);
  return submit(stream,
                {.kind = Operation::kWrite, .address = address, .size = size, .value = value});
}

FAKE Result cuMemcpyDtoH_v2(void* to, Pointer from, std::size_t size) {
  ENTER(cuMemcpyDtoH_v2);
  INSIST(accessible(from, size), kIllegalAddress);
  std::memcpy(to, pointer(from), size);
  return 0;
}

FAKE Result cuMemcpyHtoD_v2(Pointer to, const void* from, std::size_t size) {
  ENTER(cuMemcpyHtoD_v2);
  INSIST(accessible(to, size), kIllegalAddress);
  std::memcpy(pointer(to), from, size);
  return 0;
}

FAKE void fakecuda_manual(int on) { world.manual = on != 0; }

// Queues a check that every byte has the value.
FAKE int fakecuda_expect(Pointer address, unsigned char value, std::size_t size,
                         StreamHandle stream) {
  const std::lock_guard lock(mutex);
  return submit(stream,
                {.kind = Operation::kExpect, .address = address, .size = size, .value = value});
}

// Runs the next operation of a stream; 0 where there is none or it waits for an event.
FAKE int fakecuda_step(std::uintptr_t stream) {
  const std::lock_guard lock(mutex);
  return step(world.streams.at(stream)) ? 1 : 0;
}

FAKE long fakecuda_queued(std::uintptr_t stream) {
  const std::lock_guard lock(mutex);
  return static_cast<long>(world.streams.at(stream).size());
}

FAKE void fakecuda_finish() {
  const std::lock_guard lock(mutex);
  for (Queue* queue : queues()) run_out(*queue);
}
