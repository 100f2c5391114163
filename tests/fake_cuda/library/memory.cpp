// Memory of the fake driver's devices, all of it one sparse memfd. A physical allocation is a piece
// of it, and cuMemMap maps the piece at an address, so that a page really moves, aliases, and
// faults where there is none. Kept are the rules that a program breaks unseen: whole mappings,
// granularity, no overlap, access given anew, memory freed once it has neither handle nor mapping.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/fake_cuda/library/world.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kSlots = std::size_t{1} << 17;  // 256 GiB, of which only what is used exists.

int memory() {
  static const int file = [] {
    const int made = memfd_create("fake_cuda", 0);
    if (ftruncate(made, static_cast<off_t>(kSlots * kPage)) != 0) abort();
    return made;
  }();
  return file;
}

void forbid(Pointer address, std::size_t size) {
  if (world.bare) return;
  mmap(pointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
}

// Frees an allocation that has neither handle nor mapping; the next one starts with other contents.
void sweep(Physical physical) {
  const Allocation& gone = world.allocations.at(physical);
  if (gone.handles > 0 || gone.mappings > 0) return;
  fallocate(memory(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(gone.slot * kPage), static_cast<off_t>(gone.size));
  for (std::size_t i = 0; i < gone.size / kPage; i++) world.slots.erase(gone.slot + i);
  world.first_slot = std::min(world.first_slot, gone.slot);
  world.used[gone.device] -= gone.size;
  world.allocations.erase(physical);
}

// Whether the range consists of whole mappings.
bool whole_mappings(Pointer address, std::size_t size) {
  const Pointer end = address + size;
  while (address < end) {
    const auto at = world.mappings.find(address);
    if (at == world.mappings.end()) return false;
    address += at->second.size;
  }
  return address == end && size > 0;
}

}  // namespace

bool accessible(Pointer address, std::size_t size) {
  auto at = world.mappings.upper_bound(address);
  if (at == world.mappings.begin()) return false;
  at--;
  const Pointer end = address + size;
  while (at != world.mappings.end() && at->first <= address && at->second.accessible) {
    address = at->first + at->second.size;
    if (address >= end) return true;
    at++;
  }
  return false;
}

bool page_locked(const void* begin, std::size_t size) {
  const Pointer address = reinterpret_cast<Pointer>(begin);
  const auto after = world.registered.upper_bound(address);
  if (after == world.registered.begin()) return false;
  const auto [first, bytes] = *std::prev(after);
  return address + size <= first + bytes;
}

void forget_memory() {
  for (const auto& [address, size] : world.reservations) munmap(pointer(address), size);
  for (const auto& [physical, allocation] : world.allocations) {
    fallocate(memory(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(allocation.slot * kPage), static_cast<off_t>(allocation.size));
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

FAKE Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER(cuMemGetInfo_v2);
  INSIST(!current.empty(), kInvalidContext);
  const std::size_t device = reinterpret_cast<std::uintptr_t>(current.back()) - 1;
  *total = world.capacity[device];
  *free = *total - std::min(*total, world.used[device] + world.others[device]);
  return 0;
}

FAKE Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int) {
  ENTER(cuMemGetAllocationGranularity);
  INSIST(prop->type == dtr::cuda::kMemoryPinned, kInvalidValue);
  *bytes = kPage;
  return 0;
}

FAKE Result cuMemAddressReserve(Pointer* address, std::size_t size, std::size_t alignment, Pointer,
                                unsigned long long flags) {
  ENTER(cuMemAddressReserve);
  INSIST(size > 0 && size % kPage == 0 && flags == 0, kInvalidValue);
  INSIST((alignment & (alignment - 1)) == 0, kInvalidValue);
  const std::size_t unit = std::max(alignment, kPage);
  void* range =
      mmap(nullptr, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  INSIST(range != MAP_FAILED, kOutOfMemory);
  const Pointer begin = reinterpret_cast<Pointer>(range);
  *address = (begin + unit - 1) / unit * unit;
  if (*address > begin) munmap(range, *address - begin);
  munmap(pointer(*address + size), begin + unit - *address);
  world.reservations[*address] = size;
  return 0;
}

FAKE Result cuMemAddressFree(Pointer address, std::size_t size) {
  ENTER(cuMemAddressFree);
  const auto at = world.reservations.find(address);
  INSIST(at != world.reservations.end() && at->second == size, kInvalidValue);
  const auto inside = world.mappings.lower_bound(address);
  INSIST(inside == world.mappings.end() || inside->first >= address + size, kInvalidValue);
  munmap(pointer(address), size);
  world.reservations.erase(at);
  return 0;
}

FAKE Result cuMemCreate(Physical* physical, std::size_t size, const AllocationProp* prop,
                        unsigned long long flags) {
  ENTER(cuMemCreate);
  INSIST(prop->type == dtr::cuda::kMemoryPinned && flags == 0, kInvalidValue);
  INSIST(prop->location.type == dtr::cuda::kLocationDevice, kInvalidValue);
  const int device = prop->location.id;
  INSIST(device >= 0 && device < kDevices, kInvalidDevice);
  INSIST(size > 0 && size % kPage == 0, kInvalidValue);
  INSIST(world.used[device] + world.others[device] + size <= world.capacity[device], kOutOfMemory);
  const bool rdma = prop->gpu_direct_rdma_capable != 0;
  const bool exportable = prop->requested_handle_types == dtr::cuda::kHandlePosix;
  INSIST(exportable || prop->requested_handle_types == 0, kInvalidValue);
  INSIST(!rdma || world.attributes.contains(dtr::cuda::kRdmaPages), kNotSupported);
  INSIST(!exportable || world.attributes.contains(dtr::cuda::kPosixHandles), kNotSupported);
  const std::size_t count = size / kPage;
  std::size_t slot = world.first_slot;
  for (std::size_t have = 0; have < count; slot++) {
    INSIST(slot < kSlots, kOutOfMemory);
    have = world.slots.contains(slot) ? 0 : have + 1;
  }
  slot -= count;
  if (slot == world.first_slot) world.first_slot = slot + count;
  for (std::size_t i = 0; i < count; i++) world.slots.insert(slot + i);
  world.used[device] += size;
  *physical = world.next_physical++;
  world.allocations[*physical] = {device, size, slot, 1, 0, rdma, exportable};
  return 0;
}

FAKE Result cuMemRelease(Physical physical) {
  ENTER(cuMemRelease);
  const auto at = world.allocations.find(physical);
  INSIST(at != world.allocations.end() && at->second.handles > 0, kInvalidValue);
  at->second.handles--;
  sweep(physical);
  return 0;
}

FAKE Result cuMemMap(Pointer address, std::size_t size, std::size_t offset, Physical physical,
                     unsigned long long flags) {
  ENTER(cuMemMap);
  INSIST(offset == 0 && flags == 0 && address % kPage == 0, kInvalidValue);
  const auto at = world.allocations.find(physical);
  INSIST(at != world.allocations.end() && at->second.handles > 0, kInvalidValue);
  INSIST(size == at->second.size, kInvalidValue);
  auto range = world.reservations.upper_bound(address);
  INSIST(range != world.reservations.begin(), kInvalidValue);
  range--;
  INSIST(address + size <= range->first + range->second, kInvalidValue);
  auto next = world.mappings.lower_bound(address);
  INSIST(next == world.mappings.end() || next->first >= address + size, kInvalidValue);
  if (next != world.mappings.begin()) {
    next--;
    INSIST(next->first + next->second.size <= address, kInvalidValue);
  }
  if (!world.bare) {
    mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory(),
         static_cast<off_t>(at->second.slot * kPage));
  }
  world.mappings[address] = {size, physical, false};
  at->second.mappings++;
  return 0;
}

FAKE Result cuMemUnmap(Pointer address, std::size_t size) {
  ENTER(cuMemUnmap);
  INSIST(whole_mappings(address, size), kInvalidValue);
  forbid(address, size);
  for (const Pointer end = address + size; address < end;) {
    const auto at = world.mappings.find(address);
    const Mapping gone = at->second;
    world.mappings.erase(at);
    world.allocations.at(gone.physical).mappings--;
    sweep(gone.physical);
    address += gone.size;
  }
  return 0;
}

FAKE Result cuMemSetAccess(Pointer address, std::size_t size, const AccessDesc* access,
                           std::size_t count) {
  ENTER(cuMemSetAccess);
  INSIST(count == 1 && access->flags == dtr::cuda::kAccessReadWrite, kInvalidValue);
  INSIST(whole_mappings(address, size), kInvalidValue);
  if (!world.bare) mprotect(pointer(address), size, PROT_READ | PROT_WRITE);
  for (const Pointer end = address + size; address < end;) {
    Mapping& mapping = world.mappings.at(address);
    mapping.accessible = true;
    address += mapping.size;
  }
  return 0;
}

FAKE void fakecuda_bare() { world.bare = true; }
