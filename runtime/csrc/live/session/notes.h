// Collects what a session has to tell: memory that was handed out, what is not recorded and why,
// and operators that were refused memory, caught the error and went on with less. cuDNN then takes
// another algorithm, whose results may differ in their last bits. No error reaches the program, so
// it gets a warning, once for each operator, when the operator is over and none of our locks is
// held. A replay's warning waits until then, too.

#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

inline constexpr char kUnseenText[] =
    "a tensor was made without the runtime in a thread of the dtr_alloc scope: DispatchKey.Fake is "
    "off there, because a fake mode of another library ended or somebody cleared it. Such tensors "
    "are not recorded, on the CPU they lie outside the budget, and evicted arguments do not come "
    "back. The next step of an optimizer enables the key again, as does "
    "dtr_alloc.materialize(tensor)";

// Any thread may call it, with or without our locks. Its own mutex is taken last.
class Notes {
 public:
  // For error texts: which call handed memory out, and where.
  void note_exposure(std::string text) {
    std::lock_guard guard(mutex_);
    exposures_.push_back(std::move(text));
  }
  std::vector<std::string> exposures() const {
    std::lock_guard guard(mutex_);
    return exposures_;
  }
  void note_stayed(std::string what_and_why) {  // Of an operator that is not recorded.
    std::lock_guard guard(mutex_);
    stayed_.insert(std::move(what_and_why));
  }
  std::vector<std::string> stayed() const {
    std::lock_guard guard(mutex_);
    return {stayed_.begin(), stayed_.end()};
  }

  // An operator of this thread succeeded. If it was refused memory, it has caught the error.
  void note_caught(const OperatorInfo& info) {
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
  std::map<std::string, Bytes> caught() const {  // The most that each operator was refused.
    std::lock_guard guard(mutex_);
    return caught_;
  }
  void tell_of_caught() {
    if (!some_untold_) return;
    for (const std::string& text : take_untold()) TORCH_WARN(text);
  }
  // An allocation in a thread of the scope whose operators pass the runtime by. The first one is
  // told at once: perhaps no other operator comes.
  void note_unseen(Bytes bytes) {
    {
      std::lock_guard guard(mutex_);
      unseen_ += bytes;
      if (std::exchange(some_unseen_, true)) return;
    }
    TORCH_WARN(kUnseenText);
  }
  Bytes unseen() const {
    std::lock_guard guard(mutex_);
    return unseen_;
  }
  std::vector<std::string> take_untold() {  // Warnings that were not given yet.
    std::lock_guard guard(mutex_);
    some_untold_ = false;
    return std::exchange(untold_, {});
  }

  std::mutex& mutex() { return mutex_; }  // For a fork.

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> exposures_;
  std::set<std::string> stayed_;
  std::map<std::string, Bytes> caught_;
  std::vector<std::string> untold_;
  Bytes unseen_ = 0;
  bool some_unseen_ = false;
  std::atomic<bool> some_untold_{false};
};

}  // namespace dtr
