// Runs a kernel of ours on a CUDA device, and allocates host memory that the kernel can read.
//
// The kernel scores candidates for eviction, so an allocation may need its result. C++ launches it
// through the driver, so that the allocation takes no lock of Python's. The kernel runs in a stream
// of its own: it and the program's streams never wait for each other. It reads page-locked host
// memory over the bus, without a copy. We allocate this memory, and the driver only registers it.
// So the host can use the memory even in a forked child, or if the driver refuses to register it.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"

namespace dtr {

class CudaKernel {
 public:
  // `image` is PTX code, `name` is the kernel's name in it. Throws if a driver call fails.
  CudaKernel(int device, const std::string& image, const std::string& name);
  ~CudaKernel();
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // Returns zeroed memory, aligned to a page. It may outlive the CudaKernel.
  std::shared_ptr<std::byte[]> memory(std::size_t bytes);

  // Returns the device's pointer to `address` in such memory; 0 if the device cannot read it.
  cuda::Pointer seen(const void* address) const;

  // Runs the kernel, and waits for its end. Throws if a driver call fails. `parameters` points to
  // the addresses of the kernel's arguments, whose sizes the image declares.
  void run(unsigned blocks, unsigned threads, unsigned shared_bytes, void** parameters);

 private:
  struct Mapped {
    const std::byte* begin;
    std::size_t bytes;
    cuda::Pointer device;
  };
  struct Device {  // Lives until the CudaKernel and all its memory are gone.
    explicit Device(int device) : context(cuda::load(), device), driver(context.driver()) {}
    void map(std::byte* begin, std::size_t bytes);
    bool unmap(const std::byte* begin);

    const cuda::PrimaryContext context;
    const cuda::Driver& driver;
    std::vector<Mapped> mapped;
  };

  void release();

  const std::shared_ptr<Device> device_;
  cuda::Module module_ = nullptr;
  cuda::Function function_ = nullptr;
  cuda::StreamHandle stream_ = nullptr;
};

}  // namespace dtr
