// Collects what a session has to tell the user: which memory was handed out, what is not recorded
// and why, and which operators were refused memory, caught the error and went on with less. cuDNN,
// for example, then takes another algorithm, whose results may differ in their last bits. The
// program sees no error, so we warn once for each such operator, when it has ended and none of our
// locks is held. A warning about a replay waits until the program's operator has ended. A strict
// session also raises an error, before the program or a value gets the results. If we catch this
// error ourselves, for example to retry a scope's end without budget, the warning remains.

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
    " was made without the runtime in a thread of the dtr_alloc scope: DispatchKey.Fake is off "
    "there, because a fake mode of another library ended or somebody cleared it. Such tensors "
    "are not recorded, on the CPU they lie outside the budget, and evicted arguments do not come "
    "back. The next step of an optimizer enables the key again, as does "
    "dtr_alloc.materialize(tensor)";

// Its functions may be called in any thread, with our locks held or not. Its mutex is taken last.
class Notes {
 public:
  explicit Notes(bool strict) : strict_(strict) {}

  // For error texts: which call handed memory out, and where.
  void note_exposure(std::string text) {
    std::lock_guard guard(mutex_);
    exposures_.push_back(std::move(text));
  }
  std::vector<std::string> exposures() const {
    std::lock_guard guard(mutex_);
    return exposures_;
  }
  void note_stayed(std::string what_and_why) {  // Names an operator that is not recorded.
    std::lock_guard guard(mutex_);
    stayed_.insert(std::move(what_and_why));
  }
  std::vector<std::string> stayed() const {
    std::lock_guard guard(mutex_);
    return {stayed_.begin(), stayed_.end()};
  }

  // Call when an operator of this thread succeeded, before its results are used. An operator that
  // was refused memory has then caught the error: throws torch.OutOfMemoryError if strict.
  void note_caught(const OperatorInfo& info) {
    const Bytes asked = InOperator::state.refused, at_least = InOperator::state.at_least;
    if (asked == 0) return;
    {
      std::lock_guard guard(mutex_);
      Bytes& most = caught_[info.name];
      if (most == 0) {
        untold_.push_back(went_on_without(info.name, asked, at_least));
        some_untold_ = true;
      }
      most = std::max(most, asked);
    }
    if (strict_) throw_went_on(info.name, asked, at_least);
    forget_refusal();
  }
  // Call when an error reaches the program. In a strict session it says what a warning would.
  void told_by_error() {
    if (strict_) take_untold();
  }
  std::map<std::string, Bytes> caught() const {  // Each operator's largest refused request.
    std::lock_guard guard(mutex_);
    return caught_;
  }
  void tell_of_caught() {
    if (!some_untold_) return;
    for (const std::string& text : take_untold()) TORCH_WARN(text);
  }
  // Counts an allocation in a thread of the scope whose operators bypass the runtime. Warns at once
  // of the first one, because no operator may come that could warn later.
  void note_unseen(Bytes bytes) {
    {
      std::lock_guard guard(mutex_);
      unseen_ += bytes;
      if (std::exchange(some_unseen_, true)) return;
    }
    TORCH_WARN("a tensor of ", bytes, " bytes", kUnseenText);
  }
  Bytes unseen() const {
    std::lock_guard guard(mutex_);
    return unseen_;
  }
  std::vector<std::string> take_untold() {  // Returns the warnings that were not given yet.
    std::lock_guard guard(mutex_);
    some_untold_ = false;
    return std::exchange(untold_, {});
  }

  std::mutex& mutex() { return mutex_; }  // Locked during a fork.

 private:
  const bool strict_;
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
