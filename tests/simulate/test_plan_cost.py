"""What a rematerialization takes beyond its operator: measured once, in the process of a program
whose settings have no part in it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dtr_alloc.runtime.planning import cost
from dtr_alloc.runtime.planning.profile import Recorded, recorded_steps
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Call, Mutate


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The measurement takes a moment, and is forgotten."""
    monkeypatch.setattr(cost, "_CELLS", 12)
    monkeypatch.setattr(cost, "_ROUNDS", 2)
    cost.rematerialization_ns.cache_clear()
    yield
    cost.rematerialization_ns.cache_clear()


def test_what_a_rematerialization_takes_is_measured_once(short: None) -> None:
    before = torch.get_num_threads(), torch.get_rng_state()
    first = cost.rematerialization_ns()
    assert first >= 0
    assert cost.rematerialization_ns() == first
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_no_hook_of_the_program_sees_the_measurement(short: None) -> None:
    seen: list[object] = []
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("after")),
    ]
    try:
        cost.rematerialization_ns()
    finally:
        for hook in hooks:
            hook.remove()
    assert seen == []


@contextmanager
def on_meta_in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "setting",
    [
        torch.no_grad,
        torch.inference_mode,
        on_meta_in_double,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
    ids=["no gradients", "inference", "device and type", "autocast"],
)
def test_no_setting_of_the_program_changes_what_is_measured(
    short: None, setting: Callable[[], AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def noted(*args: Any, **options: Any) -> Recorded:
        measured.append(recorded_steps(*args, **options))
        return measured[-1]

    monkeypatch.setattr(cost, "recorded_steps", noted)
    cost.rematerialization_ns()
    cost.rematerialization_ns.cache_clear()
    with setting():
        cost.rematerialization_ns()
    without, within = measured[1], measured[-1]
    assert (without.warm_marks, without.traced_steps) == (1, 3)
    assert (within.warm_marks, within.traced_steps) == (1, 3)
    assert within.peak_bytes == without.peak_bytes
    assert called(within.trace) == called(without.trace)


def called(trace: Trace) -> list[str]:
    return [item.name for item in trace.instructions if isinstance(item, (Call, Mutate))]
