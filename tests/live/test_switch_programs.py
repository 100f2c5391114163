"""Random programs that change switches, threads, addresses and layouts have eager's bits, whatever
is evicted and wherever the bytes lie."""

from typing import Any

import pytest
import torch

import dtr_alloc
from tests.support.exactness import run, same, scope
from tests.support.switch_programs import MODES, SwitchProgram


def budget_of(seed: int, share: float) -> int:
    """A share of what the activations take, and all of what stays."""
    with dtr_alloc.measure() as session:
        found = run(SwitchProgram(seed).run, seed)
        stays = session.stats().live_bytes
    del found
    return int(stays + share * (session.stats().peak_bytes - stays))


def check(seed: int, mode: Any) -> None:
    expected = run(SwitchProgram(seed).run, seed)
    if not all(map(same, expected, run(SwitchProgram(seed).run, seed))):
        pytest.skip("eager does not repeat itself")
    instruments: dict[str, Any] = {}
    found = None
    if mode in ("pool", "torch"):
        for share in (0.6, 0.8, 1.0):
            try:
                with dtr_alloc.rematerialize(
                    budget_of(seed, share), memory=mode, clock="logical", thrash_limit=0
                ) as session:
                    found = run(SwitchProgram(seed).run, seed)
                break
            except torch.OutOfMemoryError:
                continue
        if found is None:
            pytest.skip("no such budget is large enough")
    else:
        instruments = {mode: True}
        with scope(None, **instruments) as session:
            found = run(SwitchProgram(seed).run, seed)
            session.check()
    assert len(found) == len(expected)
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert same(one, other), f"seed {seed}, {mode}: result {i} differs from eager"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", MODES)
def test_programs_that_change_switches_have_eagers_bits(mode: str, seed: int) -> None:
    check(seed, mode)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(500))
@pytest.mark.parametrize("mode", MODES)
def test_five_hundred_of_them_do(mode: str, seed: int) -> None:
    check(seed, mode)
