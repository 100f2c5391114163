#include "runtime/csrc/live/swap_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace dtr {
namespace {

[[noreturn]] void fail(const std::string& what, int error, const char* remedy) {
  throw std::runtime_error(what + ": " + std::strerror(error) + "; " + remedy);
}

constexpr char kOtherFolder[] =
    "give swap_dir a folder of a local disk that has the room and can be written";

int open_nameless(const std::string& folder) {
#ifdef O_TMPFILE
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
#endif
  std::string name = folder + "/dtr_alloc-XXXXXX";  // A system that knows no nameless files.
  const int named = ::mkstemp(name.data());
  if (named < 0) fail("no file can be made in " + folder, errno, kOtherFolder);
  ::unlink(name.c_str());
  ::fcntl(named, F_SETFD, FD_CLOEXEC);
  return named;
}

}  // namespace

SwapFile::SwapFile(const std::string& folder, Bytes asked)
    : folder_(folder), file_(open_nameless(folder)) {
  const Bytes bytes = round_to_granule(asked);
  try {
    const int error = ::posix_fallocate(file_, 0, bytes);
    if (error) {
      fail("swap of " + std::to_string(bytes) + " bytes cannot be reserved in " + folder, error,
           kOtherFolder);
    }
    places_owner_ = Pool::create(make_virtual_arena(bytes), bytes);
    places_ = places_owner_->pool();
    measure();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SwapFile::~SwapFile() { ::close(file_); }

SwapFile::Place* SwapFile::reserve(Bytes bytes) { return places_->allocate(bytes, Fit::kBeyond); }

void SwapFile::write(const Place& place, const void* from, Bytes bytes) {
  const char* data = static_cast<const char*>(from);
  for (Bytes done = 0; done < bytes;) {
    const ssize_t wrote = ::pwrite(file_, data + done, bytes - done, place.offset + done);
    if (wrote > 0) {
      done += wrote;
    } else if (wrote == 0 || errno != EINTR) {
      fail("a tensor of " + std::to_string(bytes) + " bytes cannot be written to the swap in " +
               folder_,
           wrote == 0 ? EIO : errno,
           "it stays in memory; see to the disk, or give a larger budget");
    }
  }
}

void SwapFile::read(const Place& place, void* to, Bytes bytes) const {
  char* data = static_cast<char*>(to);
  for (Bytes done = 0; done < bytes;) {
    const ssize_t got = ::pread(file_, data + done, bytes - done, place.offset + done);
    if (got > 0) {
      done += got;
    } else if (got == 0 || errno != EINTR) {
      fail("a tensor of " + std::to_string(bytes) + " bytes cannot be read from the swap in " +
               folder_,
           got == 0 ? EIO : errno, "see to the disk, and call dtr_alloc.materialize(tensor)");
    }
  }
}

void SwapFile::measure() {
  using Clock = std::chrono::steady_clock;
  const Bytes bytes = std::min<Bytes>(Bytes{1} << 20, capacity());
  std::vector<char> buffer(bytes);
  Place* place = reserve(bytes);
  write(*place, buffer.data(), bytes);  // The first write finds no page there.
  const Clock::time_point begin = Clock::now();
  write(*place, buffer.data(), bytes);
  read(*place, buffer.data(), bytes);
  const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
  give_back(place);
  nanoseconds_per_byte_ = took.count() / static_cast<double>(bytes);
}

}  // namespace dtr
