"""The suites of scopes, threads, failures and exactness once more, with memory="torch". Left out by
name are those of a pool alone (its addresses, its pages, a scope that has no budget), and those
that run a program in a process of its own."""

from importlib import import_module
from typing import Any

import pytest

import dtr_alloc
from dtr_alloc.pool.size import LARGEST_BUDGET

LEFT_OUT = {
    "test_a_process_exits_though_a_thread_has_joined_its_open_scope",
    "test_a_process_that_exits_with_a_scope_open_says_nothing",
    "test_a_process_with_few_addresses_says_so",
    "test_a_tensor_may_die_in_one_thread_while_another_evicts_it",
    "test_a_budget_that_cannot_be_is_refused",
    "test_between_forward_and_backward_the_activations_leave_the_process",  # Of both memories.
    "test_a_scope_without_a_budget_has_none_to_resize",
    "test_the_time_of_page_moves_is_told_apart_from_choosing",
    "test_what_comes_back_from_a_loan_never_passes_the_budget_of_the_scope",
}


SUITES = [
    import_module(f"tests.{name}")
    for name in (
        *("live.test_exactness", "live.test_failures", "live.test_histories", "live.test_mutation"),
        *("live.test_raw_access", "live.test_resize", "live.test_session", "live.test_steps"),
        *("live.test_threads", "programs.test_models"),
    )
]


def suites() -> dict[str, Any]:
    """The tests of these modules by name, but for those left out."""
    found = [
        (name, test)
        for module in SUITES
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in LEFT_OUT and callable(test)
    ]
    tests = dict(found)
    assert len(tests) == len(found), "two tests have one name"
    return tests


globals().update(suites())


@pytest.fixture(autouse=True)
def _guests(monkeypatch: pytest.MonkeyPatch) -> None:
    rematerialize = dtr_alloc.rematerialize

    def guest(budget: Any, **options: Any) -> Any:
        budget = LARGEST_BUDGET if budget is None else budget
        return rematerialize(budget, memory="torch", **options)

    monkeypatch.setattr(dtr_alloc, "rematerialize", guest)
