#include "runtime/csrc/live/session/notes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"

namespace dtr {

void Notes::note_exposure(std::string text) {
  std::lock_guard guard(mutex_);
  exposures_.push_back(std::move(text));
}

std::vector<std::string> Notes::exposures() const {
  std::lock_guard guard(mutex_);
  return exposures_;
}

void Notes::note_stayed(std::string what_and_why) {
  std::lock_guard guard(mutex_);
  stayed_.insert(std::move(what_and_why));
}

std::vector<std::string> Notes::stayed() const {
  std::lock_guard guard(mutex_);
  return {stayed_.begin(), stayed_.end()};
}

void Notes::note_caught(const OperatorInfo& info) {
  const Bytes asked = InOperator::state.refused, at_least = InOperator::state.at_least;
  if (asked == 0) return;
  forget_refusal();
  std::lock_guard guard(mutex_);
  Bytes& most = caught_[info.name];
  if (most == 0) {
    untold_.push_back(went_on_without(info.name, asked, at_least));
    some_untold_ = true;
  }
  most = std::max(most, asked);
}

std::map<std::string, Bytes> Notes::caught() const {
  std::lock_guard guard(mutex_);
  return caught_;
}

void Notes::tell_of_caught() {
  if (!some_untold_) return;
  for (const std::string& text : take_untold()) TORCH_WARN(text);
}

std::vector<std::string> Notes::take_untold() {
  std::lock_guard guard(mutex_);
  some_untold_ = false;
  return std::exchange(untold_, {});
}

}  // namespace dtr
