// Decides which physical pages lie behind a pool's blocks (Fit::kRemap): finds a hole that can be
// filled with pages of other holes, estimates the cost, and moves the pages.
//
// All rests on one fact: a page without a byte of a live block lies wholly inside one hole, because
// adjacent holes merge. So the pages that live blocks need are all pages less those inside holes,
// and a few numbers tell whether a block can have its pages in a given hole.
//
// On a device, work in a stream may still use a page at its old place. The host seldom waits for
// that: the page is mapped at its new place as well, the stream that gets it waits, and a later
// request unmaps the old place once the work is done. The host waits only to release pages, or if a
// block needs pages at an old place. The fence of the old work goes with the page: to the block,
// which is a hole again if the request fails, and to a hole that shares the page with the block.
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

  // Finds the hole end that lacks the fewest pages, among those that moved pages can fill. The hole
  // is null if there is none.
  Site site_after_moves(Bytes size) const;
  // The cost of those moves at these prices; kCannotMove if there is no such site.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  // Commits the pages of a block for the stream `user`. Pages beyond the limit, or beyond what the
  // machine has, are moved there from holes.
  void back(Node* block, bool remap, std::int32_t user);
  // Releases pages of a hole that grew, down to the limit. Other holes have none left: a request
  // that exceeds the limit takes their pages first.
  void give_surplus_back(Node* hole);
  std::int64_t give_back(std::int64_t most);  // Releases pages of any hole; returns how many.

  void poll();              // Asks which old places no work uses any more.
  void finish_all_moves();  // The host waits for the work that uses old places.

  const Figures& figures() const { return figures_; }
  void reset_peak() { figures_.peak_committed = pages_.committed_bytes(); }
  // Throws std::logic_error with a sentence. Adds the fences of old places to `fences`.
  void check(bool quarantine, std::vector<Fence>& fences) const;

 private:
  struct OldPlace {  // A run that pages left, where work may still use them.
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
