// Runs a kernel of ours on a CUDA device, and gives memory of the host that the device can read.
//
// C++ launches the kernel through the driver, so that an allocation that needs the result takes no
// lock of Python's. The kernel runs in its own stream, which does not wait for the program's
// streams, nor these for it. The kernel reads page-locked host memory, without a copy, as fast as
// the bus. The driver registers this memory but does not allocate it: if the driver refuses, the
// host can still use the memory, and a forked child keeps it.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"

namespace dtr {

class CudaKernel {
 public:
  // `image` is PTX, `name` the kernel's name in the image. Throws if a driver call fails.
  CudaKernel(int device, const std::string& image, const std::string& name);
  ~CudaKernel();
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // Returns zeroed memory that begins at a page. It may outlive this object.
  std::shared_ptr<std::byte[]> memory(std::size_t bytes);

  // The address by which the device reads `address`; 0 if it cannot.
  cuda::Pointer seen(const void* address) const;

  // Runs the kernel to its end. Throws if a driver call fails. `parameters` are addresses of values
  // of the sizes that the image declares.
  void run(unsigned blocks, unsigned threads, unsigned shared_bytes, void** parameters);

 private:
  struct Mapped {
    const std::byte* begin;
    std::size_t bytes;
    cuda::Pointer device;
  };
  struct Device {  // Lives as long as any of its memory.
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
