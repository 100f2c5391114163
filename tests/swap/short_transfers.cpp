// A disk that takes and gives a little at a time, and is interrupted in between, as the system may
// do with any transfer (pwrite(2), pread(2)): every second call fails with EINTR, and the others
// move at most 5,000 bytes, no multiple of a page. Loaded before the C library (LD_PRELOAD).

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace {

constexpr size_t kMost = 5000;
std::atomic<long> calls{0};

bool interrupted() {
  if (++calls % 2) return false;
  errno = EINTR;
  return true;
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

long transfers() { return calls; }

ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  static const auto whole = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return interrupted() ? -1 : whole(file, data, std::min(bytes, kMost), at);
}

ssize_t pread(int file, void* data, size_t bytes, off_t at) {
  static const auto whole = real<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return interrupted() ? -1 : whole(file, data, std::min(bytes, kMost), at);
}

}  // extern "C"
