"""Random programs that change switches, threads, addresses and layouts have eager's bits, whatever
is evicted and wherever the bytes lie."""

import contextlib
from typing import Any

import pytest
import torch

import dtr_alloc
from tests.support.exactness import alike, run, scope
from tests.support.switch_programs import MODES, SwitchProgram


def budget_of(seed: int, share: float) -> int:
    """A share of what the activations take, and all of what stays."""
    with dtr_alloc.measure() as session:
        found = run(SwitchProgram(seed).run, seed)
        stays = session.stats().live_bytes
    del found
    return int(stays + share * (session.stats().peak_bytes - stays))


def within_a_budget(seed: int, memory: Any) -> list[tuple[Any, ...]]:
    for share in (0.6, 0.8, 1.0):
        opened = dtr_alloc.rematerialize(
            budget_of(seed, share), memory=memory, clock="logical", thrash_limit=0
        )
        with contextlib.suppress(torch.OutOfMemoryError), opened:
            return run(SwitchProgram(seed).run, seed)
    pytest.skip("no such budget is large enough")


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 500))]
)
@pytest.mark.parametrize("mode", MODES)
def test_programs_that_change_switches_have_eagers_bits(mode: str, seed: int) -> None:
    expected = run(SwitchProgram(seed).run, seed)
    if not alike(run(SwitchProgram(seed).run, seed), expected):
        pytest.skip("eager does not repeat itself")
    if mode in ("pool", "torch"):
        found = within_a_budget(seed, mode)
    else:
        instruments: dict[str, Any] = {mode: True}
        with scope(None, **instruments) as session:
            found = run(SwitchProgram(seed).run, seed)
            session.check()
    assert alike(found, expected)
