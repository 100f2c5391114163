#include "runtime/csrc/live_cuda/device_memory.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAStream.h>

#include <array>

#include "runtime/csrc/engine/make_room.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/profiler.h"

namespace dtr {
namespace {

std::array<std::atomic<DeviceMemory*>, 64> registry;
std::atomic<std::size_t> registered{0};

std::unique_ptr<Session> make_session(SessionOptions options, c10::DeviceIndex device,
                                      at::Allocator& allocator) {
  options.on_cuda = true;
  options.cuda_device = device;
  SessionDevice here = session_device(device, allocator, &DeviceMemory::deleter);
  auto session = std::make_unique<Session>(options, std::move(here), pool_for(options));
  session->scope().claim();
  return session;
}

Pool::Handle make_pool(const SessionOptions& options, c10::DeviceIndex device) {
  const Bytes budget = options.budget;
  return Pool::create(make_cuda_arena(usual_addresses(budget), device, options.page_uses), budget);
}

}  // namespace

SessionDevice session_device(c10::DeviceIndex index, at::Allocator& allocator,
                             c10::DeleterFnPtr deleter) {
  return {.device = c10::Device(c10::kCUDA, index),
          .allocator = &allocator,
          .deleter = deleter,
          .stream =
              [](c10::Device device) {
                cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
                return reinterpret_cast<Stream>(stream);
              },
          .generator = [](c10::Device device) -> at::Generator {
            return at::globalContext().defaultGenerator(device);
          },
          .work = make_cuda_work(index)};
}

DeviceMemory::DeviceMemory(const SessionOptions& options, c10::DeviceIndex index,
                           at::Allocator& allocator, bool rematerialize)
    : device(index),
      budget(options.budget),
      session(rematerialize ? make_session(options, index, allocator) : nullptr),
      own(rematerialize ? nullptr : make_pool(options, index)),
      pool(session ? *session->memory().pool() : *own),
      graphs(pool) {
  std::size_t slot = registered++;
  TORCH_CHECK(slot < registry.size(), "dtr_alloc: more than ", registry.size(), " device pools");
  registry[slot].store(this, std::memory_order_release);
}

DeviceMemory* DeviceMemory::owner_of(const void* data) {
  const Pool* pool = Pool::owner_of(data);
  if (!pool) return nullptr;
  std::size_t count = std::min(registered.load(std::memory_order_acquire), registry.size());
  for (std::size_t i = 0; i < count; ++i) {
    DeviceMemory* memory = registry[i].load(std::memory_order_acquire);
    if (memory && &memory->pool == pool) return memory;
  }
  return nullptr;
}

void DeviceMemory::deleter(void* data) {
  if (!data) return;
  DeviceMemory* memory = owner_of(data);
  TORCH_INTERNAL_ASSERT(memory, "dtr_alloc was asked to free memory that is not its own");
  memory->free(data);
}

void* DeviceMemory::allocate(std::size_t bytes, Stream stream) {
  if (bytes == 0) return nullptr;
  Bytes asked = static_cast<Bytes>(bytes);
  bool routed = graphs.routing();
  const auto hand_out = [&](Block* block) {
    tell_profiler(pool, *block, block->size, c10::Device(c10::kCUDA, device));
    return pool.data(block);
  };
  if (routed) {
    if (Block* block = graphs.take(asked, stream)) return hand_out(block);
  }
  void* data = nullptr;
  try {
    if (session) {
      data = session->requests().allocate(bytes, stream);
    } else if (Block* block = pool.allocate(asked, Fit::kBeyond, stream)) {
      data = pool.data(block);
    } else {
      refuse(asked);
    }
  } catch (const c10::OutOfMemoryError&) {
    ++out_of_memory;
    throw;
  } catch (const std::bad_alloc& error) {
    ++out_of_memory;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA device ", static_cast<int>(device),
                     " has no memory for ", asked, " bytes, which the budget of ", budget,
                     " bytes allows: ", error.what(),
                     "; other programs may hold it: stop them or lower the budget");
  }
  Block* block = pool.find(data);
  if (routed) graphs.adopt(block, stream);
  return hand_out(block);
}

void DeviceMemory::free(void* data) {
  Block* block = pool.find(data);
  TORCH_CHECK(block, "no live block of dtr_alloc starts at ", data, ": it was freed before");
  tell_profiler(pool, *block, -block->size, c10::Device(c10::kCUDA, device));
  if (!graphs.empty() && graphs.keep(block)) return;
  if (session) session->freed(data);
  pool.free(block);
}

void DeviceMemory::refuse(Bytes asked) const {
  const PoolStats now = pool.stats();
  const Bytes most = make_cuda_work(device)->total_memory();
  if (asked > most) throw_too_large(asked, most, now.budget);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "dtr_alloc is out of memory. Raise the budget to at least ",
      now.live + round_to_granule(asked),
      " bytes, or let tensors be evicted: dtr_alloc.allocator(budget, rematerialize=True)"
      "\n  asked: ",
      asked, " bytes on CUDA device ", static_cast<int>(device), "\n  budget: ", now.budget,
      " bytes, of which ", std::max<Bytes>(now.budget - now.live, 0), " are free, and ",
      now.largest_hole, " in the largest hole");
}

void DeviceMemory::begin_capture(GraphMemory::Id id, GraphMemory::Filter filter) {
  if (session) session->begin_capture();
  try {
    pool.begin_quarantine();
  } catch (...) {
    if (session) session->end_capture();
    throw;
  }
  graphs.begin(id, std::move(filter));
}

void DeviceMemory::end_capture(GraphMemory::Id id) {
  graphs.end(id);
  pool.end_quarantine();
  if (session) session->end_capture();
}

void DeviceMemory::retire_stream(Stream stream) {
  session ? session->requests().retire_stream(stream) : pool.retire_stream(stream);
}

void DeviceMemory::set_fraction(double share) {
  const Bytes total = make_cuda_work(device)->total_memory();
  const auto most = static_cast<Bytes>(share * static_cast<double>(total));
  session ? session->requests().bound(most) : pool.set_limit(std::min(budget, most));
  fraction = share;
}

}  // namespace dtr
