#include "runtime/csrc/live/machine/swap_file.h"

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

// Adds what passes while it lives.
class Timer {
 public:
  explicit Timer(std::atomic<std::int64_t>& sum) : sum_(sum) {}
  ~Timer() { sum_ += std::chrono::nanoseconds(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<std::int64_t>& sum_;
  const Clock::time_point begin_ = Clock::now();
};

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
    int error = EINTR;
    while (error == EINTR) error = ::posix_fallocate(file_, 0, bytes);
    if (error) {
      fail("swap of " + std::to_string(bytes) + " bytes cannot be reserved in " + folder, error,
           kOtherFolder);
    }
    rooms_ = Pool::create(make_virtual_arena(bytes), bytes);
    measure();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SwapFile::~SwapFile() { ::close(file_); }

Tier::Room SwapFile::reserve(Bytes bytes) {
  try {
    return {.block = rooms_->allocate(bytes, Fit::kBeyond)};
  } catch (const std::bad_alloc&) {  // Of the host's own memory.
    return {};
  }
}

void SwapFile::write(Room& room, const void* from, Bytes bytes, Nanos /*made*/) {
  const Timer timer(busy_);
  const char* data = static_cast<const char*>(from);
  for (Bytes done = 0; done < bytes;) {
    const ssize_t wrote = ::pwrite(file_, data + done, bytes - done, room.block->offset + done);
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

void SwapFile::begin_read(Room& room, void* to, Bytes bytes) {
  const Timer timer(busy_);
  char* data = static_cast<char*>(to);
  for (Bytes done = 0; done < bytes;) {
    const ssize_t got = ::pread(file_, data + done, bytes - done, room.block->offset + done);
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
  const Bytes bytes = std::min<Bytes>(Bytes{1} << 20, capacity());
  std::vector<char> buffer(bytes);
  Room room = reserve(bytes);
  write(room, buffer.data(), bytes, kUnknown);  // The first write finds no page there.
  busy_ = 0;
  write(room, buffer.data(), bytes, kUnknown);
  begin_read(room, buffer.data(), bytes);
  give_back(room);
  speed_.nanoseconds_per_byte = static_cast<double>(busy_.exchange(0)) / static_cast<double>(bytes);
}

}  // namespace dtr
