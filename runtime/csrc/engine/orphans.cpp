// Orphans: what the program has let go, and what nothing that is still wanted rests on. With
// Heuristic::orphans_first they go before everything else, because nobody will miss them unless
// another value goes first. The largest goes first, of 256 at most.
//
// A missing value is wanted while the program holds it, or while a wanted value was made from it.
// So a value counts the wanted values that were made from it, and the count of a missing one goes
// on to its inputs. For example, C was made from B and B from A, the program holds C alone, and C
// is missing. Then A and B are wanted. When A and B have been computed again, A is an orphan.
//
// A loss, a return or a drop costs a count for each input, and an eviction a look at 256 orphans
// from the end of their list: a long recomputation of small tensors leaves tens of thousands.
// Where values are views of each other their graph may have cycles (graph/neighbours.h), in which
// values that nobody wants keep each other wanted: such orphans go by their score. A stepping stone
// (stepping_stones.cpp) is no orphan.

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {
namespace {

bool should_be_wanted(const Value& value) {
  return !value.resident() && (value.home || value.wanted_by > 0);
}

}  // namespace

// Something about it has changed: whether it is there, or held, or what wants it.
void Engine::follow_wants(Value& first) {
  if (!heuristic_.orphans_first) return;
  changed_.assign(1, &first);
  while (!changed_.empty()) {
    Value& value = *changed_.back();
    changed_.pop_back();
    file_orphan(value);
    const bool wanted = should_be_wanted(value);
    if (wanted == value.wanted) continue;
    value.wanted = wanted;
    for_each_input(value, [&](Value& input) {
      input.wanted_by += wanted ? 1 : -1;
      changed_.push_back(&input);
    });
  }
}

// An operator that is about to run for the first time has linked its inputs to missing outputs. A
// storage that was wanted before, of which an output is a view, wants these as well.
void Engine::follow_wants_of_outputs(Op& op) {
  if (!heuristic_.orphans_first) return;
  const auto each_output = [&](const auto& visit) {
    for (std::uint32_t i = 0; i < op.output_count; ++i) visit(op.outputs()[i]->storage());
  };
  each_output([&](const Value& output) {
    if (!output.wanted) return;
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = op.uses()[i].value->storage();
      if (&input != &output) ++input.wanted_by;
    }
  });
  for (std::uint32_t i = 0; i < op.use_count; ++i) follow_wants(op.uses()[i].value->storage());
  each_output([&](Value& output) { follow_wants(output); });
}

// Puts it into the list of orphans, or takes it out.
void Engine::file_orphan(Value& value) {
  const bool dropped = value.candidate != kNowhere && !value.home && !value.stone;
  const bool orphan = dropped && value.wanted_by == 0;
  if (orphan == (value.orphan != kNowhere)) return;
  if (orphan) {
    orphans_.push_back(&value);
    value.orphan = static_cast<std::int32_t>(orphans_.size()) - 1;
    return;
  }
  Value* last = orphans_.back();
  orphans_[value.orphan] = last;
  last->orphan = value.orphan;
  orphans_.pop_back();
  value.orphan = kNowhere;
}

// The largest of some that may go, or null; among equals the one that became evictable last.
Value* Engine::orphan() const {
  constexpr int kMost = 256;
  const std::uint64_t* order = columns_.view().order;
  const auto rank = [order](const Value& one) { return std::pair(one.size, order[one.candidate]); };
  Value* found = nullptr;
  int seen = 0;
  for (auto at = orphans_.rbegin(); at != orphans_.rend() && seen < kMost; ++at) {
    if ((*at)->locks > 0) continue;
    ++seen;
    if (!found || rank(**at) > rank(*found)) found = *at;
  }
  return found;
}

// The rule has been switched on or off. The list is then in the order in which its values became
// evictable, so that two runs of a program evict alike.
void Engine::find_all_orphans() {
  orphans_.clear();
  const std::unordered_set<Value*> values = reachable();
  for (Value* value : values) {
    value->orphan = kNowhere;
    value->wanted_by = 0;
    value->wanted = false;
  }
  for (Value* value : values) follow_wants(value->storage());
  const std::uint64_t* order = columns_.view().order;
  std::ranges::sort(orphans_, {}, [order](const Value* one) { return order[one->candidate]; });
  for (std::size_t i = 0; i < orphans_.size(); ++i) {
    orphans_[i]->orphan = static_cast<std::int32_t>(i);
  }
}

}  // namespace dtr
