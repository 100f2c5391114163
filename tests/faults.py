"""The faults that tests/planted_faults.py plants, and the test that must notice each.

Each breaks one rule of DESIGN.md, by changing the text of one source.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    source: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    name: str
    edits: tuple[Edit, ...]
    test: str
    tries: int = 1  # Runs of the test, one of which must fail: of a race, not each does.


FAULTS = (
    Fault(
        "drop the snapshot of the generator",
        (
            Edit(
                "runtime/csrc/live/recipe.cpp",
                "if (!info.random) return {};",
                "return {};",
            ),
        ),
        "tests/test_exactness.py::test_randomness_is_drawn_once",
    ),
    Fault(
        "believe a library that says nothing of random numbers",
        (
            Edit(
                "runtime/csrc/live/library_calls.cpp",
                "    call.random = last_random_;\n",
                "",
            ),
        ),
        "tests/test_libraries.py::"
        "test_dropout_that_says_nothing_of_its_numbers_stays_or_draws_the_same_again",
    ),
    Fault(
        "record memory that a library keeps",
        (
            Edit(
                "runtime/csrc/live/library_calls.cpp",
                "         is_shared(result);",
                "         false;",
            ),
        ),
        "tests/test_libraries.py::test_memory_that_the_library_keeps_is_not_the_runtimes",
    ),
    Fault(
        "let a replay cast as autocast does now",
        (
            Edit(
                "runtime/csrc/live/recipe.cpp",
                "  if (info->others) autocasting.emplace(autocast);\n",
                "",
            ),
        ),
        "tests/test_libraries.py::test_a_replay_casts_as_autocast_did",
    ),
    Fault(
        "let a replay of batch norm write the running statistics",
        (
            Edit(
                "runtime/csrc/live/intercept.cpp",
                "    argument.scratch = info.is(info.statistics, argument.argument);\n",
                "    argument.scratch = false;\n",
            ),
            Edit("runtime/csrc/live/writes.cpp", "    constants_.give_copy(constant, lock);\n", ""),
            Edit(
                "runtime/csrc/live/replayer.cpp",
                "  if (!written) {\n",
                "  if (!written || value.constant()) {\n",
            ),
        ),
        "tests/test_exactness.py::test_batch_norm_updates_its_running_statistics_once_per_step",
    ),
    Fault(
        "forget that a write makes a new version",
        (
            Edit(
                "runtime/csrc/live/results.cpp",
                "    const std::uint16_t slot = output++;\n",
                "    const std::uint16_t slot = output++;\n    if (slot + 1) continue;\n",
            ),
        ),
        "tests/test_exactness.py::test_in_place_operators_and_writes_through_views",
    ),
    Fault(
        "let a locked value be evicted",
        (
            Edit(
                "runtime/csrc/engine/engine.cpp",
                "bool Engine::evict_one(Shed shed) {\n",
                "bool Engine::evict_one(Shed shed) {\n"
                "  for (std::size_t row = 0; row < columns_.count(); ++row) {\n"
                "    Value* value = columns_.value(row);\n"
                "    if (value->locks) return evict(*value), true;\n"
                "  }\n",
            ),
        ),
        "tests/test_session.py::test_the_pool_never_passes_the_budget_and_every_tensor_reads_right",
    ),
    Fault(
        "touch a storage that is dying in another thread",
        (
            Edit(
                "runtime/csrc/live/storage_table.cpp",
                "  if (!tracked(storage)) c10::raw::weak_intrusive_ptr::incref(storage);\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storage_table.cpp",
                "  c10::raw::weak_intrusive_ptr::decref(home_storage(value));\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storage_table.cpp",
                "  c10::raw::weak_intrusive_ptr::decref(storage);\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storage_table.cpp",
                "  if (!value.home) return nullptr;\n",
                "  if (value.home || !value.home) return home_storage(value);\n",
            ),
        ),
        "tests/test_threads.py::test_a_tensor_may_die_in_one_thread_while_another_evicts_it",
        tries=5,
    ),
    Fault(
        "never cut a history",
        (
            Edit(
                "runtime/csrc/engine/histories.cpp",
                "  const History history = walk(value, value.size, [](Value&) {});\n",
                "  if (value.size >= 0) return false;\n"
                "  const History history = walk(value, value.size, [](Value&) {});\n",
            ),
        ),
        "tests/test_histories.py::test_stateful_inference_does_not_grow",
    ),
    Fault(
        "keep no copy of what is handed out",
        (
            Edit(
                "runtime/csrc/live/constants.cpp",
                "  if (!constant.uses || constant.absent) return {};\n",
                "  if (constant.size >= 0) return {};\n",
            ),
        ),
        "tests/test_raw_access.py",
    ),
    Fault(
        "let go what was read while its parameters were elsewhere",
        (
            Edit(
                "runtime/csrc/live/intercept.cpp",
                "  if (constants_.some_absent()) keep_what_rests_on_absent(call, engaged);\n",
                "",
            ),
        ),
        "tests/test_sharded_parameters.py",
    ),
    Fault(
        "recompute with parameters of another version",
        (
            Edit(
                "runtime/csrc/live/constants.cpp",
                "  if (checksum(storage) == before) {",
                "  if (checksum(storage) == before || before) {",
            ),
        ),
        "tests/test_sharded_versions.py",
    ),
    Fault(
        "keep a budget that was refused",
        (
            Edit(
                "runtime/csrc/live/resize.cpp",
                "    memory_->set_limit(before);\n    throw_cannot_shrink",
                "    throw_cannot_shrink",
            ),
        ),
        "tests/test_resize.py::"
        "test_a_budget_below_what_must_stay_is_refused_before_anything_changes",
    ),
    Fault(
        "count what a running operator reads as evictable",
        (
            Edit(
                "runtime/csrc/engine/engine.cpp",
                "    sum += value.locks ? 0 : round_to_granule(value.size);\n",
                "    sum += round_to_granule(value.size);\n",
            ),
        ),
        "tests/test_resize.py::test_what_a_running_operator_reads_stays",
    ),
    Fault(
        "let a loan take no turn",
        (
            Edit(
                "runtime/csrc/live/resize.cpp",
                "void Session::lend(Bytes bytes) {\n  Turn turn(*this);\n",
                "void Session::lend(Bytes bytes) {\n",
            ),
        ),
        "tests/test_resize.py::test_loans_that_wait_for_their_turn_add_up",
    ),
    Fault(
        "lend from the first budget instead of the present one",
        (
            Edit(
                "runtime/csrc/live/resize.cpp",
                "  const Bytes budget = memory_->budget();\n  TORCH",
                "  const Bytes budget = options_.budget;\n  TORCH",
            ),
        ),
        "tests/test_resize.py::test_what_is_lent_comes_back_also_after_an_error",
    ),
    Fault(
        "give back more than was lent",
        (
            Edit(
                "runtime/csrc/live/resize.cpp",
                "resize(std::min(budget - bytes, memory_->largest_budget()));",
                "resize(budget - bytes);",
            ),
        ),
        "tests/test_resize.py::"
        "test_what_comes_back_from_a_loan_never_passes_the_budget_of_the_scope",
    ),
    Fault(
        "leave a page that the device did not take back",
        (
            Edit(
                "runtime/csrc/live/resize.cpp",
                "  memory_->set_limit(budget);  // Again: gives back",
                "  // Gives back",
            ),
        ),
        "tests/test_session_on_cuda.py::"
        "test_a_page_that_the_device_did_not_take_back_goes_before_a_resize_ends",
    ),
    Fault(
        "keep the pages of what is released",
        (Edit("runtime/csrc/live/resize.cpp", "  memory_->trim();\n", ""),),
        "tests/test_resize.py::"
        "test_what_is_released_goes_back_to_the_system_and_returns_when_touched",
    ),
    Fault(
        "let a guest pass its budget",
        (
            Edit(
                "runtime/csrc/live/guest_memory.cpp",
                "return rounded <= limit_ - live_;",
                "return rounded <= limit_;",
            ),
        ),
        "tests/test_guest_memory.py::test_counts_return_to_nothing",
    ),
    Fault(
        "count what a guest has freed",
        (
            Edit(
                "runtime/csrc/live/guest_memory.cpp",
                "      memory->uncount(block.size);\n",
                "",
            ),
        ),
        "tests/test_guest_memory.py::test_counts_return_to_nothing",
    ),
    Fault(
        "count what a guest has let go",
        (
            Edit(
                "runtime/csrc/live/guest_memory.cpp",
                "  static_cast<Counted*>(block)->memory = nullptr;\n",
                "",
            ),
        ),
        "tests/test_guest_memory.py::test_what_does_not_fit_together_is_counted_no_longer"
        "_and_stays_where_it_is",
    ),
    Fault(
        "make constant what could go to the swap",
        (
            Edit(
                "runtime/csrc/engine/loss.cpp",
                "reload ? move(value, *reload) : freeze(value);",
                "(void)reload, freeze(value);",
            ),
        ),
        "tests/test_swapped_values.py::test_what_lost_its_recipe_may_still_leave_memory",
    ),
    Fault(
        "believe the swap to have what was never written",
        (Edit("runtime/csrc/live/swap.cpp", "bool written = false;", "bool written = true;"),),
        "tests/test_swapped_values.py::test_what_is_not_recorded_leaves_memory_and_comes_back",
    ),
    Fault(
        "keep the disk's room after the scope",
        (Edit("runtime/csrc/live/swap.cpp", "  tier_.reset();\n", ""),),
        "tests/test_swap_file.py::test_the_disk_has_its_room_back_when_the_scope_is_over",
    ),
    Fault(
        "take a whole list at once where swap has its items",
        (
            Edit(
                "runtime/csrc/live/itemwise.cpp",
                "if (!swap_ || !info.itemwise) return false;",
                "return false;",
            ),
        ),
        "tests/test_swapped_values.py::test_lists_are_gone_through_item_by_item_where_they_would_fill_the_budget",
    ),
    Fault(
        "forget to tell the tape of a use",
        (
            Edit(
                "runtime/csrc/policy/tape.cpp",
                "  if (met) written_.next[value.access] = now;\n",
                "  static_cast<void>(now);\n",
            ),
        ),
        "tests/test_tape.py::test_what_is_newer_goes_on_being_kept_where_it_is_needed_first",
    ),
    Fault(
        "follow a tape that the step has left",
        (
            Edit(
                "runtime/csrc/policy/tape.cpp",
                "tape.hashes[last - 1] == hash_;",
                "true;",
            ),
        ),
        "tests/test_tape.py::test_a_step_that_differs_is_followed_no_further",
    ),
    Fault(
        "leave the inputs of what was evicted without its need",
        (
            Edit(
                "runtime/csrc/engine/needs.cpp",
                "  if (tapes_.foretell()) update_needs_behind(value, Tapes::kNever);\n",
                "  static_cast<void>(value);\n",
            ),
        ),
        "tests/test_tape.py::test_needs_add_up_after_each_operator",
    ),
    Fault(
        "keep a stepping stone when the program has let go what it stays for",
        (
            Edit(
                "runtime/csrc/engine/stepping_stones.cpp",
                "  if (stones_ == 0) return;\n",
                "  return;\n",
            ),
        ),
        "tests/test_stepping_stones.py::"
        "test_memory_of_a_stone_comes_back_when_what_it_stays_for_needs_it_no_more",
    ),
    Fault(
        "take a stepping stone for an orphan",
        (
            Edit(
                "runtime/csrc/engine/orphans.cpp",
                " && !value.home && !value.stone;",
                " && !value.home;",
            ),
            Edit(
                "runtime/csrc/engine/engine_check.cpp",
                " && !value.home && !value.stone;",
                " && !value.home;",
            ),
        ),
        "tests/test_stepping_stones.py::test_a_stone_is_needed_when_what_it_stays_for_is",
    ),
    Fault(
        "need a stepping stone only when what it stays for is missing",
        (
            Edit(
                "runtime/csrc/engine/needs.cpp",
                "  return !made.resident() || (value.stone && made.owned != kNowhere);\n",
                "  return static_cast<void>(value), !made.resident();\n",
            ),
        ),
        "tests/test_stepping_stones.py::test_a_stone_is_needed_when_what_it_stays_for_is",
    ),
    Fault(
        "forget to tell a stepping stone that what it stays for is back",
        (
            Edit(
                "runtime/csrc/engine/needs.cpp",
                "    if (input.stone) renew_need(input);\n",
                "    static_cast<void>(input);\n",
            ),
        ),
        "tests/test_stepping_stones.py::test_a_stone_is_needed_when_what_it_stays_for_is",
    ),
    Fault(
        "count a long lineage as if it ended",
        (
            Edit(
                "runtime/csrc/policy/lineages.cpp",
                "  return more ? kBeyond * sum : sum;\n",
                "  return sum;\n",
            ),
            Edit(
                "runtime/csrc/policy/lineages.cpp",
                ".sum != (more ? kBeyond * sum : sum)) {",
                ".sum != sum) {",
            ),
        ),
        "tests/test_victims.py::test_a_simulation_counts_a_long_lineage_alike",
    ),
    Fault(
        "stay with long lineages however much is recomputed",
        (
            Edit(
                "runtime/csrc/engine/needs.cpp",
                "  if (!foretold || kTooMuch * again <= computed",
                "  if (!foretold || again > 0ns || kTooMuch * again <= computed",
            ),
        ),
        "tests/test_tape.py::test_long_lineages_are_left_where_much_is_recomputed",
    ),
    Fault(
        "count what was made from a value beside its need",
        (
            Edit(
                "runtime/csrc/policy/neighbourhood.cpp",
                "  if (by_classes()) classes_.count_readers(!is);\n",
                "",
            ),
        ),
        "tests/test_tape.py::test_what_was_made_from_a_value_is_in_its_need_and_costs_nothing_beside_it",
    ),
    Fault(
        "count a small value as cheap as a transfer that it never makes",
        (
            Edit(
                "runtime/csrc/policy/transfer.h",
                "value.size >= smallest && ",
                "value.size > 0 && ",
            ),
        ),
        "tests/test_link.py::test_a_small_tensor_stays_though_its_bytes_would_move_in_no_time",
    ),
    Fault(
        "copy to the host what the device is still writing",
        (Edit("dtr_alloc/csrc/cuda/host_tier.cpp", "memory_.follow_users(block, out());\n", "\n"),),
        "tests/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[]",
    ),
    Fault(
        "let work read what the bus has not brought",
        (Edit("dtr_alloc/csrc/cuda/host_tier.cpp", "events_->wait(reader, room.read);", ""),),
        "tests/test_host_tier.py::"
        "test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else[]",
    ),
    Fault(
        "keep the memory of a copy whose tensor is gone",
        (
            Edit(
                "runtime/csrc/live/swap.cpp",
                "  if (away(op).ahead) memory_.free(leave_ahead(op));\n",
                "\n",
            ),
        ),
        "tests/test_reload_ahead.py::test_a_tensor_that_dies_while_it_is_on_its_way_leaves_no_memory_behind",
    ),
    Fault(
        "keep what is on its way where memory is short",
        (
            Edit(
                "runtime/csrc/live/session.cpp",
                "|| !give_up_ahead()) return block;",
                "|| true) return block;",
            ),
        ),
        "tests/test_reload_ahead.py::test_what_is_on_its_way_gives_way_to_what_the_program_needs",
    ),
    Fault(
        "tell of a copy that failed before anybody asked for it",
        (
            Edit(
                "runtime/csrc/live/swapping.cpp",
                "  } catch (const std::exception&) {\n  }\n",
                "  } catch (const std::exception&) {\n    throw;\n  }\n",
            ),
        ),
        "tests/test_reload_ahead.py::test_a_copy_that_fails_ahead_is_copied_when_it_is_asked_for",
    ),
    Fault(
        "go on bringing back what nothing foretells any more",
        (
            Edit(
                "runtime/csrc/live/swapping.cpp",
                "    give_up_ahead();\n    return;\n",
                "    return;\n",
            ),
        ),
        "tests/test_reload_ahead.py::test_a_program_that_turns_to_other_steps_has_nothing_on_its_way",
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
        "tests/test_reload_ahead.py::test_what_a_repeated_step_reads_is_on_its_way_before_it_is_read",
    ),
    Fault(
        "write to the host where a copy still reads",
        (
            Edit(
                "dtr_alloc/csrc/cuda/host_tier.cpp",
                "rooms_->record_stream(room.block, in());\n",
                "\n",
            ),
        ),
        "tests/test_host_tier.py::test_a_room_is_written_anew_only_after_it_was_read",
    ),
    Fault(
        "let a stored tensor be overwritten before it is copied",
        (Edit("runtime/csrc/live/swapping.cpp", "    swap_->let_overwrite();\n", ""),),
        "tests/test_host_tier.py::test_memory_that_is_handed_out_is_copied_first",
    ),
)
