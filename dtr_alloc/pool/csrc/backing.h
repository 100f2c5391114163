// Decides which physical pages lie behind a pool's blocks (Fit::kRemap): finds a hole that can be
// filled with pages of other holes, estimates the cost, and moves the pages.
//
// The class relies on one fact: a page without a byte of a live block lies wholly inside one hole,
// because adjacent holes merge. So live blocks need all pages except those inside holes, and a few
// numbers tell whether a given hole can be filled.
//
// On a device, work in a stream may still use a moved page at its old address. The host seldom
// waits for such work: the page is mapped at its new address as well, the stream that gets the page
// waits, and a later request unmaps the old address once the work is done. The host waits only to
// release pages, or if a block needs pages at an old address. The fence (streams.h) of the old work
// is passed on to the block that gets the page, and to a hole that shares the page with the block.
//
// All members are called with the pool's lock held.

#pragma once

#include <cstdint>
#include <vector>

#include "dtr_alloc/pool/csrc/blocks.h"
#include "dtr_alloc/pool/csrc/holes.h"
#include "dtr_alloc/pool/csrc/pages.h"

namespace dtr {

class Backing {
 public:
  struct Figures {
    std::int64_t remaps = 0;   // Allocations that took pages away from holes.
    Nanos moving{0};           // The host's time for moving pages.
    Bytes peak_committed = 0;  // Since the last reset_peak.
  };

  // `order` is null if the arena has no streams.
  Backing(Arena& arena, const Holes& holes, Pages& pages, StreamOrder* order)
      : arena_(arena), holes_(holes), pages_(pages), order_(order) {}

  // Finds the end of a hole that lacks the fewest pages, among ends that moved pages can fill. If
  // there is no such end, the Site's hole is null.
  Site site_after_moves(Bytes size) const;
  // The cost of moving pages to site_after_moves(size); kCannotMove without a site.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  // Gives a block its pages, for the stream `user`. Moves pages from holes instead of exceeding the
  // limit (if `remap`), or if the machine has no more.
  void back(Node* block, bool remap, std::int32_t user);
  // Releases pages of a hole that grew, until the limit holds again. Other holes have none left:
  // requests take the pages of holes before they exceed the limit.
  void give_surplus_back(Node* hole);
  std::int64_t give_back(std::int64_t most);  // Releases pages of any hole; returns how many.

  void poll();              // Asks the driver which work at old places is done.
  void finish_all_moves();  // The host waits for work at old places.

  const Figures& figures() const { return figures_; }
  void reset_peak() { figures_.peak_committed = pages_.committed_bytes(); }
  // Throws std::logic_error if inconsistent. Adds the fences of old places to `fences`.
  void check(bool quarantine, std::vector<Fence>& fences) const;

 private:
  struct OldPlace {  // Pages moved away from here; work may still use them.
    Pages::Run pages;
    Fence fence;
  };

  std::int64_t releasable() const;
  bool can_back(const Site& site, Bytes size, std::int64_t releasable) const;
  bool is_old_place(Pages::Run run) const;
  template <class Take>
  std::int64_t from_holes(std::int64_t count, const Take& take);
  std::int64_t move_from(Node* hole, Node* block, std::int64_t most, std::int32_t user);
  void hand_on(Fence fence, Node* block, Pages::Run run);
  std::int64_t release_from(Node* hole, std::int64_t most);
  void finish_moves(Pages::Run needed);
  void finish_move(std::size_t i);
  void note_move(std::int64_t pages, Nanos begin);

  Arena& arena_;
  const Holes& holes_;
  Pages& pages_;
  StreamOrder* const order_;
  std::vector<OldPlace> old_places_;
  Figures figures_;
};

}  // namespace dtr
