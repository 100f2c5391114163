"""The suites of scopes, threads, failures and exactness once more, as guests of the allocator that
stands in for torch's own on CUDA (native_stand_in). Left out by name are those of
test_guest_suites.py, those that look at traces or at what a scope's end copies, which this memory
does not have, and those that start a process of their own."""

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.native_stand_in.native import Native
from tests.support.instruments import instrumented
from tests.torch_memory.test_guest_suites import suites

LEFT_OUT = {
    # Its budget has no room for the MiB that torch may put on top (native_memory.h).
    "test_small_results_do_not_hold_their_batches_in_the_budget",
    # The peak is torch's own, and an earlier scope's is the higher one.
    "test_a_model_trains_exactly_within_a_budget",
    "test_what_a_later_step_needs_stays_recomputable",
    # It is no longer bounded when guests go (GuestAllocator::remove); a scope of the test's is.
    "test_what_does_not_fit_the_budget_together_survives_the_scope",
    "test_a_trace_is_of_one_thread",
    # Without oneDNN (below) most of its peak cannot be recomputed.
    "test_a_carried_state_trains_exactly_at_less_than_eager_needs",
    # Torch's blocks are larger than tensors: whether a budget fits is known after evicting.
    "test_a_budget_below_what_must_stay_is_refused_before_anything_changes",
    "test_a_budget_that_can_never_be_is_refused_unseen_by_other_threads",
    "test_what_a_running_operator_reads_stays",
    # The stand-in looks at every block at every request.
    "test_a_chain_of_200_000_operators_comes_back_without_deep_recursion",
    "test_an_operator_that_runs_again_takes_no_time_of_the_search_for_its_memory",
}

globals().update({name: test for name, test in suites().items() if name not in LEFT_OUT})


@pytest.fixture(autouse=True)
def _guests(library: str, fake_driver: str) -> Iterator[None]:
    native = Native(library, fake_driver)
    native.reset()
    # oneDNN frees by a bare pointer, for which torch's CPU allocator looks in no CUDA memory.
    torch._C._set_mkldnn_enabled(False)
    with instrumented(native=native.address):
        yield
    torch._C._set_mkldnn_enabled(True)
    gc.collect()
    assert native.strays == 0
    native.reset()
