// Puts copies within a device's memory into a stream, and measures how long work in a stream took.
// The host never waits for such work.
//
// Like the CUDA arena, the class calls a driver that is loaded at run time. So the runtime's code
// for devices compiles without CUDA's toolkit, and tests run this code on a fake driver. Tensors on
// the host need no such class: there, the runtime itself copies bytes and reads the clock.

#pragma once

#include <memory>
#include <optional>

#include "dtr_alloc/pool/csrc/arena.h"
#include "dtr_alloc/pool/csrc/streams.h"

namespace dtr {

// All members throw if a driver call fails.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  virtual void copy(void* to, const void* from, Bytes bytes, Stream stream) = 0;

  // Puts a time stamp into the stream: the time when all work given to it so far is done.
  virtual void* stamp(Stream stream) = 0;
  // Returns the time between two stamps of one stream; nullopt until the stream has passed both.
  virtual std::optional<Nanos> between(void* first, void* last) = 0;
  virtual void give_back(void* stamp) = 0;

  virtual Bytes total_memory() const = 0;
};

// Throws the exceptions of make_cuda_arena (arena.h).
std::unique_ptr<DeviceWork> make_cuda_work(int device);

}  // namespace dtr
