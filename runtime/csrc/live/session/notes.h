// What a session has to tell: memory that was handed out, what is not recorded and why, and
// operators that were refused memory, caught the error and went on with less. cuDNN takes another
// algorithm then, whose results may differ in their last bits. No error reaches the program, so it
// is warned, once for each operator, when the operator is over and no lock of ours is held. A
// replay's warning waits for that, too.

#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dtr_alloc/pool/csrc/units.h"
#include "runtime/csrc/live/operators/operators.h"

namespace dtr {

// Any thread may call it, with our locks or without. Of those its own is the last.
class Notes {
 public:
  void note_exposure(std::string text);  // For the texts of errors: by which call, and where.
  std::vector<std::string> exposures() const;
  void note_stayed(std::string what_and_why);  // It is not recorded.
  std::vector<std::string> stayed() const;
  // An operator of this thread has ended well. If it was refused something it caught the error.
  void note_caught(const OperatorInfo& info);
  std::map<std::string, Bytes> caught() const;  // The most that each was refused.
  void tell_of_caught();                        // Warns.
  std::vector<std::string> take_untold();       // Warnings that no operator came to give.

  std::mutex& mutex() { return mutex_; }  // For a fork.

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> exposures_;
  std::set<std::string> stayed_;
  std::map<std::string, Bytes> caught_;
  std::vector<std::string> untold_;
  std::atomic<bool> some_untold_{false};
};

}  // namespace dtr
