// A kernel of ours on a CUDA device, and memory of the host that both sides see.
//
// It is launched from C++ through the driver, so that whoever needs its answer inside an allocation
// takes no lock of Python's, and on a stream of its own, which waits for none of the program's work
// and whose work the program's does not wait for. What it reads lies in the host's memory,
// page-locked: nothing is copied, and it is as fast as the bus. The memory is registered with the
// driver, not allocated by it: where the driver refuses, it is still memory, and a forked child
// keeps it.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"

namespace dtr {

class CudaKernel {
 public:
  // `image` is PTX for the driver, `name` the kernel's name in it. Throws what the driver throws.
  CudaKernel(int device, const std::string& image, const std::string& name);
  ~CudaKernel();
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // Zeroed, at the beginning of a page; it may outlive the kernel.
  std::shared_ptr<std::byte[]> memory(std::size_t bytes);

  // Where the device sees what lies at `address`; 0 where it does not.
  cuda::Pointer seen(const void* address) const;

  // Returns when it is done. Throws what the driver throws; `parameters` are addresses of values of
  // the sizes that the image declares.
  void run(unsigned blocks, unsigned threads, unsigned shared_bytes, void** parameters);

 private:
  struct Mapped {
    const std::byte* begin;
    std::size_t bytes;
    cuda::Pointer device;
  };
  struct Device {  // Lives as long as any memory does.
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
