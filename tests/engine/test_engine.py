"""The engine where programs by lot (test_engine_programs.py) do not come: very many operators, and
what fails without a word of the budget."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtr_alloc.runtime.heuristic import PRESETS
from tests.engine_harness.build import build_program
from tests.engine_harness.harness import EngineHarness
from tests.models.modelled_values import content_of
from tests.support.engine_of_blocks import BLOCK, engine


def test_a_chain_of_200_000_operators_is_recomputed_and_forgotten_without_recursion() -> None:
    length = 200_000
    run = engine(4)
    c = x = run.constant(BLOCK, 7)
    number = 7
    for name in range(length):
        (y,) = run.call(name, 1, [x], [], [BLOCK])
        number = content_of(name, [number], 0)
        if x != c:
            run.drop(x)
        x = y
    assert run.evict(x)
    assert run.live_bytes == BLOCK
    assert run.read(x) == number
    stats = run.stats()
    assert (stats.rematerializations, stats.clock) == (length, 2 * length)
    assert (stats.values, stats.ops) == (length + 1, length)
    assert run.peak_bytes == 4 * BLOCK
    run.drop(x)
    stats = run.stats()
    assert (stats.values, stats.ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


def test_a_recomputation_that_multiplies_comes_to_an_end() -> None:
    """Each operator reads the last result and the one of sixteen steps ago, which waits for it. In
    ten blocks what waits must go, and is recomputed by what waits in turn."""
    run = EngineHarness(
        10 * BLOCK, replace(PRESETS["dtr"], selection="single")._native(), page_price=0
    )
    made = [run.constant(BLOCK, 7)] * 16
    for name in range(96):
        made += run.call(name, 10, [made[-16], made[-1]], [], [BLOCK])
    for value in made[16:]:
        run.evict(value)
    before = run.stats().rematerializations
    with pytest.raises(MemoryError):
        run.read(made[-1])
    assert 100 * 96 <= run.stats().rematerializations - before <= 101 * 96
    run.check()


def test_a_wide_fan_out_is_recorded_recomputed_and_forgotten() -> None:
    run = engine(3000)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(0, 5, [c], [], [BLOCK])
    made = [run.call(name, 1, [x], [], [BLOCK])[0] for name in range(1, 2001)]
    run.drop(x)
    for storage in made[::2]:
        assert run.evict(storage)
    number = content_of(0, [7], 0)
    assert [run.read(at) for at in made] == [content_of(i, [number], 0) for i in range(1, 2001)]
    assert run.stats().rematerializations == 1001
    for storage in made:
        run.drop(storage)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


@pytest.mark.parametrize(
    "act",
    [
        lambda run, gone: run.read(gone),
        lambda run, gone: run.drop(gone),
        lambda run, gone: run.evict(gone),
        lambda run, gone: run.freeze(gone),
        lambda run, gone: run.resident(gone),
        lambda run, gone: run.call(1, 1, [0, gone], [], [BLOCK]),
    ],
)
def test_an_id_that_is_gone_is_named(act: Callable[[Any, int], object]) -> None:
    run = engine(4)
    run.constant(BLOCK, 7)
    gone = run.constant(BLOCK, 8)
    run.drop(gone)
    with pytest.raises(ValueError, match="no storage has the id 1"):
        act(run, gone)
    assert (run.stats().values, run.live_bytes) == (0, BLOCK)
    run.check()


def test_a_call_that_lacks_memory_of_the_host_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "failing_allocations"
    build_program(Path(__file__).with_name("failing_allocations.cpp"), program)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"[1-9]\d* allocations failed\n", told)


def test_the_content_of_a_result_depends_on_all_that_made_it() -> None:
    makers = [(1, [2, 3], 0), (4, [2, 3], 0), (1, [3, 2], 0), (1, [2], 0), (1, [2, 3], 1)]
    numbers = {EngineHarness.content_of(*maker) for maker in makers}
    assert len(numbers) == len(makers)
    assert numbers == {content_of(*maker) for maker in makers}
