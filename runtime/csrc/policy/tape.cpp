#include "runtime/csrc/policy/tape.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dtr {
namespace {

void mix(std::uint64_t& hash, std::int64_t number) {
  hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
}

}  // namespace

void Tapes::begin_operator() {
  if (written_.begins.size() >= kLongest) return;
  // An operator that raised has no end.
  if (written_.hashes.size() < written_.begins.size()) written_.hashes.push_back(hash());
  written_.begins.push_back(written_.length);
  accesses_before_ = written_.next.size();
}

void Tapes::accessed(Value& value) {
  if (written_.begins.size() >= kLongest || written_.begins.empty()) return;
  const auto place = static_cast<std::int32_t>(written_.next.size());
  const bool met = value.step == step_;
  mix(order_, met ? place - value.access : -1);  // Not 0, which changes no hash of 0.
  mix(bytes_, value.size);
  const Nanos now = written_.begins.back();
  if (met) written_.next[value.access] = now;
  if (from_step_before(value)) before_->in_next_step[value.access] = now;
  accessed_.resize(place);  // Where memory was out below, it is one longer.
  accessed_.push_back(&value);
  written_.next.push_back(kNever);
  if (met) accessed_[value.access] = nullptr;
  value.access = place;
  value.step = step_;
}

Tapes::Hash Tapes::hash() const {
  return {static_cast<std::uint32_t>(order_ >> 32), static_cast<std::uint32_t>(bytes_ >> 32)};
}

bool Tapes::agrees(const Tape& tape) const {
  const std::size_t last = written_.hashes.size();
  if (last > tape.hashes.size()) return false;
  const Hash now = hash(), then = tape.hashes[last - 1];
  return then.order == now.order && (other_bytes_ || then.bytes == now.bytes);
}

const Tapes::Tape* Tapes::find_alike() const {
  if (followed_ && agrees(*followed_)) return followed_;
  const auto found = std::ranges::find_if(kept_, [this](const Tape& tape) { return agrees(tape); });
  return found == kept_.end() ? nullptr : &*found;
}

bool Tapes::end_operator(Nanos cost) {
  written_.length += cost;
  if (written_.hashes.size() == written_.begins.size()) return false;
  // It accessed nothing. (At kLongest, accesses are no longer written.)
  if (written_.next.size() == accesses_before_ && written_.begins.size() < kLongest) {
    written_.begins.pop_back();
    return false;
  }
  written_.hashes.push_back(hash());
  if (lost_ || (followed_ && agrees(*followed_))) return false;
  const Tape* const before = followed_;
  const Tape* found = find_alike();
  if (!found && !std::exchange(other_bytes_, true)) found = find_alike();
  followed_ = found;
  lost_ = !found;
  return found != before;
}

// A step like an earlier one replaces that tape, because its times are newer.
void Tapes::keep() {
  const auto alike = std::ranges::find_if(kept_, [this](const Tape& tape) {
    return tape.hashes.size() == written_.hashes.size() &&
           tape.hashes.back() == written_.hashes.back();
  });
  if (alike != kept_.end()) {
    written_.successor = alike->successor;
    written_.latest = alike->latest;
    written_.in_next_step = std::move(alike->in_next_step);
    kept_.splice(kept_.begin(), kept_, alike);
  } else {
    kept_.emplace_front();
  }
  kept_.front() = std::exchange(written_, {});
  kept_.front().in_next_step.resize(kept_.front().next.size(), kNever);
  if (kept_.size() <= kKept) return;
  for (Tape& tape : kept_) {
    if (tape.successor == &kept_.back()) tape.successor = nullptr;
    if (tape.latest == &kept_.back()) tape.latest = nullptr;
  }
  kept_.pop_back();
}

bool Tapes::end_step() {
  if (written_.begins.empty()) return false;  // As for an optimizer without parameters to update.
  const bool foretold = followed_ != nullptr;
  const bool whole = !written_.hashes.empty() && written_.begins.size() < kLongest;
  Tape* const before = kept_.empty() ? nullptr : &kept_.front();
  for (const Value* value : accessed_) {  // What the program holds is needed behind the end.
    if (value && value->owned != kNowhere) written_.next[value->access] = written_.length;
  }
  if (whole) keep();
  written_ = {};
  accessed_.clear();
  ++step_;
  order_ = bytes_ = 0;
  other_bytes_ = false;
  followed_ = nullptr;
  if (whole) {
    Tape& last = kept_.front();
    if (before) {
      if (!before->successor || before->latest == &last) before->successor = &last;
      before->latest = &last;
    }
    followed_ = last.successor ? last.successor : &last;
  }
  before_ = whole ? &kept_.front() : nullptr;
  lost_ = !followed_;
  return foretold || followed_;
}

Nanos Tapes::now() const {
  const std::size_t at = std::max<std::size_t>(written_.begins.size(), 1) - 1;
  return at < followed_->begins.size() ? followed_->begins[at] : followed_->length;
}

Nanos Tapes::begin_of(std::size_t operators) const {
  const std::size_t at = written_.begins.size() + operators;
  return at < followed_->begins.size() ? followed_->begins[at] : followed_->length;
}

bool Tapes::from_step_before(const Value& value) const {
  return before_ && value.step + 1 == step_;
}

Nanos Tapes::first_use(const Value& value) const {
  return from_step_before(value) ? before_->in_next_step[value.access] : kNever;
}

Nanos Tapes::next_use(const Value& value) const {
  const auto place = static_cast<std::size_t>(value.access);
  if (value.step != step_ || place >= followed_->next.size()) return followed_->length;
  return followed_->next[place];
}

}  // namespace dtr
