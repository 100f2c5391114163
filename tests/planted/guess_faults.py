"""Faults of rules that a good guess about torch gets wrong: what a kernel reads besides its
arguments, which operators repeat themselves, where copies begin, whose memory may move, who else
has the dispatch key."""

from tests.planted.fault import Edit, Fault, fault

GUESS_FAULTS = (
    fault(
        "record no switch of the process",
        "runtime/csrc/live/storages/replayer.cpp",
        "now != ready.state.switches",
        "false && now != ready.state.switches",
        "tests/live/test_switches.py::test_what_was_computed_by_other_switches_is_recomputed_by_them",
    ),
    fault(
        "see no change of a precision",
        "runtime/csrc/live/machine/switches.cpp",
        " same &= *at == before;",
        " static_cast<void>(before);",
        "tests/live/test_switches.py::test_a_precision_that_changes_alone_is_seen",
    ),
    fault(
        "recompute with the reader's number of threads",
        "runtime/csrc/live/machine/switches.cpp",
        "    threads_ = true;",
        "    return;",
        "tests/live/test_switches.py::test_each_thread_is_recomputed_by_its_own_number_and_control_word",
    ),
    fault(
        "recompute with the reader's control word",
        "runtime/csrc/live/machine/switches.cpp",
        "  flushing_ = true;",
        "  return;",
        "tests/live/test_switches.py::test_each_thread_is_recomputed_by_its_own_number_and_control_word",
    ),
    fault(
        "switch beside operators of other threads",
        "runtime/csrc/live/machine/under_way.cpp",
        "return all.running_ == here;",
        "return true;",
        "tests/live/test_under_way.py::test_no_operator_of_another_thread_sees_what_a_recomputation_switches",
        tries=3,
    ),
    fault(
        "begin operators while a recomputation has switched",
        "runtime/csrc/live/machine/under_way.cpp",
        "  all.wait_for_alone(lock);\n",
        "",
        "tests/live/test_under_way.py::test_no_operator_of_another_thread_sees_what_a_recomputation_switches",
        tries=3,
    ),
    fault(
        "run a sum in any order again",
        "runtime/csrc/live/operators/unordered.cpp",
        "on_host_ && accumulates() && at::get_num_threads() > 1;",
        "on_host_ && accumulates() && at::get_num_threads() < 1;",
        "tests/live/test_repeats.py::"
        "test_with_two_threads_a_sum_at_indices_keeps_the_bits_that_it_was_made_with",
    ),
    fault(
        "begin each copy at a multiple of 64",
        "runtime/csrc/live/storages/storage_table.cpp",
        "remainder = remainder_of(content);",
        "remainder = 0;",
        "tests/live/test_alignment.py::"
        "test_a_recipe_that_reads_a_copy_of_a_constant_has_the_bits_of_the_original",
    ),
    Fault(
        "let memory move that a tensor was laid over",
        (
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                "!may_adopt(call) || call.info.surgery",
                "!may_adopt(call)",
            ),
            Edit(
                "runtime/csrc/live/session/session_swap.cpp",
                "use_count(storage) > here",
                "use_count(storage) > here + 99",
            ),
        ),
        "tests/swap/test_swap_aliases.py",
    ),
    fault(
        "take a workspace for read-only",
        "runtime/csrc/live/operators/operators.cpp",
        '    {"aten::mkldnn_rnn_layer_backward", "workspace"},\n',
        "",
        "tests/live/test_mutation.py::test_recurrent_layers_train_in_debug_mode",
    ),
    fault(
        "run a fake tensor in a scope",
        "runtime/csrc/live/intercept/dispatch_key.cpp",
        "return fake || (!Scope::active() && !Scope::part_if_member());",
        "return !Scope::active() && !Scope::part_if_member();",
        "tests/live/test_other_fallback.py::"
        "test_a_fake_tensor_in_a_scope_is_theirs_and_real_ones_beside_it_are_ours[before]",
    ),
    fault(
        "keep another library's mode from what is never intercepted",
        "runtime/csrc/live/intercept/dispatch_key.cpp",
        "if (others_have_key() && hand_over(op, keys, stack)) return;",
        "",
        "tests/live/test_other_fallback.py",
    ),
    fault(
        "remember an operator that is gone",
        "runtime/csrc/live/intercept/dispatch_key.cpp",
        "    forget_operator(op);\n",
        "",
        "tests/live/test_library_lifetimes.py::"
        "test_an_operator_that_is_defined_anew_is_not_run_in_place_of_the_old_one",
    ),
    fault(
        "allocate past a lost key in silence",
        "runtime/csrc/live/session/cpu_allocator.cpp",
        "      if (Scope::is_member()) session->notes().note_unseen(bytes);\n",
        "",
        "tests/live/test_lost_key.py",
    ),
    fault(
        "leave an operator to another library's kernel",
        "runtime/csrc/live/intercept/dispatch_key.cpp",
        "    front = passed ? ours : shared(front, one.passes);\n",
        "    if (!passed) return;\n    front = ours;\n",
        "tests/live/test_other_fallback.py::"
        "test_an_operator_that_somebody_has_a_kernel_for_is_ours_in_a_scope_and_theirs_outside",
    ),
    fault(
        "leave what is defined inside a scope to the next one",
        "runtime/csrc/live/intercept/dispatch_key.cpp",
        "    if (Scope::active()) take(all_.back());\n",
        "",
        "tests/live/test_other_fallback.py::"
        "test_an_operator_that_a_library_defines_inside_a_scope_is_recorded",
    ),
    fault(
        "count a thread to the scope after its own",
        "runtime/csrc/live/session/scope.cpp",
        "return member_of_ == today();",
        "return member_of_ != 0;",
        "tests/live/test_lost_key.py::"
        "test_a_thread_of_an_earlier_scope_is_no_member_of_a_later_one",
    ),
)
