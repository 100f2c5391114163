// Puts copies within a device's memory into a stream, and measures how long work in a stream took.
// The host never waits.
//
// The class calls the driver that is loaded at run time, as the arena does. So the runtime's code
// for devices compiles without CUDA's toolkit, and tests run this code on a fake driver. Host
// memory needs no such class: the runtime itself copies and reads the clock.

#pragma once

#include <memory>
#include <optional>

#include "dtr_alloc/pool/csrc/arena.h"
#include "dtr_alloc/pool/csrc/streams.h"

namespace dtr {

// Members throw if a driver call fails.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  virtual void copy(void* to, const void* from, Bytes bytes, Stream stream) = 0;

  // Records a time stamp: the moment when the stream has done all work given to it so far.
  virtual void* stamp(Stream stream) = 0;
  // The time between two stamps of one stream; nothing until the stream has reached both.
  virtual std::optional<Nanos> between(void* first, void* last) = 0;
  virtual void give_back(void* stamp) = 0;

  virtual Bytes total_memory() const = 0;
};

// Throws as make_cuda_arena does.
std::unique_ptr<DeviceWork> make_cuda_work(int device);

}  // namespace dtr
