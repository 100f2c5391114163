// Decides which physical pages lie behind a pool's blocks. For Fit::kRemap, it finds a hole (free
// block) to fill with pages of other holes, estimates the cost, and moves the pages.
//
// The class relies on one fact: a page that no live block touches lies wholly inside one hole,
// because adjacent holes merge. So live blocks need all pages except those inside holes. A few
// counts of pages tell whether there are enough pages for a given hole.
//
// On a device, work in a stream may still use a moved page at its old address. So the page stays
// mapped there and is mapped at its new address, too. The stream that gets the page waits for that
// work. The host seldom waits: a later request unmaps the old address after the work is done. The
// host waits only before it releases pages, or if a block needs pages at an old address. The block
// that gets the page, and a hole that shares a page with it, get the work's fence (streams.h).
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
    std::int64_t remaps = 0;  // Allocations for which pages of holes moved.
    Nanos moving{0};          // The host's time for moving pages.
  };

  // `order` is null if no stream uses the arena's memory.
  Backing(Arena& arena, const Holes& holes, Pages& pages, StreamOrder* order)
      : arena_(arena), holes_(holes), pages_(pages), order_(order) {}

  // Of the low and high ends of holes that can back `size` bytes after moves, returns the one that
  // lacks the fewest pages. If there is no such end, the hole of the returned Site is null.
  Site site_after_moves(Bytes size) const;
  // Returns the cost of moving pages to site_after_moves(size); kCannotMove if its hole is null.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  // Gives a block its pages; `user` is the stream that it is allocated on. Takes pages from holes
  // if the machine has no more, or if `remap` is set and new pages would exceed the limit.
  void back(Node* block, bool remap, std::int32_t user);
  // After a free, releases pages of the new hole until the limit holds again. While the limit is
  // exceeded, no other hole has pages: a request first takes all pages of holes.
  void give_surplus_back(Node* hole);
  std::int64_t give_back(std::int64_t most);  // Releases pages of holes; returns how many.

  void poll();              // Asks the driver which work at old addresses is done.
  void finish_all_moves();  // The host waits for work at old addresses.

  const Figures& figures() const { return figures_; }
  // Throws std::logic_error if an invariant is broken. Adds fences of old_places_ to `fences`.
  void check(bool quarantine, std::vector<Fence>& fences) const;

 private:
  struct OldPlace {  // Old addresses of moved pages, where work may still use them.
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
