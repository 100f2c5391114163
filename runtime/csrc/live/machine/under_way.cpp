#include "runtime/csrc/live/machine/under_way.h"

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

#include "runtime/csrc/live/machine/python_aware_lock.h"
#include "runtime/csrc/live/machine/unlocked.h"

namespace dtr {

struct UnderWay::PythonLock {
  pybind11::gil_scoped_acquire held;
};

constinit thread_local int UnderWay::here = 0;
constinit thread_local bool UnderWay::alone_here = false;

UnderWay::Operator::Operator(UnderWay& all, Lock& lock, bool apart)
    : all_(all), counted_(lock.owns_lock() && !apart) {
  if (!counted_) return;
  all.wait_for_alone(lock);
  ++all.running_;
  ++here;
}

UnderWay::Operator::~Operator() {
  if (!counted_) return;
  --all_.running_;
  --here;
  if (all_.alone_) all_.ended_.notify_all();
}

void UnderWay::wait_for_alone(Lock& lock) {
  while (alone_ && !alone_here) {
    const Aside aside(*this);
    const Unlocked open(lock);
    const PythonAwareLock over(turn_);
  }
}

UnderWay::Aside::Aside(UnderWay& all) : all_(all), counted_(std::exchange(here, 0)) {
  all.running_ -= counted_;
  if (all.alone_ && counted_) all.ended_.notify_all();
}

UnderWay::Aside::~Aside() {
  all_.running_ += counted_;
  here += counted_;
}

UnderWay::Alone::Alone(UnderWay& all, Lock& lock)
    : all_(all), outermost_(!std::exchange(alone_here, true)) {
  if (!outermost_) return;
  all.switches_ = Switches::now();
  all.alone_ = true;
  const auto no_other = [&] { return all.running_ == here; };
  if (!no_other()) {
    std::optional<pybind11::gil_scoped_release> python;
    if (PyGILState_Check()) python.emplace();
    all.ended_.wait(lock, no_other);
    const Unlocked open(lock);  // Python's lock is never taken after the engine's.
    python.reset();
  }
  if (PyGILState_Check()) return;
  const Unlocked open(lock);
  python_ = std::make_unique<PythonLock>();
}

UnderWay::Alone::~Alone() {
  if (outermost_) all_.alone_ = alone_here = false;
}

}  // namespace dtr
