#include "runtime/csrc/engine/stepping_stones.h"

#include <stdexcept>
#include <string>

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

bool SteppingStones::leads_on(const Value& value) {
  bool leads = false;
  for_each_reader(const_cast<Value&>(value), [&](const Value& made) {
    leads = leads || (made.owned != kNowhere && leads_to(value, made));
  });
  return leads;
}

bool SteppingStones::lay(Value& value) {
  if (!on_ || !leads_on(value)) return false;
  value.stone = true;
  ++count_;
  return true;
}

void SteppingStones::lift(Value& value) {
  if (!value.stone) return;
  value.stone = false;
  --count_;
}

void SteppingStones::check(const Value& value) const {
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
