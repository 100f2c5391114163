#include "runtime/csrc/simulator/schedule.h"

#include "runtime/csrc/engine/rules.h"

namespace dtr {

std::vector<std::int64_t> Schedule::roots() const {
  std::vector<std::int64_t> roots(tensors());
  for (std::int64_t i = 0; i < tensors(); ++i) {
    std::int64_t alias = tensor_alias[i];
    if (alias >= i) throw std::invalid_argument("a view comes before what it is a view of");
    roots[i] = alias < 0 ? i : roots[alias];
  }
  return roots;
}

bool Schedule::tracked(std::int64_t tensor) const {
  return large_enough(tensor_size[tensor]) && tensor_tracked[tensor] != 0;
}

}  // namespace dtr
