// Makes an arena of a CUDA device's memory: one reserved range of addresses, in which every page is
// a separate physical allocation of the driver (2 MiB), created when the page is committed. So a
// page can move to another address without a copy. If other processes hold the device's memory, the
// driver refuses, and commit throws std::bad_alloc.
//
// A move maps the pages at the new place and leaves them mapped at the old one (the driver allows
// two addresses for a page), where work under way may still use them. The pool calls leave() once
// that work is done (backing.h), since an unmapping does not wait for it. Whatever call fails, no
// page is lost: `pages_` holds what the driver was told, and backed() answers from it. A page whose
// mapping could not be undone stays as a remnant, which the next commit there clears.
//
// The price of a page is measured: first the mapping and access of committed pages, which are
// needed anyway, then whole moves.

#include "dtr_alloc/pool/csrc/arena.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/cuda/events.h"
#include "dtr_alloc/pool/csrc/lazy_array.h"

namespace dtr {
namespace {

using cuda::Physical;
using cuda::Pointer;
using cuda::release_at_last;
using cuda::Scope;
using cuda::succeeds;

// The properties of a page. Throws std::runtime_error if the device makes no such pages.
cuda::AllocationProp page_for(const cuda::PrimaryContext& context, PageUses uses) {
  const auto insist = [&](int attribute, const char* what, const char* option) {
    if (context.has(attribute)) return;
    throw std::runtime_error("CUDA device " + std::to_string(context.device()) +
                             " makes no pages " + what + ": leave " + option + "=True out");
  };
  cuda::AllocationProp prop = {};
  prop.type = cuda::kMemoryPinned;
  prop.location = {cuda::kLocationDevice, context.device()};
  if (uses.rdma) {
    insist(cuda::kRdmaPages, "that a network card can reach (GPUDirect RDMA)", "rdma");
    prop.gpu_direct_rdma_capable = 1;
  }
  if (uses.exportable) {
    insist(cuda::kPosixHandles, "that a file descriptor can name", "exportable");
    prop.requested_handle_types = cuda::kHandlePosix;
  }
  return prop;
}

Bytes granularity(const cuda::PrimaryContext& context, const cuda::AllocationProp& prop) {
  const Scope scope(context);
  std::size_t bytes = 0;
  const cuda::Driver& driver = context.driver();
  driver.call(driver.cuMemGetAllocationGranularity, &bytes, &prop, cuda::kGranularityMinimum);
  return static_cast<Bytes>(bytes);
}

class CudaArena final : public Arena {
 public:
  CudaArena(Bytes capacity, int device, PageUses uses)
      : context_(std::make_shared<cuda::PrimaryContext>(cuda::load(), device)),
        driver_(context_->driver()),
        prop_(page_for(*context_, uses)),
        page_(granularity(*context_, prop_)),
        capacity_(round_up(capacity, page_)),
        // Drivers have not always granted a requested alignment: reserve one too much.
        reserved_(round_up(capacity_, kArenaAlignment) + kArenaAlignment),
        pages_(capacity_ / page_) {
    const Scope scope(*context_);
    driver_.call(driver_.cuMemAddressReserve, &range_, static_cast<std::size_t>(reserved_),
                 std::size_t{0}, Pointer{0}, 0ull);
    base_ = round_up(static_cast<Bytes>(range_), kArenaAlignment);
    if (base_ + static_cast<Pointer>(capacity_) > static_cast<Pointer>(kVirtualBegin)) {
      release_at_last(driver_.cuMemAddressFree, range_, static_cast<std::size_t>(reserved_));
      throw std::runtime_error("the CUDA driver reserves addresses above 48 bits");
    }
  }

  ~CudaArena() override {
    cuda::act_at_last(*context_, [&] { give_all_back(); });
  }

  std::unique_ptr<StreamEvents> stream_events() override { return cuda::make_events(context_); }

  const char* name() const override { return "cuda"; }
  std::uintptr_t base() const override { return base_; }
  Bytes capacity() const override { return capacity_; }
  Bytes page() const override { return page_; }

  void commit(Bytes begin, Bytes end) override {
    const Scope scope(*context_);
    const std::int64_t first = begin / page_;
    const std::int64_t last = end / page_;
    for (std::int64_t i = first; i < last; i++) clear_remnant(i);
    top_ = std::max(top_, last);
    try {
      for (std::int64_t i = first; i < last; i++) pages_[i].physical = create();
      const Nanos start = now();
      for (std::int64_t i = first; i < last; i++) map(i, pages_[i].physical);
      give_access(first, last);
      mappings_.add(last - first, now() - start);
    } catch (...) {
      for (std::int64_t i = first; i < last; i++) drop(i);
      throw;
    }
  }

  void release(Bytes begin, Bytes end) override {
    const Scope scope(*context_);
    retry_releases();
    const auto give_up_unmapped = [&] {
      for (std::int64_t i = end / page_; i-- > begin / page_;) {
        if (!pages_[i].mapped) give_up(i);
      }
    };
    try {
      unmap(begin / page_, end / page_);
    } catch (...) {
      give_up_unmapped();
      throw;
    }
    give_up_unmapped();
  }

  void move(Bytes from, Bytes to, Bytes bytes) override {
    const Scope scope(*context_);
    const std::int64_t source = from / page_;
    const std::int64_t target = to / page_;
    const std::int64_t count = bytes / page_;
    for (std::int64_t i = 0; i < count; i++) clear_remnant(target + i);
    top_ = std::max(top_, target + count);
    try {
      for (std::int64_t i = 0; i < count; i++) map(target + i, pages_[source + i].physical);
      give_access(target, target + count);
    } catch (...) {
      for (std::int64_t i = 0; i < count; i++) drop(target + i);
      throw;
    }
    for (std::int64_t i = 0; i < count; i++) {
      std::swap(pages_[target + i].physical, pages_[source + i].physical);
      pages_[source + i].accessible = false;
    }
  }

