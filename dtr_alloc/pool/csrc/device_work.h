// What the runtime asks of a device besides memory: to copy within it and to tell how long work
// took, both in the order of a stream. The host never waits for either.
//
// It goes through the driver that is loaded at run time, as the arena does: so the runtime's device
// half compiles without a toolkit, and the tests drive it on a fake driver. On host memory there is
// none: the runtime copies by itself and reads the processor's clock.

#pragma once

#include <memory>
#include <optional>

#include "dtr_alloc/pool/csrc/arena.h"
#include "dtr_alloc/pool/csrc/streams.h"

namespace dtr {

// Members throw what the driver throws.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  virtual void copy(void* to, const void* from, Bytes bytes, Stream stream) = 0;

  // A moment of a stream: when all work that it was given so far is done.
  virtual void* stamp(Stream stream) = 0;
  // The time from one moment to another of the same stream; nothing while the later lies ahead.
  virtual std::optional<Nanos> between(void* first, void* last) = 0;
  virtual void give_back(void* stamp) = 0;

  virtual Bytes total_memory() const = 0;
};

// Throws as make_cuda_arena does.
std::unique_ptr<DeviceWork> make_cuda_work(int device);

}  // namespace dtr
