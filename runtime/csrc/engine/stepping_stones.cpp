// Stepping stones: what the program drops, and what makes something larger cheap to bring back.
//
// What the program drops goes at once (paper, appendix C.5), and whatever was made from it is dear
// from then on. For example, a layer of DenseNet makes 64 KiB of new channels by two convolutions,
// concatenates them to 960 KiB, and drops them. To evict the 960 KiB then costs the convolutions
// too. With Heuristic::stepping_stones the channels stay as a candidate, a stone, while the program
// holds what was made from them, if that is much larger and much cheaper for each byte.
//
// Nothing stays before the first eviction: a program that has room needs no stones. A stone is
// needed when what it stays for is, which the tape foretells (needs.cpp). It goes when the program
// drops or overwrites that, or that becomes a constant; where nothing may be evicted; and as any
// candidate when it has the least score. Once lost it is a stone no more, and no swap takes it.
// Cost: a look at the readers of what is dropped; and while there is a stone, at the inputs of what
// the program lets go or will need at another time. Source: our own, found by what DTR recomputes
// in DenseNet.

#include <stdexcept>
#include <string>

#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/graph/neighbours.h"

namespace dtr {
namespace {

constexpr double kSmaller = 0.4;  // Than what is made from it, at most.
constexpr double kDearer = 5;     // For each byte, at least.

bool leads_to(const Value& value, const Value& made) {
  const auto size = static_cast<double>(value.size), whole = static_cast<double>(made.size);
  const auto cost = static_cast<double>(value.cost.count());
  return size <= kSmaller * whole &&
         cost * whole >= kDearer * static_cast<double>(made.cost.count()) * size;
}

}  // namespace

// Of a resident value that the program has dropped.
bool Engine::would_be_stone(const Value& value) const {
  bool leads = false;
  for_each_reader(const_cast<Value&>(value), [&](const Value& made) {
    leads = leads || (made.owned != kNowhere && leads_to(value, made));
  });
  return leads;
}

// Whether it is one now.
bool Engine::lay_stone(Value& value) {
  if (!heuristic_.stepping_stones || stats_.evictions == 0 || !would_be_stone(value)) return false;
  value.stone = true;
  ++stones_;
  follow_wants(value);
  renew_need(value);
  return true;
}

void Engine::lift_stone(Value& value) {
  if (!value.stone) return;
  value.stone = false;
  --stones_;
}

// The program has let `made` go.
void Engine::let_stones_go(Value& made) {
  if (stones_ == 0) return;
  for_each_input(made, [this](Value& input) {
    if (!input.stone) return;
    if (would_be_stone(input)) {
      renew_need(input);
    } else {
      let_stone_go(input);
    }
  });
}

void Engine::let_stone_go(Value& stone) {
  if (stone.locks == 0) {
    executor_.release(stone, Loss::kDropped);
    return lose(stone, Loss::kDropped);
  }
  lift_stone(stone);
  stone.dropped_while_locked = true;
  renew_need(stone);
}

bool Engine::let_all_stones_go() {
  const bool any = stones_ > 0;
  for (std::size_t row = columns_.count(); row-- > 0 && stones_ > 0;) {
    if (columns_.value(row)->stone) let_stone_go(*columns_.value(row));
  }
  return any;
}

void Engine::check_stone(const Value& value) const {
  if (!value.stone) return;
  const auto insist = [](bool truth, const char* sentence) {
    if (!truth) throw std::logic_error(std::string("engine: ") + sentence);
  };
  insist(value.candidate != kNowhere && !value.home, "a stone is resident, and held by nobody");
  bool held = false;
  for_each_reader(const_cast<Value&>(value),
                  [&](const Value& made) { held |= made.owned != kNowhere; });
  insist(held, "the program holds something that was made from a stone");
}

}  // namespace dtr
