"""The engine, case by case: what comes back, what a write does, and what the budget cannot hold."""

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
from tests.support.engine_of_blocks import BLOCK, chain_of, engine

# Coming back


def test_a_shared_subexpression_is_recomputed_once() -> None:
    run = engine(20)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 1, [c], [], [BLOCK])
    (left,) = run.call(2, 10, [x], [], [BLOCK])
    (right,) = run.call(3, 100, [x], [], [BLOCK])
    (y,) = run.call(4, 1000, [left, right], [], [BLOCK])
    for storage in (x, left, right):
        run.drop(storage)
    assert run.evict(y)
    assert run.live_bytes == BLOCK
    shared = content_of(1, [7], 0)
    sides = [content_of(2, [shared], 0), content_of(3, [shared], 0)]
    assert run.read(y) == content_of(4, sides, 0)
    stats = run.stats()
    assert (stats.rematerializations, stats.remat_cost, stats.clock) == (4, 1111, 2222)
    run.check()


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


def test_a_dropped_value_comes_back_as_an_intermediate_and_stays_until_evicted() -> None:
    run = engine(3)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    (y,) = run.call(2, 5, [x], [], [BLOCK])
    run.drop(x)
    assert run.live_bytes == 2 * BLOCK
    run.evict(y)
    number = content_of(2, [content_of(1, [7], 0)], 0)
    assert run.read(y) == number
    assert (run.stats().rematerializations, run.live_bytes) == (2, 3 * BLOCK)
    run.evict(y)
    assert run.read(y) == number
    assert run.stats().rematerializations == 3
    run.call(3, 5, [y], [], [])  # Time passes, so x is the staler one.
    run.take_evicted()
    evictions = run.stats().evictions
    run.constant(BLOCK, 8)
    assert run.take_evicted() == [-1]
    assert run.stats().evictions == evictions + 1
    assert run.resident(y)
    run.evict(y)
    with pytest.raises(MemoryError):
        run.read(y)
    run.check()


def test_one_run_of_an_operator_brings_back_all_its_missing_results() -> None:
    run = engine(10)
    c = run.constant(BLOCK, 7)
    made = run.call(1, 5, [c], [], [BLOCK, 1000, 0])
    for storage in made[:2]:
        assert run.evict(storage)
    assert run.live_bytes == 2 * BLOCK
    assert run.read(made[1]) == content_of(1, [7], 1)
    assert [run.resident(storage) for storage in made] == [True, True, True]
    assert run.live_bytes == 5 * BLOCK
    assert [run.read(storage) for storage in made] == [content_of(1, [7], i) for i in range(3)]
    assert run.stats().rematerializations == 1
    run.check()


def test_a_sibling_may_be_evicted_to_bring_a_result_back() -> None:
    run = engine(3, PRESETS["lru"])
    c = run.constant(BLOCK, 7)
    first, second = run.call(1, 10, [c], [], [BLOCK, BLOCK])
    run.evict(second)
    (other,) = run.call(2, 10, [c], [], [BLOCK])
    run.read(other)
    assert run.read(second) == content_of(1, [7], 1)
    assert run.read(first) == content_of(1, [7], 0)
    assert run.read(other) == content_of(2, [7], 0)
    run.check()


def test_only_what_is_missing_is_recomputed() -> None:
    run = engine(20)
    c = run.constant(BLOCK, 7)
    chain = [c]
    for name in range(6):
        chain += run.call(name, 1 << name, [chain[-1]], [], [BLOCK])
    for at in (3, 4, 6):
        run.evict(chain[at])
    run.read(chain[6])
    assert run.stats().remat_cost == 1 << 5
    run.read(chain[4])
    assert run.stats().remat_cost == (1 << 5) + (1 << 2) + (1 << 3)
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


# Writes


def test_a_written_storage_holds_a_new_version_and_readers_keep_the_old() -> None:
    run = engine(10)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    (z,) = run.call(2, 5, [x], [], [BLOCK])
    assert run.call(3, 5, [x, c], [0], [BLOCK]) == [z + 1]
    old = content_of(1, [7], 0)
    assert run.live_bytes == 4 * BLOCK  # The old version gave its memory to the new one.
    run.evict(z)
    assert run.read(z) == content_of(2, [old], 0)
    assert run.stats().rematerializations == 2
    run.evict(x)
    assert run.read(x) == content_of(3, [old, 7], 1)
    assert run.read(z + 1) == content_of(3, [old, 7], 0)
    assert run.stats().rematerializations == 3  # The old version was still there.
    run.check()


