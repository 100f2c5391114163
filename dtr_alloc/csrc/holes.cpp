// The tree's part of the order of holes, and the check of all of it.

#include "dtr_alloc/csrc/holes.h"

#include <iterator>
#include <stdexcept>

namespace dtr {

void Holes::insert_large(Node* hole) {
  if (spare_.empty()) {
    tree_.insert(hole);
    return;
  }
  spare_.back().value() = hole;
  tree_.insert(std::move(spare_.back()));
  spare_.pop_back();
}

void Holes::remove_large(Node* hole) { spare_.push_back(tree_.extract(hole)); }

void Holes::resize(Node* hole, Bytes offset, Bytes size) {
  if (small(hole->size) || small(size)) {
    remove(hole);
    hole->offset = offset;
    hole->size = size;
    insert(hole);
    return;
  }
  // Most often the one large hole at the end of the arena: it stays the largest, and the tree stays
  // as it is.
  const Tree::iterator at = tree_.find(hole);
  const Tree::iterator after = std::next(at);
  Node key{{.offset = offset, .size = size}};
  const bool stays = (at == tree_.begin() || BySizeThenOffset{}(*std::prev(at), &key)) &&
                     (after == tree_.end() || BySizeThenOffset{}(&key, *after));
  Tree::node_type node;
  if (!stays) node = tree_.extract(at);
  hole->offset = offset;
  hole->size = size;
  if (!stays) tree_.insert(after, std::move(node));
}

void Holes::check() const {
  const auto insist = [](bool holds, const char* sentence) {
    if (!holds) throw std::logic_error(sentence);
  };
  std::int64_t seen = 0;
  for (int size = 0; size < 64; size++) {
    insist((lists_[size] != nullptr) == ((filled_ >> size & 1) != 0),
           "the bit of a size must say whether its list is empty");
    const Node* previous = nullptr;
    for (const Node* hole = lists_[size]; hole != nullptr; hole = hole->hole_next) {
      insist(hole->free, "a live block must not be in a list of holes");
      insist(hole->size == size * kGranule, "a hole must be in the list of its size");
      insist(hole->hole_previous == previous, "links between holes must agree both ways");
      previous = hole;
      seen++;
    }
  }
  const Node* previous = nullptr;
  for (const Node* hole : tree_) {
    insist(hole->free, "a live block must not be in the tree of holes");
    insist(!small(hole->size), "a small hole must be in a list, not in the tree");
    insist(previous == nullptr || BySizeThenOffset{}(previous, hole), "the tree must be in order");
    previous = hole;
    seen++;
  }
  insist(seen == count_, "the number of holes must be the number in the lists and the tree");
}

}  // namespace dtr
