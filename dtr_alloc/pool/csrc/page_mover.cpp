#include "dtr_alloc/pool/csrc/page_mover.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace dtr {
namespace {

// As in Linux 6.8; the headers of a system may be older.
constexpr int kFaultsOfTheProgramAlone = 1;  // UFFD_USER_MODE_ONLY: needs no privilege.
constexpr std::uint64_t kFeatureMove = 1 << 16;
constexpr std::uint64_t kAllowHoles = 2;
constexpr int kMoveNumber = 5;
struct Move {
  std::uint64_t to, from, bytes, mode;
  std::int64_t moved;  // Or an error, below zero.
};
constexpr unsigned long kMove = _IOWR(UFFDIO, kMoveNumber, Move);

bool registers(int descriptor, std::uintptr_t base, Bytes capacity) {
  uffdio_api api{.api = UFFD_API, .features = kFeatureMove, .ioctls = 0};
  if (ioctl(descriptor, UFFDIO_API, &api) != 0) return false;
  uffdio_register range{};
  range.range = {base, static_cast<std::uint64_t>(capacity)};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl(descriptor, UFFDIO_REGISTER, &range) == 0 && (range.ioctls >> kMoveNumber & 1) != 0;
}

}  // namespace

PageMover::PageMover(std::uintptr_t base, Bytes capacity) : base_(base) {
  const char* wanted = std::getenv("DTR_ALLOC_USERFAULTFD");
  if (wanted != nullptr && std::string_view(wanted) == "0") return;
  descriptor_ =
      static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kFaultsOfTheProgramAlone));
  if (usable() && !registers(descriptor_, base, capacity)) give_up();
}

void PageMover::give_up() {
  if (usable()) close(descriptor_);
  descriptor_ = -1;
}

Bytes PageMover::move(Bytes from, Bytes to, Bytes bytes) {
  Move move{base_ + to, base_ + from, static_cast<std::uint64_t>(bytes), kAllowHoles, 0};
  if (ioctl(descriptor_, kMove, &move) == 0) return bytes;
  if (errno == EINVAL) give_up();
  return std::max<std::int64_t>(move.moved, 0);
}

}  // namespace dtr
