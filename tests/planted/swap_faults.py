"""Faults of swap: what moves, when it comes back, and who waits for a copy."""

from tests.planted.fault import fault

SWAP_FAULTS = (
    fault(
        "make constant what could go to the swap",
        "runtime/csrc/engine/loss.cpp",
        "reload ? move(value, *reload) : freeze(value);",
        "(void)reload, freeze(value);",
        "tests/swap/test_swapped_values.py::test_what_lost_its_recipe_may_still_leave_memory",
    ),
    fault(
        "believe the swap to have what was never written",
        "runtime/csrc/live/storages/swap.cpp",
        "bool written = false;",
        "bool written = true;",
        "tests/swap/test_swapped_values.py::test_what_is_not_recorded_leaves_memory_and_comes_back",
    ),
    fault(
        "have no place after the scope for what a failing disk kept",
        "runtime/csrc/live/session/scope.cpp",
        "scope.end_budget();",
        "scope.lower_budget();",
        "tests/swap/test_swap_file.py::"
        "test_what_a_failing_disk_kept_comes_back_though_the_budget_has_no_room_for_all",
    ),
    fault(
        "keep the disk's room after the scope",
        "runtime/csrc/live/session/session_swap.cpp",
        "  if (swap_) over = swap_->close();\n",
        "",
        "tests/swap/test_swap_file.py::test_the_disk_has_its_room_back_when_the_scope_is_over",
    ),
    fault(
        "take a whole list at once where swap has its items",
        "runtime/csrc/live/intercept/itemwise.cpp",
        "if (!session_.swap().is_there() || !info.itemwise) return false;",
        "return false;",
        "tests/swap/test_swapped_values.py::test_lists_are_gone_through_item_by_item_where_they_would_fill_the_budget",
    ),
    fault(
        "copy to the host what the device is still writing",
        "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
        "memory_.follow_users(block, out());\n",
        "\n",
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-3]",
    ),
    fault(
        "copy to the host what the device has not yet made",
        "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
        "std::ranges::upper_bound(passed_, made, {}, &Passed::at)",
        "std::ranges::lower_bound(passed_, made, {}, &Passed::at)",
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-1]",
    ),
    fault(
        "take the last access of what was recomputed for the time when it was made",
        "runtime/csrc/live/storages/swap.cpp",
        "value.recomputes > 0 ? Tier::kUnknown : value.last_access",
        "value.last_access",
        "tests/cuda/test_copies_out.py::"
        "test_a_copy_out_of_what_was_recomputed_waits_for_all_that_was_given",
    ),
    fault(
        "copy out what the program is about to make",
        "runtime/csrc/live/storages/swap.cpp",
        "value.recomputes > 0 ? Tier::kUnknown : value.last_access",
        "value.recomputes > 0 ? Tier::kUnknown : 0ns",
        "tests/cuda/test_copies_out.py::"
        "test_a_copy_out_waits_for_what_made_its_tensor_and_not_for_what_came_after",
    ),
    fault(
        "order copies by one of several streams",
        "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
        "if (memory_.many_streams() || (!passed_",
        "if ((!passed_",
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-3]",
    ),
    fault(
        "let every copy out wait for all that the device was given",
        "runtime/csrc/live/session/session_swap.cpp",
        "if (met) swap_->mark(device_.current_stream(), engine_.clock());",
        "",
        "tests/cuda/test_copies_out.py::"
        "test_a_copy_out_waits_for_what_made_its_tensor_and_not_for_what_came_after",
    ),
    fault(
        "let work read what the bus has not brought",
        "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
        "events_->wait(reader, room.read);",
        "",
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-3]",
    ),
    fault(
        "keep the memory of a copy whose tensor is gone",
        "runtime/csrc/live/storages/swap.cpp",
        "  if (away(op).ahead) memory_.free(leave_ahead(op));\n",
        "\n",
        "tests/swap/test_reload_ahead.py::test_a_tensor_that_dies_while_it_is_on_its_way_leaves_no_memory_behind",
    ),
    fault(
        "keep what is on its way where memory is short",
        "runtime/csrc/live/session/memory_requests.cpp",
        "|| !give_up_ahead()) return block;",
        "|| true) return block;",
        "tests/swap/test_reload_ahead.py::test_what_is_on_its_way_gives_way_to_what_the_program_needs",
    ),
    fault(
        "tell of a copy that failed before anybody asked for it",
        "runtime/csrc/live/session/session_swap.cpp",
        "  } catch (const std::exception&) {\n  }\n",
        "  } catch (const std::exception&) {\n    throw;\n  }\n",
        "tests/swap/test_reload_ahead.py::test_a_copy_that_fails_ahead_is_copied_when_it_is_asked_for",
    ),
    fault(
        "go on bringing back what nothing foretells any more",
        "runtime/csrc/live/session/session_swap.cpp",
        "    swap_->give_up_ahead();\n    return;\n",
        "    return;\n",
        "tests/swap/test_reload_ahead.py::test_a_program_that_turns_to_other_steps_has_nothing_on_its_way",
    ),
    fault(
        "forget when a step came to what the one before left",
        "runtime/csrc/policy/tape.cpp",
        "if (from_step_before(value)) before_",
        "if (false) before_",
        "tests/swap/test_reload_ahead.py::test_what_a_repeated_step_reads_is_on_its_way_before_it_is_read",
    ),
    fault(
        "write to the host where a copy still reads",
        "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
        "rooms_->record_stream(room.block, in());\n",
        "\n",
        "tests/swap/test_host_tier.py::test_a_room_is_written_anew_only_after_it_was_read",
    ),
    fault(
        "let a stored tensor be overwritten before it is copied",
        "runtime/csrc/live/session/session_swap.cpp",
        "    swap_->let_overwrite();\n",
        "",
        "tests/swap/test_swap_on_device.py::test_memory_that_is_handed_out_is_copied_first",
    ),
    fault(
        "take a transfer that comes short for a whole one",
        "runtime/csrc/live/machine/swap_file.cpp",
        "      done += wrote;\n",
        "      done = bytes;\n",
        "tests/swap/test_swap_file.py::test_transfers_that_come_short_or_are_interrupted_lose_nothing",
    ),
    fault(
        "take an interrupted read for a failing disk",
        "runtime/csrc/live/machine/swap_file.cpp",
        "got == 0 || errno != EINTR",
        "true",
        "tests/swap/test_swap_file.py::test_transfers_that_come_short_or_are_interrupted_lose_nothing",
    ),
    fault(
        "move what an operator of another library made",
        "runtime/csrc/live/session/session_swap.cpp",
        " || call.handled || call.info.others) return",
        " || call.handled) return",
        "tests/swap/test_swapped_values.py::"
        "test_what_an_operator_of_another_library_makes_stays_also_where_nothing_is_recorded",
    ),
)
