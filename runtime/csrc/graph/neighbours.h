// Visits a storage's neighbours in the graph: inputs of the operators that made it, and storages
// made from it. A view counts as the storage whose bytes it shares, so cycles are possible.

#pragma once

#include "runtime/csrc/graph/graph.h"

namespace dtr {

// Calls `visit(storage)` for each input of the operators that made `value` and its views, once for
// each place where the input is read.
template <typename Visit>
void for_each_input(Value& value, Visit visit) {
  for (Value* member = &value; member; member = member->views) {
    if (!member->producer) continue;
    Use* uses = member->producer->uses();
    for (std::uint32_t i = 0; i < member->producer->use_count; ++i) {
      if (!uses[i].value) continue;
      if (Value& input = uses[i].value->storage(); &input != &value) visit(input);
    }
  }
}

// Calls `visit(storage)` for each output of the operators that read `value` or one of its views.
template <typename Visit>
void for_each_reader(Value& value, Visit visit) {
  for (Value* member = &value; member; member = member->views) {
    for (Use* use = member->uses; use; use = use->next) {
      Value** outputs = use->op->outputs();
      for (std::uint32_t i = 0; i < use->op->output_count; ++i) {
        if (!outputs[i]) continue;
        if (Value& output = outputs[i]->storage(); &output != &value) visit(output);
      }
    }
  }
}

}  // namespace dtr
