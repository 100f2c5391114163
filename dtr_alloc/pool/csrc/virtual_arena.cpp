// Makes arenas of addresses without memory, for the simulator and for tests: a pool of 80 GB runs
// on any machine. The addresses lie above all that a process can map (x86-64 gives it 47 bits,
// arm64 48), so a touch faults and no real pointer is ever taken for one of them.
//
// Every live arena has slots of kArenaAlignment to itself. An atomic exchange claims a slot,
// without a lock, so that fork() cannot leave a child with a lock that no thread will release.

#include <array>
#include <atomic>
#include <new>

#include "dtr_alloc/pool/csrc/arena.h"

namespace dtr {
namespace {

constexpr std::int64_t kSlots = (kVirtualEnd - kVirtualBegin) / kArenaAlignment;

std::array<std::atomic<bool>, kSlots> taken;
// Where the search starts: addresses are reused as late as possible.
std::atomic<std::int64_t> next_slot;

void give_back(std::int64_t first, std::int64_t last) {
  for (std::int64_t slot = first; slot < last; slot++) taken[slot] = false;
}

std::int64_t claim(std::int64_t count) {
  std::int64_t first = next_slot;
  std::int64_t have = 0;
  for (std::int64_t tried = 0; tried < 2 * kSlots && have < count; tried++) {
    if (first + count > kSlots) {
      give_back(first, first + have);
      first = have = 0;
    }
    if (taken[first + have].exchange(true)) {
      give_back(first, first + have);
      first += have + 1;
      have = 0;
    } else {
      have++;
    }
  }
  if (have < count) {
    give_back(first, first + have);
    throw std::bad_alloc();
  }
  next_slot = first + count;
  return first;
}

class VirtualArena final : public Arena {
 public:
  VirtualArena(Bytes capacity, Bytes page)
      : page_(page),
        capacity_(round_up(capacity, page)),
        slots_((capacity_ + kArenaAlignment - 1) / kArenaAlignment),
        slot_(slots_ <= kSlots ? claim(slots_) : throw std::bad_alloc()) {}

  ~VirtualArena() override { give_back(slot_, slot_ + slots_); }

  const char* name() const override { return "virtual"; }
  std::uintptr_t base() const override { return kVirtualBegin + slot_ * kArenaAlignment; }
  Bytes capacity() const override { return capacity_; }
  Bytes page() const override { return page_; }
  void commit(Bytes, Bytes) override {}
  void release(Bytes, Bytes) override {}

 private:
  const Bytes page_;
  const Bytes capacity_;
  const std::int64_t slots_;
  const std::int64_t slot_;
};

}  // namespace

std::unique_ptr<Arena> make_virtual_arena(Bytes capacity, Bytes page) {
  check_capacity(capacity);
  return std::make_unique<VirtualArena>(capacity, page);
}

}  // namespace dtr
