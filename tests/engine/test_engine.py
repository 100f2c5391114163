"""The engine where programs by lot (test_engine_programs.py) do not come: very many operators,
histories that are cut, and what fails without a word of the budget."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

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


@pytest.mark.parametrize(
    ("blocks", "steps", "most_before_a_cut"),
    [
        (1, 300, range(11, 17)),  # Of 512 bytes, as much as a record weighs.
        (512, 1000, range(251, 258)),  # So many operators, whatever it weighs.
    ],
)
def test_a_history_that_weighs_more_than_what_it_can_bring_back_is_cut(
    blocks: int, steps: int, most_before_a_cut: range
) -> None:
    run = engine(8 * blocks + 2)
    c = x = run.constant(blocks * BLOCK, 7)
    number, most = 7, 0
    for step in range(steps):
        (y,) = run.call(step, 5, [x, c], [], [blocks * BLOCK])
        number = content_of(step, [number, 7], 0)
        if x != c:
            run.drop(x)
        x = y
        run.cut_history(x)
        most = max(most, run.stats().ops)
    assert most in most_before_a_cut
    assert run.read(x) == number
    run.check()


def test_what_the_program_still_holds_is_no_history() -> None:
    run = engine(2000)
    c = x = run.constant(BLOCK, 7)
    held = []
    for step in range(1000):
        (x,) = run.call(step, 5, [x, c], [], [BLOCK])
        run.cut_history(x)
        held.append(x)
    assert run.stats().ops == 1000
    assert all(run.evict(at) for at in held)
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
