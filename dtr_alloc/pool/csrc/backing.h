// Which pages back the blocks of a pool (Fit::kRemap): which hole could be backed if pages were
// taken from the others, what that would cost, and the taking itself.
//
// All rests on one fact: a page that holds no byte of a live block lies wholly inside one hole,
// because holes that touch are one hole. So the committed pages that a set of live blocks cannot do
// without are a sum over blocks, and whether a block can be backed in a given hole is arithmetic on
// a few numbers.
//
// On a device, work in a stream may still use a page where it is. The host seldom waits for it: the
// page is mapped at its new place as well, the stream that gets it waits, and a later request that
// finds the work done leaves the old place. The host waits only for a block that must have pages at
// an old place. The old work's fence goes with the page: to the hole that shares the page with the
// block, and to the block, whose hole it is if the request fails.
//
// The pool's lock is held.

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
    Nanos moving{0};           // What moving pages has taken the host.
    Bytes peak_committed = 0;  // Since the last reset_peak.
  };

  // `order` is null where the arena has no streams.
  Backing(Arena& arena, const Holes& holes, Pages& pages, StreamOrder* order)
      : arena_(arena), holes_(holes), pages_(pages), order_(order) {}

  // The end of a hole that lacks the fewest pages, among those that can be backed once pages have
  // moved. No hole where there is none.
  Site site_after_moves(Bytes size) const;
  // What that site would cost at these prices; kCannotMove where there is none.
  Nanos move_price(Bytes size, const MovePrices& prices) const;
  // Commits the pages of a block that `user` is to have: those beyond the limit, or beyond what the
  // machine has, are taken from holes.
  void back(Node* block, bool remap, std::int32_t user);
  // Of a hole that has become larger. The others have no page left: a request that passed the limit
  // took them first.
  void give_surplus_back(Node* hole);
  std::int64_t give_back(std::int64_t most);  // Pages of any hole; returns how many.

  void poll();              // Asks which old places no work uses any more.
  void finish_all_moves();  // The host waits for the work that uses old places.

  const Figures& figures() const { return figures_; }
  void reset_peak() { figures_.peak_committed = pages_.committed_bytes(); }
  // Throws std::logic_error with a sentence. Adds the fences of old places.
  void check(bool quarantine, std::vector<Fence>& fences) const;

 private:
  struct OldPlace {  // A run of pages that were moved away, which work may still use there.
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
