#include "runtime/csrc/engine/orphans.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/csrc/graph/neighbours.h"

namespace dtr {
namespace {

bool is_dropped(const Value& value) {
  return value.candidate != kNowhere && !value.home && !value.stone;
}

bool should_be_wanted(const Value& value) {
  return !value.resident() && (value.home || value.want.by > 0);
}

}  // namespace

// Something about it has changed: whether it is there, or held, or what wants it.
void Orphans::changed(Value& first) {
  if (!on_) return;
  changed_.assign(1, &first);
  while (!changed_.empty()) {
    Value& value = *changed_.back();
    changed_.pop_back();
    file(value);
    const bool wanted = should_be_wanted(value);
    if (wanted == value.wanted) continue;
    value.wanted = wanted;
    for_each_input(value, [&](Value& input) {
      input.want.by += wanted ? 1 : -1;
      changed_.push_back(&input);
    });
  }
}

// An operator that is about to run for the first time has linked its inputs to missing outputs. A
// storage that was wanted before, of which an output is a view, wants these as well.
void Orphans::linked(Op& op) {
  if (!on_) return;
  const auto each_output = [&](const auto& visit) {
    for (std::uint32_t i = 0; i < op.output_count; ++i) visit(op.outputs()[i]->storage());
  };
  each_output([&](const Value& output) {
    if (!output.wanted) return;
    for (std::uint32_t i = 0; i < op.use_count; ++i) {
      Value& input = op.uses()[i].value->storage();
      if (&input != &output) ++input.want.by;
    }
  });
  for (std::uint32_t i = 0; i < op.use_count; ++i) changed(op.uses()[i].value->storage());
  each_output([&](Value& output) { changed(output); });
}

// Puts it into the list of orphans, or takes it out.
void Orphans::file(Value& value) {
  const bool orphan = is_dropped(value) && value.want.by == 0;
  if (orphan == (value.want.orphan != kNowhere)) return;
  if (orphan) {
    orphans_.push_back(&value);
    value.want.orphan = static_cast<std::int32_t>(orphans_.size()) - 1;
    return;
  }
  Value* last = orphans_.back();
  orphans_[value.want.orphan] = last;
  last->want.orphan = value.want.orphan;
  orphans_.pop_back();
  value.want.orphan = kNowhere;
}

// The largest of some that may go, or null; among equals the one that became evictable last.
Value* Orphans::next() const {
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

void Orphans::check(const Value& value) const {
  const auto insist = [](bool truth, const char* sentence) {
    if (!truth) throw std::logic_error(std::string("engine: ") + sentence);
  };
  if (!on_ || value.base) return;
  std::int32_t wanted_by = 0;
  for_each_reader(const_cast<Value&>(value), [&](const Value& made) { wanted_by += made.wanted; });
  insist(value.constant() || value.want.by == wanted_by,
         "a value counts the wanted values that were made from it");
  insist(value.wanted == (!value.resident() && (value.home || wanted_by > 0)),
         "what is missing is wanted by the program, or by what was made from it");
  const bool orphan = is_dropped(value) && wanted_by == 0;
  insist(orphan == (value.want.orphan != kNowhere), "orphans are what nobody wants");
  insist(!orphan || orphans_[value.want.orphan] == &value, "an orphan knows its place");
}

}  // namespace dtr
