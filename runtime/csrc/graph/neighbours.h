// Who is next to a storage in the recorded computation: what its operators read, and what is made
// from it. Views count with the bytes they share, so the graph of storages may have cycles.

#pragma once

#include "runtime/csrc/graph/graph.h"

namespace dtr {

// Calls `visit(storage)` for each input of the operators that made `value` and its views, once for
// each place where it is read.
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

// The same for each output of the operators that read `value` or one of its views.
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
