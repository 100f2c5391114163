"""Faults of the engine and its policy: what is evicted, kept, and what a score counts."""

from tests.planted.fault import fault

ENGINE_FAULTS = (
    fault(
        "let a locked value be evicted",
        "runtime/csrc/engine/eviction.cpp",
        "bool Eviction::evict_one(Shed shed) {\n",
        "bool Eviction::evict_one(Shed shed) {\n"
        "  for (std::size_t row = 0; row < columns_.count(); ++row) {\n"
        "    Value* value = columns_.value(row);\n"
        "    if (value->locks) return engine_.evict(*value), true;\n"
        "  }\n",
        "tests/live/test_session.py::test_the_pool_never_passes_the_budget_and_every_tensor_reads_right",
    ),
    fault(
        "never cut a history",
        "runtime/csrc/engine/histories.cpp",
        "  const Weight history = walk(value, value.size, [](Value&) {});\n",
        "  if (value.size >= 0) return false;\n"
        "  const Weight history = walk(value, value.size, [](Value&) {});\n",
        "tests/live/test_histories.py::test_stateful_inference_does_not_grow",
    ),
    fault(
        "count what a running operator reads as evictable",
        "runtime/csrc/engine/eviction.cpp",
        "    sum += value.locks ? 0 : round_to_granule(value.size);\n",
        "    sum += round_to_granule(value.size);\n",
        "tests/live/test_resize.py::test_what_a_running_operator_reads_stays",
    ),
    fault(
        "forget to tell the tape of a use",
        "runtime/csrc/policy/tape.cpp",
        "  if (met) written_.next[value.access] = now;\n",
        "  static_cast<void>(now);\n",
        "tests/engine/test_tape.py::test_what_is_newer_goes_on_being_kept_where_it_is_needed_first",
    ),
    fault(
        "follow a tape that the step has left",
        "runtime/csrc/policy/tape.cpp",
        "return then.order == now.order && (other_bytes_ || then.bytes == now.bytes);",
        "return true;",
        "tests/engine/test_tape.py::test_a_step_that_differs_is_followed_no_further",
    ),
    fault(
        "leave the inputs of what was evicted without its need",
        "runtime/csrc/engine/needs.cpp",
        "  if (follows()) update_behind(value, Tapes::kNever);\n",
        "  static_cast<void>(value);\n",
        "tests/engine/test_tape_of_any_program.py::test_needs_add_up_after_each_operator",
    ),
    fault(
        "keep a stepping stone when the program has let go what it stays for",
        "runtime/csrc/engine/loss.cpp",
        "  if (!stones_.any()) return;\n",
        "  return;\n",
        "tests/engine/test_stepping_stones.py::"
        "test_memory_of_a_stone_comes_back_when_what_it_stays_for_needs_it_no_more",
    ),
    fault(
        "take a stepping stone for an orphan",
        "runtime/csrc/engine/orphans.cpp",
        " && !value.home && !value.stone;",
        " && !value.home;",
        "tests/engine/test_stepping_stones.py::test_a_stone_is_needed_when_what_it_stays_for_is",
    ),
    fault(
        "need a stepping stone only when what it stays for is missing",
        "runtime/csrc/engine/needs.cpp",
        "  return !made.resident() || (value.stone && made.owned != kNowhere);\n",
        "  return static_cast<void>(value), !made.resident();\n",
        "tests/engine/test_stepping_stones.py::test_a_stone_is_needed_when_what_it_stays_for_is",
    ),
    fault(
        "forget to tell a stepping stone that what it stays for is back",
        "runtime/csrc/engine/needs.cpp",
        "    if (input.stone) renew(input);\n",
        "    static_cast<void>(input);\n",
        "tests/engine/test_stepping_stones.py::test_a_stone_is_needed_when_what_it_stays_for_is",
    ),
    fault(
        "count a long lineage as if it ended",
        "runtime/csrc/policy/lineages.cpp",
        "  return (more ? kBeyond : 1) * (",
        "  return static_cast<void>(more), (",
        "tests/engine/test_victims.py::test_a_simulation_counts_a_long_lineage_alike",
    ),
    fault(
        "count what was made from a value beside its need",
        "runtime/csrc/policy/neighbourhood.cpp",
        "  if (by_classes()) classes_.count_readers(!is);\n",
        "",
        "tests/engine/test_tape.py::test_what_was_made_from_a_value_is_in_its_need_and_costs_nothing_beside_it",
    ),
    fault(
        "count a small value as cheap as a transfer that it never makes",
        "runtime/csrc/simulator/live_simulation.cpp",
        "engine_.move_by(*link_);",
        "engine_.move_by({link_->nanoseconds_per_byte, link_->latency, 1});",
        "tests/simulate/test_link.py::test_a_small_tensor_stays_though_its_bytes_would_move_in_no_time",
    ),
)
