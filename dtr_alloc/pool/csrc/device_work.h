// Copies within a device's memory and tells how long work took, both in the order of a stream. The
// host never waits for either.
//
// The class calls the driver that is loaded at run time, as the arena does. So the runtime's code
// for devices compiles without a toolkit, and the tests run it on a fake driver. Host memory needs
// no such class: the runtime copies by itself and reads the processor's clock.

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

  // Stamps the moment when all work that the stream was given so far is done.
  virtual void* stamp(Stream stream) = 0;
  // The time between two stamps of the same stream; nothing until the later one has passed.
  virtual std::optional<Nanos> between(void* first, void* last) = 0;
  virtual void give_back(void* stamp) = 0;

  virtual Bytes total_memory() const = 0;
};

// Throws as make_cuda_arena does.
std::unique_ptr<DeviceWork> make_cuda_work(int device);

}  // namespace dtr
