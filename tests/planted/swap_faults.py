"""Faults of swap: what moves, when it comes back, and who waits for a copy."""

from tests.planted.fault import Edit, Fault

SWAP_FAULTS = (
    Fault(
        "make constant what could go to the swap",
        (
            Edit(
                "runtime/csrc/engine/loss.cpp",
                "reload ? move(value, *reload) : freeze(value);",
                "(void)reload, freeze(value);",
            ),
        ),
        "tests/swap/test_swapped_values.py::test_what_lost_its_recipe_may_still_leave_memory",
    ),
    Fault(
        "believe the swap to have what was never written",
        (
            Edit(
                "runtime/csrc/live/storages/swap.cpp",
                "bool written = false;",
                "bool written = true;",
            ),
        ),
        "tests/swap/test_swapped_values.py::test_what_is_not_recorded_leaves_memory_and_comes_back",
    ),
    Fault(
        "have no place after the scope for what a failing disk kept",
        (
            Edit(
                "runtime/csrc/live/session/scope.cpp",
                "scope.end_budget();",
                "scope.lower_budget();",
            ),
        ),
        "tests/swap/test_swap_file.py::"
        "test_what_a_failing_disk_kept_comes_back_though_the_budget_has_no_room_for_all",
    ),
    Fault(
        "keep the disk's room after the scope",
        (
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                "  if (swap_) over = swap_->close();\n",
                "",
            ),
        ),
        "tests/swap/test_swap_file.py::test_the_disk_has_its_room_back_when_the_scope_is_over",
    ),
    Fault(
        "take a whole list at once where swap has its items",
        (
            Edit(
                "runtime/csrc/live/intercept/itemwise.cpp",
                "if (!swap_.is_there() || !info.itemwise) return false;",
                "return false;",
            ),
        ),
        "tests/swap/test_swapped_values.py::test_lists_are_gone_through_item_by_item_where_they_would_fill_the_budget",
    ),
    Fault(
        "copy to the host what the device is still writing",
        (
            Edit(
                "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
                "memory_.follow_users(block, out());\n",
                "\n",
            ),
        ),
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-3]",
    ),
    Fault(
        "copy to the host what the device has not yet made",
        (
            Edit(
                "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
                "std::ranges::upper_bound(passed_, made, {}, &Passed::at)",
                "std::ranges::lower_bound(passed_, made, {}, &Passed::at)",
            ),
        ),
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-1]",
    ),
    Fault(
        "take the last access of what was recomputed for the time when it was made",
        (
            Edit(
                "runtime/csrc/live/storages/swap.cpp",
                "value.recomputes > 0 ? Tier::kUnknown : value.last_access",
                "value.last_access",
            ),
        ),
        "tests/cuda/test_copies_out.py::"
        "test_a_copy_out_of_what_was_recomputed_waits_for_all_that_was_given",
    ),
    Fault(
        "copy out what the program is about to make",
        (
            Edit(
                "runtime/csrc/live/storages/swap.cpp",
                "value.recomputes > 0 ? Tier::kUnknown : value.last_access",
                "value.recomputes > 0 ? Tier::kUnknown : 0ns",
            ),
        ),
        "tests/cuda/test_copies_out.py::"
        "test_a_copy_out_waits_for_what_made_its_tensor_and_not_for_what_came_after",
    ),
    Fault(
        "order copies by one of several streams",
        (
            Edit(
                "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
                "if (memory_.many_streams() || (!passed_",
                "if ((!passed_",
            ),
        ),
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-3]",
    ),
    Fault(
        "let every copy out wait for all that the device was given",
        (
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                "if (met) swap_->mark(device_.current_stream(), engine_.clock());",
                "",
            ),
        ),
        "tests/cuda/test_copies_out.py::"
        "test_a_copy_out_waits_for_what_made_its_tensor_and_not_for_what_came_after",
    ),
    Fault(
        "let work read what the bus has not brought",
        (Edit("dtr_alloc/pool/csrc/cuda/host_tier.cpp", "events_->wait(reader, room.read);", ""),),
        "tests/swap/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[-3]",
    ),
    Fault(
        "keep the memory of a copy whose tensor is gone",
        (
            Edit(
                "runtime/csrc/live/storages/swap.cpp",
                "  if (away(op).ahead) memory_.free(leave_ahead(op));\n",
                "\n",
            ),
        ),
        "tests/swap/test_reload_ahead.py::test_a_tensor_that_dies_while_it_is_on_its_way_leaves_no_memory_behind",
    ),
    Fault(
        "keep what is on its way where memory is short",
        (
            Edit(
                "runtime/csrc/live/session/memory_requests.cpp",
                "|| !give_up_ahead()) return block;",
                "|| true) return block;",
            ),
        ),
        "tests/swap/test_reload_ahead.py::test_what_is_on_its_way_gives_way_to_what_the_program_needs",
    ),
    Fault(
        "tell of a copy that failed before anybody asked for it",
        (
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                "  } catch (const std::exception&) {\n  }\n",
                "  } catch (const std::exception&) {\n    throw;\n  }\n",
            ),
        ),
        "tests/swap/test_reload_ahead.py::test_a_copy_that_fails_ahead_is_copied_when_it_is_asked_for",
    ),
    Fault(
        "go on bringing back what nothing foretells any more",
        (
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                "    swap_->give_up_ahead();\n    return;\n",
                "    return;\n",
            ),
        ),
        "tests/swap/test_reload_ahead.py::test_a_program_that_turns_to_other_steps_has_nothing_on_its_way",
    ),
    Fault(
        "forget when a step came to what the one before left",
        (
            Edit(
                "runtime/csrc/policy/tape.cpp",
                "if (from_step_before(value)) before_",
                "if (false) before_",
            ),
        ),
        "tests/swap/test_reload_ahead.py::test_what_a_repeated_step_reads_is_on_its_way_before_it_is_read",
    ),
    Fault(
        "write to the host where a copy still reads",
        (
            Edit(
                "dtr_alloc/pool/csrc/cuda/host_tier.cpp",
                "rooms_->record_stream(room.block, in());\n",
                "\n",
            ),
        ),
        "tests/swap/test_host_tier.py::test_a_room_is_written_anew_only_after_it_was_read",
    ),
    Fault(
        "let a stored tensor be overwritten before it is copied",
        (Edit("runtime/csrc/live/session/session_swap.cpp", "    swap_->let_overwrite();\n", ""),),
        "tests/swap/test_swap_on_device.py::test_memory_that_is_handed_out_is_copied_first",
    ),
    Fault(
        "take a transfer that comes short for a whole one",
        (
            Edit(
                "runtime/csrc/live/machine/swap_file.cpp",
                "      done += wrote;\n",
                "      done = bytes;\n",
            ),
        ),
        "tests/swap/test_swap_file.py::test_transfers_that_come_short_or_are_interrupted_lose_nothing",
    ),
    Fault(
        "take an interrupted read for a failing disk",
        (Edit("runtime/csrc/live/machine/swap_file.cpp", "got == 0 || errno != EINTR", "true"),),
        "tests/swap/test_swap_file.py::test_transfers_that_come_short_or_are_interrupted_lose_nothing",
    ),
    Fault(
        "move what an operator of another library made",
        (
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                " || call.handled || call.info.others) return",
                " || call.handled) return",
            ),
        ),
        "tests/swap/test_swapped_values.py::"
        "test_what_an_operator_of_another_library_makes_stays_also_where_nothing_is_recorded",
    ),
)
