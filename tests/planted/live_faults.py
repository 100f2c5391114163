"""Faults of the live runtime: what is recorded, replayed, handed out, and how budgets change."""

from tests.planted.fault import Edit, Fault, fault

LIVE_FAULTS = (
    fault(
        "hold an operator to cost what it took this time",
        "runtime/csrc/live/intercept/results.cpp",
        "usual ? session_.tally().usual.of(call.cost, call.kernel_ticks, session_.tally().steps)",
        "usual ? call.kernel_ticks",
        "tests/engine/test_usual_times.py::test_steps_that_do_the_same_evict_the_same",
        tries=5,  # On a quiet machine times are alike.
    ),
    fault(
        "record the backward pass",
        "runtime/csrc/live/intercept/intercept.cpp",
        "return in_optimizer || in_backward();",
        "return in_optimizer;",
        "tests/simulate/test_record_trace.py::test_results_that_cannot_be_recomputed_are_marked",
    ),
    fault(
        "drop the snapshot of the generator",
        "runtime/csrc/live/recipes/recipe.cpp",
        "if (!info.random) return {};",
        "return {};",
        "tests/live/test_exactness.py::test_randomness_is_drawn_once",
    ),
    fault(
        "believe a library that says nothing of random numbers",
        "runtime/csrc/live/intercept/library_calls.cpp",
        "    call.random = session_.random_state(generator);\n",
        "",
        "tests/live/test_libraries.py::"
        "test_dropout_that_says_nothing_of_its_numbers_stays_or_draws_the_same_again",
    ),
    fault(
        "record memory that a library keeps",
        "runtime/csrc/live/intercept/library_calls.cpp",
        "worth_evicting(tensor) && is_shared(result);",
        "worth_evicting(tensor) && false;",
        "tests/live/test_libraries.py::test_memory_that_the_library_keeps_is_not_the_runtimes",
    ),
    fault(
        "let a replay cast as autocast does now",
        "runtime/csrc/live/recipes/recipe.cpp",
        "  if (info->others) autocasting.emplace(state.autocast);\n",
        "",
        "tests/live/test_libraries.py::test_a_replay_casts_as_autocast_did",
    ),
    Fault(
        "let a replay of batch norm write the running statistics",
        (
            Edit(
                "runtime/csrc/live/intercept/intercept.cpp",
                "    argument.scratch = info.is(info.statistics, argument.argument);\n",
                "    argument.scratch = false;\n",
            ),
            Edit(
                "runtime/csrc/live/intercept/writes.cpp",
                "    session_.constants().give_copy(constant, lock);\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storages/replayer.cpp",
                "  if (!written) {\n",
                "  if (!written || value.constant()) {\n",
            ),
        ),
        "tests/live/test_exactness.py::test_batch_norm_updates_its_running_statistics_once_per_step",
    ),
    fault(
        "forget that a write makes a new version",
        "runtime/csrc/live/intercept/results.cpp",
        "    const std::uint16_t slot = output++;\n",
        "    const std::uint16_t slot = output++;\n    if (slot + 1) continue;\n",
        "tests/live/test_exactness.py::test_in_place_operators_and_writes_through_views",
    ),
    Fault(
        "touch a storage that is dying in another thread",
        (
            Edit(
                "runtime/csrc/live/storages/storage_table.cpp",
                "  if (!tracked(storage)) c10::raw::weak_intrusive_ptr::incref(storage);\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storages/storage_table.cpp",
                "  c10::raw::weak_intrusive_ptr::decref(home_storage(value));\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storages/storage_table.cpp",
                "  c10::raw::weak_intrusive_ptr::decref(storage);\n",
                "",
            ),
            Edit(
                "runtime/csrc/live/storages/storage_table.cpp",
                "  if (!value.home) return nullptr;\n",
                "  if (value.home || !value.home) return home_storage(value);\n",
            ),
        ),
        "tests/live/test_threads.py::test_a_tensor_may_die_in_one_thread_while_another_evicts_it",
        tries=20,  # Where other programs run, two threads rarely meet.
    ),
    fault(
        "keep no copy of what is handed out",
        "runtime/csrc/live/storages/constants.cpp",
        "  if (!constant.uses || constant.absent) return {};\n",
        "  if (constant.size >= 0) return {};\n",
        "tests/live/test_raw_access.py",
    ),
    fault(
        "let go what was read while its parameters were elsewhere",
        "runtime/csrc/live/intercept/intercept.cpp",
        "  if (session_.constants().some_absent()) keep_what_rests_on_absent(call, engaged);\n",
        "",
        "tests/sharded/test_sharded_parameters.py",
    ),
    fault(
        "recompute with parameters of another version",
        "runtime/csrc/live/storages/constants.cpp",
        "  if (checksum(storage) == before) {",
        "  if (checksum(storage) == before || before) {",
        "tests/sharded/test_sharded_versions.py",
    ),
    fault(
        "name the last request that an operator was refused, not the largest",
        "runtime/csrc/live/session/memory_requests.cpp",
        "thread.refused = std::max(thread.refused, asked);",
        "thread.refused = asked;",
        "tests/live/test_caught_refusals.py::"
        "test_an_operator_that_goes_on_without_memory_is_told_of_once",
    ),
    fault(
        "say nothing of what a replay was refused",
        "runtime/csrc/live/storages/replayer.cpp",
        "  ran();\n",
        "",
        "tests/live/test_caught_refusals.py::test_so_is_one_that_is_refused_when_it_is_recomputed",
    ),
    Fault(
        "give a value what a replay made with less memory than it asked for, and raise afterwards",
        (
            Edit("runtime/csrc/live/storages/replayer.cpp", "  ran();\n", ""),
            Edit(
                "runtime/csrc/live/storages/replayer.cpp",
                "  return bytes;\n",
                "  ran();\n  return bytes;\n",
            ),
        ),
        "tests/live/test_strict.py::test_what_would_go_on_without_raises_and_nothing_is_lost",
    ),
    fault(
        "hold compiled code's arguments while others are brought back",
        "runtime/csrc/live/session/hold.cpp",
        "  bring_all_back(each, [&](Value& value) {\n",
        "  each([&](Value& value) {\n    if (value.resident()) return;\n",
        "tests/live/test_strict.py::test_a_replay_has_the_workspace_of_the_first_run",
    ),
    fault(
        "leave an error as it is that a refusal may have caused",
        "runtime/csrc/live/intercept/intercept.cpp",
        "    if (outermost) add_refusal(error);\n",
        "",
        "tests/live/test_caught_refusals.py::"
        "test_another_error_of_an_operator_is_told_what_was_refused_before",
    ),
    fault(
        "keep a budget that was refused",
        "runtime/csrc/live/session/resize.cpp",
        "    memory_.set_limit(before);\n    throw;\n",
        "    throw;\n",
        "tests/live/test_resize.py::test_an_accepted_budget_holds_though_others_begin_to_read_meanwhile",
    ),
    fault(
        "keep a limit that the driver failed to set",
        "runtime/csrc/live/session/resize.cpp",
        "  try {\n    memory_.set_limit(limit);  // First",
        "  memory_.set_limit(limit);\n  try {  // First",
        "tests/cuda/test_session_on_cuda.py::"
        "test_a_resize_that_the_driver_fails_leaves_the_budget_as_it_was",
    ),
    fault(
        "set a budget that is refused for others to see",
        "runtime/csrc/live/session/resize.cpp",
        "    Guard guard(locks_);\n    refuse_what_cannot_fit(budget);\n",
        "",
        "tests/live/test_resize.py::test_a_budget_that_can_never_be_is_refused_unseen_by_other_threads",
        tries=10,
    ),
    fault(
        "let a request fail by a budget that is then refused",
        "runtime/csrc/live/session/memory_requests.cpp",
        "  for (int i = 0; !block && i < kTries && disturbed();",
        "  for (int i = kTries; !block && i < kTries && disturbed();",
        "tests/live/test_resize.py::test_an_accepted_budget_holds_though_others_begin_to_read_meanwhile",
    ),
    fault(
        "leave evicted at a scope's end what others leave no room for",
        "runtime/csrc/live/session/scope.cpp",
        "(spill() || lift_budget())",
        "spill()",
        "tests/live/test_scope_ends.py::test_what_others_leave_no_room_for_comes_back_beyond_the_budget",
    ),
    fault(
        "accept a budget that others began to fill meanwhile",
        "runtime/csrc/live/session/resize.cpp",
        "meanwhile.\n  insist_on(budget, memory_.settled_live(budget));",
        "meanwhile.",
        "tests/live/test_resize.py::test_an_accepted_budget_holds_though_others_begin_to_read_meanwhile",
    ),
    fault(
        "leave to malloc what a guest's smaller budget evicts",
        "runtime/csrc/live/session/resize.cpp",
        "    if (!memory_.pool()) return trim();\n",
        "    if (!memory_.pool()) return;\n",
        "tests/torch_memory/test_guest_memory.py::test_what_a_smaller_budget_evicts_leaves_the_process",
    ),
    fault(
        "let a loan take no turn",
        "runtime/csrc/live/session/resize.cpp",
        "void MemoryRequests::lend(Bytes bytes) {\n  Turn turn(locks_);\n",
        "void MemoryRequests::lend(Bytes bytes) {\n",
        "tests/live/test_resize.py::test_loans_that_wait_for_their_turn_add_up",
    ),
    fault(
        "lend from the first budget instead of the present one",
        "runtime/csrc/live/session/resize.cpp",
        "resize(std::min(budget_ - bytes,",
        "resize(std::min(options_.budget - bytes,",
        "tests/live/test_resize.py::test_what_is_lent_comes_back_also_after_an_error",
    ),
    fault(
        "give back more than was lent",
        "runtime/csrc/live/session/resize.cpp",
        "resize(std::min(budget_ - bytes, memory_.largest_budget()));",
        "resize(budget_ - bytes);",
        "tests/live/test_resize.py::"
        "test_what_comes_back_from_a_loan_never_passes_the_budget_of_the_scope",
    ),
    fault(
        "leave a page that the device did not take back",
        "runtime/csrc/live/session/resize.cpp",
        "      memory_.set_limit(limit);  // Again",
        "      // Again",
        "tests/cuda/test_session_on_cuda.py::"
        "test_a_page_that_the_device_did_not_take_back_goes_before_a_resize_ends",
    ),
    fault(
        "keep the pages of what is released",
        "runtime/csrc/live/session/resize.cpp",
        "!capturing()) memory_.trim();",
        "!capturing()) {}",
        "tests/live/test_resize.py::"
        "test_what_is_released_goes_back_to_the_system_and_returns_when_touched",
    ),
    fault(
        "let a guest pass its budget",
        "runtime/csrc/live/machine/guest_memory.cpp",
        "return rounded <= limit_ - live_;",
        "return rounded <= limit_;",
        "tests/torch_memory/test_guest_memory.py::test_counts_return_to_nothing",
    ),
    fault(
        "count what a guest has freed",
        "runtime/csrc/live/machine/guest_memory.cpp",
        "  if (memory) memory->uncount(counted);\n",
        "",
        "tests/torch_memory/test_guest_memory.py::test_counts_return_to_nothing",
    ),
    fault(
        "count what a guest has let go",
        "runtime/csrc/live/machine/guest_memory.cpp",
        "  static_cast<Counted*>(block)->memory = nullptr;\n",
        "",
        "tests/torch_memory/test_guest_memory.py::test_what_does_not_fit_together_is_counted_no_longer"
        "_and_stays_where_it_is",
    ),
    fault(
        "let a replay warn",
        "runtime/csrc/live/storages/replayer.cpp",
        "  const Silence silence(may_keep_arguments(*replay.info));\n",
        "",
        "tests/live/test_silence.py::test_a_replay_is_no_error_where_warnings_are_errors",
    ),
    fault(
        "keep the parent's scope in a child while operators are on record",
        "runtime/csrc/live/session/scope.cpp",
        "  record_this_thread(false);\n  give_up();\n",
        "  linger();\n",
        "tests/live/test_scope_ends.py::"
        "test_a_child_opens_a_scope_whatever_threads_of_the_parent_were_doing",
    ),
    fault(
        "go the way to a scope's end once",
        "runtime/csrc/bindings/bind_brackets.cpp",
        "kTries = 10;",
        "kTries = 1;",
        "tests/live/test_opening.py::test_a_scope_is_open_or_not_wherever_it_is_interrupted",
    ),
)
