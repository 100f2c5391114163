"""Scoring on a CUDA device: the same victims, whatever the driver does. The fake one runs the
kernel as a function that rounds otherwise than the host. The kernel itself has test_kernels.py."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from dtr_alloc.kernels import ahead
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic, Scorer
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.scope.session import Session
from tests.engine_harness.harness import EngineHarness, crossover, never
from tests.fake_cuda.driver import SCORER_CALLS, FakeCuda
from tests.kernels.score_columns import EXTREMES, HEURISTICS, drawn, native_columns
from tests.support.instruments import instrumented

CLOCK = 1 << 41
IMAGE = ahead.image()


@pytest.mark.parametrize("count", [1, 15, 16, 17, 255, 256, 257, 1000, 3001])
def test_victims_are_those_of_the_host(cuda: FakeCuda, count: int) -> None:
    columns = drawn(count, count, CLOCK)
    rows = native_columns(columns)
    request = int(columns.size.sum()) // 10 + 1
    for heuristic in HEURISTICS:
        native = heuristic._native()
        expected = rows.victims(native, CLOCK, request)
        assert rows.victims(native, CLOCK, request, IMAGE).tolist() == expected.tolist()
    assert cuda.calls("cuLaunchKernel") >= len(HEURISTICS)


@pytest.mark.parametrize("epsilon", [0, 1])
@pytest.mark.parametrize("name", EXTREMES)
def test_victims_are_those_of_the_host_at_extremes(cuda: FakeCuda, name: str, epsilon: int) -> None:
    columns = EXTREMES[name](700, CLOCK)
    rows = native_columns(columns)
    for heuristic in HEURISTICS[::3]:
        native = heuristic._native(epsilon)
        expected = rows.victims(native, CLOCK, int(columns.size.max()) * 5 + 1)
        found = rows.victims(native, CLOCK, int(columns.size.max()) * 5 + 1, IMAGE)
        assert found.tolist() == expected.tolist()


def test_a_device_whose_last_bits_differ_does_not_decide_among_equals(cuda: FakeCuda) -> None:
    """Two rows of equal scores, the first and one in the next tile: the later one goes, though the
    device finds less for the first."""
    columns = drawn(300, 1, CLOCK)
    for column in (columns.size, columns.last_access, columns.cost, columns.neighbourhood,
                   columns.recomputes, columns.free_left, columns.free_right):  # fmt: skip
        column[:] = column[0]
    columns.evictable[:] = 0
    columns.evictable[[0, 256]] = 1
    columns.order[0], columns.order[256] = 1, 2
    native = HEURISTICS[-1]._native()
    rows = native_columns(columns)
    assert rows.victims(native, CLOCK, 1).tolist() == [256]
    assert rows.victims(native, CLOCK, 1, IMAGE).tolist() == [256]
    assert cuda.calls("cuLaunchKernel") > 0


def evicted_by(run: EngineHarness, seed: int) -> list[list[int]]:
    """A random program's evictions, operator by operator."""
    draw = random.Random(seed)
    live = [run.constant(4096, 0)]
    evictions = []
    for name in range(600):
        inputs = draw.sample(live, min(len(live), draw.randint(1, 3)))
        live += run.call(name, draw.randint(1, 10_000), inputs, [], [512 * draw.randint(1, 40)])
        if len(live) > 400:
            run.drop(live.pop(draw.randrange(1, len(live))))
        evictions.append(run.take_evicted())
    run.check()
    return evictions


@pytest.mark.parametrize("heuristic", ["dtr", "dtr_full", "lru", "megengine", "tuned"])
def test_an_engine_evicts_the_same_values(cuda: FakeCuda, heuristic: str) -> None:
    chosen = HEURISTICS[-1] if heuristic == "tuned" else PRESETS[heuristic]
    native = replace(chosen, selection="single")._native()
    by_host = EngineHarness(1 << 20, native)
    by_device = EngineHarness(1 << 20, native, IMAGE)
    found = evicted_by(by_device, 1)
    assert found == evicted_by(by_host, 1)
    assert by_device.device_choices > 100
    assert by_host.device_choices == 0


def test_columns_that_grow_are_seen_where_they_then_lie(cuda: FakeCuda) -> None:
    """1024 rows are there at first."""
    native = replace(PRESETS["dtr_local"], selection="single")._native()
    runs = [EngineHarness(3000 * 512, native), EngineHarness(3000 * 512, native, IMAGE)]
    for run in runs:
        first = run.constant(512, 0)
        for name in range(3500):
            run.call(name, 1 + name * 7919 % 1000, [first], [], [512])
    evictions = [run.take_evicted() for run in runs]
    assert evictions[0] == evictions[1]
    assert len(evictions[0]) > 400
    assert runs[1].device_choices == len(evictions[0])
    assert cuda.count("registered") == 2  # Columns and answers; what they grew out of is gone.


def chain() -> list[float]:
    """Sums of sixty tensors of 128 KiB; all are kept until the end."""
    x = torch.arange(32 * 1024, dtype=torch.float32).sin()
    kept = []
    for i in range(60):
        x = (x + i).cos()
        kept.append(x)
    return [float(k.sum()) for k in kept]