def test_a_version_that_nothing_reads_keeps_only_its_recipe() -> None:
    run = engine(10)
    c = run.constant(BLOCK, 7)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    number = content_of(1, [7], 0)
    for name in range(2, 5):
        run.call(name, 5, [x], [0], [])
        number = content_of(name, [number], 0)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (5, 4, 2 * BLOCK)
    run.evict(x)
    assert run.read(x) == number
    assert run.stats().rematerializations == 4
    run.drop(x)
    assert (run.stats().values, run.stats().ops, run.live_bytes) == (0, 0, BLOCK)
    run.check()


def test_a_constant_that_is_written_retires_all_that_rests_on_it() -> None:
    run = engine(10)
    c, other = run.constant(BLOCK, 7), run.constant(BLOCK, 8)
    (x,) = run.call(1, 5, [c], [], [BLOCK])
    (y,) = run.call(2, 5, [x], [], [BLOCK])
    (z,) = run.call(3, 5, [other], [], [BLOCK])
    for storage in (x, y, z):
        run.evict(storage)
    run.drop(x)
    run.call(4, 5, [c], [0], [])
    assert run.read(c) == content_of(4, [7], 0)
    assert run.resident(y)
    assert not run.evict(y)
    assert run.read(y) == content_of(2, [content_of(1, [7], 0)], 0)
    assert not run.resident(z)
    assert run.read(z) == content_of(3, [8], 0)
    assert (run.stats().values, run.stats().ops) == (2, 1)
    run.check()


def test_a_write_to_a_constant_and_a_value_leaves_neither_recomputable() -> None:
    run = engine(10)
    c, d = run.constant(BLOCK, 7), run.constant(BLOCK, 8)
    (x,) = run.call(1, 5, [d], [], [BLOCK])
    (z,) = run.call(2, 5, [x], [], [BLOCK])
    (y,) = run.call(3, 5, [x, c], [1, 0], [BLOCK])
    numbers = [content_of(1, [8], 0), 7]
    assert [run.read(at) for at in (y, c, x)] == [content_of(3, numbers, i) for i in range(3)]
    assert [run.evict(at) for at in (y, c, x, z)] == [False, False, False, True]
    assert run.read(z) == content_of(2, [numbers[0]], 0)
    assert run.read(x) == content_of(3, numbers, 2)
    run.check()


# The budget


def test_what_the_budget_cannot_hold_fails_with_nothing_changed() -> None:
    run = engine(6)
    a, b = chain_of(run, 5, 5)
    before = run.stats()
    with pytest.raises(MemoryError):
        run.constant(6 * BLOCK, 8)
    with pytest.raises(MemoryError):
        run.call(9, 5, [b], [0], [BLOCK, 6 * BLOCK])
    with pytest.raises(MemoryError):
        run.call(9, 5, [a, b], [], [3 * BLOCK, BLOCK])
    stats = run.stats()
    assert (stats.values, stats.ops, stats.base_cost) == (
        before.values,
        before.ops,
        before.base_cost,
    )
    first = content_of(0, [7], 0)
    assert [run.read(a), run.read(b)] == [first, content_of(1, [first], 0)]
    assert run.live_bytes == 3 * BLOCK
    run.check()


def test_the_arguments_of_an_operator_stay_while_it_runs() -> None:
    run = engine(4)
    a, b = chain_of(run, 5, 5)
    (z,) = run.call(3, 5, [b], [], [BLOCK])
    with pytest.raises(MemoryError):
        run.call(4, 5, [a, b], [], [2 * BLOCK])
    assert [run.resident(at) for at in (a, b, z)] == [True, True, False]
    (y,) = run.call(5, 5, [a, b], [], [BLOCK])
    assert [run.resident(at) for at in (a, b, z, y)] == [True, True, False, True]
    run.check()


def test_an_operator_without_results_leaves_no_record_but_takes_time() -> None:
    run = engine(4)
    c = run.constant(BLOCK, 7)
    assert run.call(1, 5, [c], [], []) == []
    stats = run.stats()
    assert (stats.values, stats.ops, stats.clock, stats.base_cost) == (0, 0, 5, 5)
    run.check()


def test_a_constant_lives_as_long_as_the_program_or_a_recipe_needs_it() -> None:
    run = engine(4)
    c = run.constant(BLOCK, 7)
    assert not run.evict(c)
    (x,) = run.call(1, 5, [c, c], [], [BLOCK])
    run.drop(c)
    assert (run.live_bytes, run.stats().values) == (2 * BLOCK, 2)
    run.evict(x)
    assert run.read(x) == content_of(1, [7, 7], 0)
    run.drop(x)
    assert (run.live_bytes, run.stats().values) == (0, 0)


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
