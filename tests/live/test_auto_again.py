"""heuristic="auto" looks again at what a program does by now."""

import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import dtr_alloc
from dtr_alloc import Heuristic, _core
from dtr_alloc.runtime.scope import auto
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.format import Constant
from dtr_alloc.runtime.trace.from_records import trace_of

ELEMENTS = 1 << 14  # 64 KiB.
BUDGET = 10 * 4 * ELEMENTS
FIRST = 12  # Steps that every scope records.
FOR_DEEP = Heuristic("ancestors", orphans_first=True)
FOR_SHALLOW = Heuristic("lineage", staleness_exp=0.5, next_use=True)


class Program:
    """Steps of some depth, which may change."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.depth = 16
        self.done = 0
        self.weights = torch.randn(ELEMENTS, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weights], lr=0.01)

    def step(self) -> None:
        self.optimizer.zero_grad()
        y = self.weights
        for _ in range(self.depth):
            y = (y * 0.9).sin()
        y.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.done += 1

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def wait_for_search(session: Session) -> None:
    """Until the thread waits for other steps or another budget."""
    chooser = session._chooser
    assert chooser is not None
    for _ in range(1000):
        if chooser.idle():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the search did not end")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations may take all of the time, and steps are recorded again soon."""
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    monkeypatch.setattr(auto, "_AGAIN", 3)


@pytest.fixture
def prefers_by_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate for long steps, another for short ones."""

    def added(
        _: auto.Chooser, replay: auto.Replay, candidate: Heuristic, __: int, ___: float
    ) -> float:
        deep = len(replay.all.schedule.tensor_name) > auto._STEPS * 60
        return 0.1 if candidate == (FOR_DEEP if deep else FOR_SHALLOW) else 1.0

    monkeypatch.setattr(auto.Chooser, "_added", added)


def test_a_program_that_changes_is_searched_anew(hurried: None, prefers_by_depth: None) -> None:
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        program.steps(auto._STEPS)
        wait_for_search(session)
        program.step()
        assert session.heuristic == FOR_DEEP
        program.depth = 6
        program.steps(FIRST - program.done + auto._STEPS)
        wait_for_search(session)
        program.step()
        assert session.heuristic == FOR_SHALLOW
        assert f"on the steps up to {FIRST + auto._STEPS}, it adds 10%" in session.summary()


def test_what_later_steps_need_is_what_their_trace_needs() -> None:
    """Optimizer state, from before that trace, counts."""
    program = Program()
    with dtr_alloc.rematerialize(1 << 30) as session:
        program.steps(FIRST)
        session.reset_peak()
        core = session._core
        assert core.watch_again(2)
        program.steps(2)
        assert core.watching_again() == _core.Watch.over
        records, operators, steps, _ = core.seen_again()
        peak = session.stats().peak_bytes
    assert steps == 2
    rules = Rules(mode="pool", pin_outputs=False)
    assert Simulator(trace_of(records.tolist(), operators)).run(1 << 30, rules).peak_bytes == peak


def test_a_watch_that_begins_late_knows_what_was_there() -> None:
    """As on a device, where the first step may be over."""
    with dtr_alloc.rematerialize(1 << 30) as session:
        program = Program()  # Its weights lie in the pool.
        program.steps(FIRST)
        core = session._core
        core.watch()
        session.reset_peak()
        program.steps(2)
        records, operators, _, _ = core.seen()
        peak = session.stats().peak_bytes
    rules = Rules(mode="pool", pin_outputs=False)
    assert Simulator(trace_of(records.tolist(), operators)).run(1 << 30, rules).peak_bytes == peak


def test_what_only_recipes_hold_is_no_part_of_a_later_trace() -> None:
    """With policy "ignore" what the program let go may lie there still."""
    program = Program()
    with dtr_alloc.rematerialize(1 << 30, policy="ignore") as session:
        program.steps(FIRST)
        made = program.weights.detach()
        for _ in range(20):
            made = made * 0.9
        assert session.stats().live_bytes > 20 * 4 * ELEMENTS
        assert session._core.watch_again(1)
        del made
        records, operators, _, _ = session._core.seen_again()
    lines = trace_of(records.tolist(), operators).instructions
    held = sum(line.memory for line in lines if isinstance(line, Constant))
    assert 0 < held < 5 * 4 * ELEMENTS  # A gradient, what Adam keeps of it, and what was made.


@pytest.mark.parametrize("steps", [0, 1, auto._STEPS - 1])
def test_a_look_that_ended_early_is_of_no_use_and_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(auto, "_AGAIN", 3)
    core, chooser = Mock(), auto.Chooser("eager", "wall")
    core.stats.return_value = Mock(remat_cost=0, search_ns=0, move_ns=0, base_cost=0)
    core.pool_stats.return_value.budget = chooser._budget = BUDGET
    core.watch_again.return_value = True
    core.watching_again.return_value = _core.Watch.long
    core.seen_again.return_value = (np.zeros(0, np.int64), [], steps, _core.Watch.long)
    chooser._thread, chooser._over = Mock(), True
    chooser._seen = auto.Seen(np.zeros(0, np.int64), [], 4)
    before = chooser._seen
    for _ in range(40):
        chooser.stepped(core)
    assert chooser._seen is before
    assert core.watch_again.call_count == 10


def test_a_later_recording_has_nothing_of_the_one_before() -> None:
    program, lengths = Program(), []
    with dtr_alloc.rematerialize(1 << 30) as session:
        program.steps(FIRST)
        for _ in range(3):
            assert session._core.watch_again(1)
            program.step()
            records, _, steps, _ = session._core.seen_again()
            lengths.append((len(records), steps))
    assert len(set(lengths)) == 1


def test_a_trace_of_the_users_ends_the_recording_and_comes_first(hurried: None) -> None:
    program = Program()
    with dtr_alloc.rematerialize(BUDGET) as session:
        program.steps(FIRST)
        assert session._core.watch_again(4)
        program.step()
        with dtr_alloc.record_trace() as recording:
            program.step()
            assert session._core.watching_again() == _core.Watch.traced
            assert not session._core.watch_again(4)
        assert recording.trace is not None
        assert session._core.watch_again(4)


def test_a_thread_that_joins_ends_the_recording() -> None:
    program = Program()
    with dtr_alloc.rematerialize(BUDGET) as session:
        program.steps(FIRST)
        assert session._core.watch_again(4)

        def joins() -> None:
            with dtr_alloc.join_scope():
                assert not session._core.watch_again(4)

        thread = threading.Thread(target=joins)
        thread.start()
        thread.join()
        assert session._core.watching_again() == _core.Watch.threads


def test_results_are_eagers_while_steps_are_searched_again_and_again(hurried: None) -> None:
    expected, program = Program(), Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        for step in range(48):
            program.depth = 6 + step // 6
            program.step()
            if step % auto._STEPS == auto._STEPS - 1:
                wait_for_search(session)
    for step in range(48):
        expected.depth = 6 + step // 6
        expected.step()
    assert torch.equal(program.weights, expected.weights)


def test_a_failed_simulation_ends_the_looking(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> float:
        raise ValueError("no such trace")

    monkeypatch.setattr(auto.Chooser, "_added", fail)
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        program.steps(FIRST + auto._AGAIN + 1)
        assert session._core.watching_again() == _core.Watch.off
        assert "a simulation failed: no such trace" in session.summary()