@contextmanager
def session(
    scorer: Scorer, image: str = IMAGE, heuristic: Heuristic = PRESETS["dtr"]
) -> Iterator[Session]:
    single = replace(heuristic, selection="single")
    scope = rematerialize("1MiB", thrash_limit=0, clock="logical", heuristic=single)
    with instrumented(on_cuda=True, scorer=scorer, image=image), scope as opened:
        yield opened


def outcome(scorer: Scorer, heuristic: Heuristic = PRESETS["dtr"]) -> tuple[list[float], Any]:
    with session(scorer, heuristic=heuristic) as opened:
        found = chain()
        opened.check()
        return found, opened._core.stats()


@pytest.mark.parametrize(
    "heuristic",
    [
        *(PRESETS["dtr"], PRESETS["megengine"], HEURISTICS[-1]),
        Heuristic(staleness_exp=0.5),  # Takes the other kernel.
        Heuristic(next_use=True),  # Takes a tape's times.
    ],
)
def test_a_session_runs_steps_as_by_the_hosts_scores(cuda: FakeCuda, heuristic: Heuristic) -> None:
    def outcomes(scorer: Scorer) -> list[Any]:
        found: list[Any] = []
        with session(scorer, heuristic=heuristic) as opened:
            for _ in range(3):
                found.append((chain(), opened.stats().evictions))
                opened._core.step()
                opened.check()
            stats = opened._core.stats()
            assert stats.evictions > 60
            assert stats.device_choices >= (stats.evictions if scorer == "device" else 0)
            assert (stats.device_choices == 0) == (scorer == "host")
            return [*found, stats.rematerializations, stats.peak_bytes]

    assert outcomes("device") == outcomes("host")


def test_few_candidates_are_never_the_devices(cuda: FakeCuda) -> None:
    """The crossover lies anywhere, as the fake driver's time does; but not at sixty rows."""
    expected, _ = outcome("host")
    found, stats = outcome("auto")
    assert found == expected
    assert stats.device_scores_from == -1 or stats.device_scores_from > 60
    assert stats.device_choices == 0
    assert cuda.calls("cuLaunchKernel") > 0  # To time it.


def test_a_device_that_answers_at_once_pays_from_some_number_of_rows(cuda: FakeCuda) -> None:
    cuda.drop("cuLaunchKernel")
    with session("auto") as opened:
        assert opened._core.stats().device_scores_from > 0


@pytest.mark.parametrize(
    ("host", "few", "many", "rows"),
    [
        # 20 us to begin with and 0.1 ns a row; the host takes 1.1 ns.
        pytest.param(1.1e-9, 20e-6 + 1e-7, 20e-6 + 1e-5, 20_000, id="has caught up"),
        pytest.param(1e-9, 1e-6, 200e-6, never, id="never does"),
        pytest.param(1e-9, 0, 0, 0, id="always has"),
    ],
)
def test_a_device_pays_from_where_the_hosts_time_has_caught_up(
    host: float, few: float, many: float, rows: int
) -> None:
    assert crossover(host, 1_000, few, 100_000, many) == pytest.approx(rows, abs=1)


@pytest.mark.parametrize("call", SCORER_CALLS)
def test_whatever_call_fails_once_the_victims_are_the_same(cuda: FakeCuda, call: str) -> None:
    expected, by_host = outcome("host")
    before = cuda.calls(call)
    outcome("device")
    times = cuda.calls(call) - before
    assert times > 0
    for after in range(min(times, 12)):
        cuda.fail(call, after)
        try:
            found, stats = outcome("device")
        except RuntimeError as error:
            # At the start, where the device was asked for; "auto" goes on without it.
            assert f"CUDA device 0 cannot score: {call} failed" in str(error)
            cuda.fail(call, after)
            found, stats = outcome("auto")
        assert cuda.pending_failures() == 0
        assert found == expected
        assert stats.evictions == by_host.evictions
        assert cuda.held() == {}
        assert cuda.count("streams") == 1


def test_after_a_failure_the_driver_is_left_alone(cuda: FakeCuda) -> None:
    with session("device") as opened:
        cuda.fail("cuLaunchKernel", after=3)
        chain()
        stats = opened._core.stats()
        assert stats.device_choices == 3
        assert stats.device_scores_from == -1
        launches = cuda.calls("cuLaunchKernel")
        chain()
        assert cuda.calls("cuLaunchKernel") == launches


def test_a_wrong_image_is_an_error_only_where_the_device_was_asked_for(cuda: FakeCuda) -> None:
    expected, _ = outcome("host")
    with (
        pytest.raises(RuntimeError, match=r'cannot score: .* scorer="auto" lets the host do it'),
        session("device", image="nothing"),
    ):
        pass
    with session("auto", image="nothing") as opened:
        found = chain()
        assert opened._core.stats().device_scores_from == -1
    assert found == expected


def test_the_scorer_has_a_stream_of_its_own(cuda: FakeCuda) -> None:
    with session("device"):
        assert cuda.count("streams") == 2  # And the default one.
    assert cuda.count("streams") == 1