  void leave(Bytes begin, Bytes end) override {
    const Scope scope(*context_);
    unmap(begin / page_, end / page_);
  }

  // Before the first move, we assume that unmapping a page costs about as much as mapping it.
  MovePrices move_prices() const override {
    const Nanos page = moves_.pages > 0 ? moves_.mean() : 2 * mappings_.mean();
    return {.call = 0ns, .page = page};
  }
  void note_move(std::int64_t pages, Nanos took) override { moves_.add(pages, took); }
  Nanos now() const override { return driver_.now(); }

  bool backed(Bytes offset, bool) const override { return pages_[offset / page_].accessible; }

 private:
  // What the driver was told about one page of addresses.
  struct Page {
    Physical physical;  // Ours to release; 0: none.
    bool mapped;
    bool accessible;
  };

  // The mean time per page, over the last few thousand pages.
  struct Price {
    std::int64_t pages = 0;
    Nanos took{0};

    Nanos mean() const { return took / std::max<std::int64_t>(pages, 1); }
    void add(std::int64_t more, Nanos time) {
      constexpr std::int64_t kRemembered = 4096;
      if (pages > kRemembered) pages /= 2, took /= 2;
      pages += more, took += time;
    }
  };

  Pointer at(std::int64_t i) const { return base_ + static_cast<Pointer>(i * page_); }
  std::size_t size() const { return static_cast<std::size_t>(page_); }

  void give_all_back() {
    for (std::int64_t i = 0; i < top_; i++) {
      if (pages_[i].mapped) release_at_last(driver_.cuMemUnmap, at(i), size());
      if (pages_[i].physical != 0) release_at_last(driver_.cuMemRelease, pages_[i].physical);
    }
    for (const Physical physical : unreleased_) release_at_last(driver_.cuMemRelease, physical);
    release_at_last(driver_.cuMemAddressFree, range_, static_cast<std::size_t>(reserved_));
  }

  Physical create() {
    if (!unreleased_.empty()) {
      const Physical physical = unreleased_.back();
      unreleased_.pop_back();
      return physical;
    }
    Physical physical = 0;
    driver_.call(driver_.cuMemCreate, &physical, size(), &prop_, 0ull);
    return physical;
  }

  void map(std::int64_t i, Physical physical) {
    driver_.call(driver_.cuMemMap, at(i), size(), std::size_t{0}, physical, 0ull);
    pages_[i].mapped = true;
  }

  void give_access(std::int64_t first, std::int64_t last) {
    const cuda::AccessDesc access = {{cuda::kLocationDevice, context_->device()},
                                     cuda::kAccessReadWrite};
    const std::size_t bytes = static_cast<std::size_t>((last - first) * page_);
    driver_.call(driver_.cuMemSetAccess, at(first), bytes, &access, std::size_t{1});
    for (std::int64_t i = first; i < last; i++) pages_[i].accessible = true;
  }

  void unmap(std::int64_t i) {
    driver_.call(driver_.cuMemUnmap, at(i), size());
    pages_[i].mapped = pages_[i].accessible = false;
  }

  // Unmaps a run in one call, which costs little more than for a page; if the driver refuses that,
  // page by page.
  void unmap(std::int64_t first, std::int64_t last) {
    const auto is_mapped = [](const Page& page) { return page.mapped; };
    const bool whole = std::all_of(&pages_[first], &pages_[first] + (last - first), is_mapped);
    const std::size_t bytes = static_cast<std::size_t>((last - first) * page_);
    if (whole && last - first > 1 && succeeds(driver_.cuMemUnmap, at(first), bytes)) {
      for (std::int64_t i = first; i < last; i++) pages_[i].mapped = pages_[i].accessible = false;
      return;
    }
    for (std::int64_t i = last; i-- > first;) {
      if (pages_[i].mapped) unmap(i);
    }
  }

  // Releases the physical page of an unmapped place, now or later.
  void give_up(std::int64_t i) {
    const Physical physical = pages_[i].physical;
    pages_[i].physical = 0;
    if (physical != 0 && !succeeds(driver_.cuMemRelease, physical)) unreleased_.push_back(physical);
  }

  // Undoes what was done at a place of a page; if that fails, a remnant stays.
  void drop(std::int64_t i) {
    pages_[i].accessible = false;
    if (pages_[i].mapped && !succeeds(driver_.cuMemUnmap, at(i), size())) return;
    pages_[i].mapped = false;
    give_up(i);
  }

  void clear_remnant(std::int64_t i) {
    if (pages_[i].mapped) unmap(i);
    give_up(i);
  }

  void retry_releases() {
    while (!unreleased_.empty() && succeeds(driver_.cuMemRelease, unreleased_.back())) {
      unreleased_.pop_back();
    }
  }

  const std::shared_ptr<cuda::PrimaryContext> context_;
  const cuda::Driver& driver_;
  const cuda::AllocationProp prop_;
  const Bytes page_;
  const Bytes capacity_;
  const Bytes reserved_;
  const LazyArray<Page> pages_;
  Pointer range_ = 0;
  std::uintptr_t base_ = 0;
  std::int64_t top_ = 0;              // No page from here on was ever mapped.
  Price mappings_;                    // To map a page and give access to it.
  Price moves_;                       // To move one: the host's part.
  std::vector<Physical> unreleased_;  // Reused by create(), unless a retry releases them.
};

}  // namespace

std::unique_ptr<Arena> make_cuda_arena(Bytes capacity, int device, PageUses uses) {
  check_capacity(capacity);
  return std::make_unique<CudaArena>(capacity, device, uses);
}

}  // namespace dtr
