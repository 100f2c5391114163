"""heuristic="auto": settings chosen by simulating the program's own steps."""

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from typing import Any, Protocol

import pytest
import torch

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS, resolve
from dtr_alloc.runtime.scope import auto
from dtr_alloc.runtime.scope.candidates import FIRST, changed
from dtr_alloc.runtime.scope.session import Session
from dtr_alloc.runtime.scope.trial import Added

ELEMENTS = 1 << 14  # 64 KiB.
BUDGET = 10 * 4 * ELEMENTS
BEST = Heuristic("ancestors", orphans_first=True)


class Prefers(Protocol):
    def __call__(self, times: dict[Heuristic, float], others: float = 1.0) -> list[int]: ...


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations may take all of the time."""
    monkeypatch.setattr(auto, "_SHARE", 1e9)


@pytest.fixture
def prefers(monkeypatch: pytest.MonkeyPatch) -> Prefers:
    """Gives each candidate a time; returns the budgets that are simulated. No trial fails."""

    def prefer(times: dict[Heuristic, float], others: float = 1.0) -> list[int]:
        budgets: list[int] = []

        def added(
            _: auto.Chooser, __: auto.Replay, candidate: Heuristic, budget: int, ___: float
        ) -> float:
            budgets.append(budget)
            return times.get(candidate, others)

        monkeypatch.setattr(auto.Chooser, "_added", added)
        monkeypatch.setattr(Added, "most", lambda _: float("inf"))
        return budgets

    return prefer


class Program:
    """Steps whose backward pass reads what the forward pass made."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weights = torch.randn(ELEMENTS, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weights], lr=0.01)

    def step(self) -> None:
        self.optimizer.zero_grad()
        y = self.weights
        for _ in range(16):
            y = (y * 0.9).sin()
        y.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def run(steps: int, **options: Any) -> tuple[Program, Session]:
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto", **options) as session:
        for _ in range(steps):
            program.step()
    return program, session


def wait_for_search(session: Session) -> None:
    """Until the thread waits for another budget."""
    assert session._chooser is not None
    for _ in range(1000):
        if session._chooser.idle():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the search did not end")


def search(program: Program, session: Session) -> None:
    """The steps that a search needs, and the search."""
    for _ in range(auto._STEPS):
        program.step()
    wait_for_search(session)


def steps(program: Program, count: int) -> None:
    for _ in range(count):
        program.step()


TRIED = auto._TRIAL + 1  # Steps of a trial, the first of which does not count.


def test_what_adds_least_is_taken_when_a_step_ends(hurried: None, prefers: Prefers) -> None:
    prefers({BEST: 0.25})
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        assert session.heuristic == PRESETS[DEFAULT]
        program.step()
        assert session.heuristic == BEST
        assert "auto: Heuristic(neighbourhood='ancestors'" in session.summary()
        assert "adds 25% of the operators' time, foresight 100%" in session.summary()


def test_the_best_is_changed_and_a_change_that_adds_less_is_taken(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def added(_: auto.Chooser, __: auto.Replay, candidate: Heuristic, *___: Any) -> float:
        tried.append(candidate)
        return 1.0 if candidate in FIRST else abs(candidate.size_exp - 2)

    monkeypatch.setattr(auto.Chooser, "_added", added)
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        program.step()
        assert session.heuristic not in FIRST
        assert session.heuristic.size_exp > 1.5
    assert tried[: len(FIRST)] == [*FIRST]
    assert len(tried) == len({*tried}) <= len(FIRST) + auto._CHANGES


def test_no_change_is_tried_when_a_search_has_taken_its_time(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def added(chooser: auto.Chooser, _: auto.Replay, candidate: Heuristic, *__: Any) -> float:
        tried.append(candidate)
        chooser.spent_seconds += auto._SECONDS
        return 1.0

    monkeypatch.setattr(auto.Chooser, "_added", added)
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
    assert tried == [*FIRST]


def test_a_change_is_of_one_parameter_and_may_be_made() -> None:
    draw = random.Random(0)
    heuristic, differing = FIRST[0], set()
    for _ in range(500):
        other = changed(heuristic, draw)
        now = {
            one.name
            for one in fields(other)
            if getattr(other, one.name) != getattr(heuristic, one.name)
        }
        assert len(now) <= 1
        differing |= now
        heuristic = other
    assert differing == {
        *("neighbourhood", "cost_exp", "size_exp", "staleness_exp"),
        *("next_use", "orphans_first", "stepping_stones"),
    }


def test_results_are_eagers_whatever_is_chosen(hurried: None) -> None:
    expected, program = Program(), Program()
    for _ in range(20):
        expected.step()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        for step in range(20):
            program.step()
            if step >= auto._STEPS:
                wait_for_search(session)
    assert torch.equal(program.weights, expected.weights)
    assert session._chooser is not None
    assert session._chooser.spent_seconds > 0


def test_a_simulation_that_fails_leaves_the_program_as_it_is(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> float:
        raise ValueError("no such trace")

    monkeypatch.setattr(auto.Chooser, "_added", fail)
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        program.step()
        assert "foresight so far, since a simulation failed: no such trace" in session.summary()


def test_a_second_search_leaves_what_is_in_force_until_something_is_better(
    hurried: None, prefers: Prefers
) -> None:
    prefers({BEST: 0.25})
    program, seen = Program(), []
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        steps(program, 1 + TRIED)
        for smaller in (512, 1024):
            session.resize(BUDGET - smaller)
            program.step()
            wait_for_search(session)
            steps(program, TRIED)
            seen.append(session.heuristic)
    assert seen == [BEST, BEST]


def test_little_better_is_not_better(hurried: None, prefers: Prefers) -> None:
    prefers({BEST: 0.98})
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        program.step()
        assert session.heuristic == PRESETS[DEFAULT]


def test_where_nothing_is_recomputed_nothing_is_chosen(hurried: None, prefers: Prefers) -> None:
    budgets = prefers(dict.fromkeys(FIRST, 0.001))
    program = Program()
    with dtr_alloc.rematerialize("64MiB", heuristic="auto") as session:
        for _ in range(auto._STEPS + 2):
            program.step()
        wait_for_search(session)
    assert len(budgets) == 1
    assert session.heuristic == PRESETS[DEFAULT]
    assert "since no other candidate would add less" in session.summary()


def test_another_budget_is_searched_for_anew(hurried: None, prefers: Prefers) -> None:
    budgets = prefers({BEST: 0.25})
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        session.resize(BUDGET - 512)
        program.step()
        wait_for_search(session)
        steps(program, TRIED)
        assert set(budgets) == {BUDGET, BUDGET - 512}
        assert session.heuristic == BEST


def test_a_refused_default_gives_way_to_what_runs(hurried: None, prefers: Prefers) -> None:
    prefers({BEST: 5.0}, others=float("inf"))
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        program.step()
        assert session.heuristic == BEST
        assert "foresight refused" in session.summary()


def test_simulations_wait_until_their_share_of_the_time_pays_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "_SHARE", 1e-9)
    _, session = run(auto._STEPS + 1)
    assert session._chooser is not None
    assert session._chooser.spent_seconds == 0
    assert "auto: foresight so far, since the first simulations are not over" in session.summary()


@pytest.mark.parametrize(
    ("steps", "why"),
    [(0, "no step of an optimizer was seen"), (2, "fewer than 6 steps of an optimizer were seen")],
)
def test_the_summary_says_why_nothing_was_chosen(steps: int, why: str) -> None:
    _, session = run(steps)
    assert f"auto: foresight so far, since {why}" in session.summary()


def test_a_trace_that_the_user_records_comes_first() -> None:
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        with dtr_alloc.record_trace():
            for _ in range(auto._STEPS):
                program.step()
        program.step()
        assert "a trace was recorded before enough steps were seen" in session.summary()


def test_steps_of_a_thread_outside_of_the_scope_do_not_count() -> None:
    other = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        thread = threading.Thread(target=other.step)
        thread.start()
        thread.join()
        assert session._chooser is not None
        assert session._chooser._steps == 0


def test_a_forked_child_ends_though_the_parents_search_held_the_lock(hurried: None) -> None:
    program = Program()
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto") as session:
        search(program, session)
        chooser = session._chooser
        assert chooser is not None
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with chooser._wake:
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            chooser.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        over.set()
        thread.join()


def test_the_thread_ends_with_its_scope(hurried: None) -> None:
    run(auto._STEPS + 1)
    assert "dtr_alloc auto" not in [thread.name for thread in threading.enumerate()]


def test_the_thread_ends_also_where_the_body_raises() -> None:
    program = Program()
    with pytest.raises(KeyError), dtr_alloc.rematerialize(BUDGET, heuristic="auto"):
        for _ in range(auto._STEPS):
            program.step()
        raise KeyError
    assert "dtr_alloc auto" not in [thread.name for thread in threading.enumerate()]


def test_auto_is_no_heuristic_of_a_simulation() -> None:
    with pytest.raises(ValueError, match=r"rematerialize\(\) and allocator\(\) take it"):
        resolve("auto")


def test_a_file_that_is_no_heuristic_is_refused_by_name(tmp_path: Any) -> None:
    for text in ("[1]", "{", "[" * 100_000, '{"cost": 1}', '{"cost_exp": -1}', '{"next_use": 1}'):
        path = tmp_path / "mine.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"mine\.json is no saved heuristic: "):
            Heuristic.load(path)


EXITS = """
import time
from contextlib import nullcontext

import dtr_alloc
import torch
from dtr_alloc.runtime.scope import auto, scope

def again_and_again(chooser, *given):
    while not chooser._closed:
        added(chooser, *given)
    return 1.0

auto._SHARE = 1e9
added, auto.Chooser._added = auto.Chooser._added, again_and_again
scope.closing = lambda chooser: nullcontext()
weights = torch.randn(1 << 14, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.01)
never_left = dtr_alloc.rematerialize(10 << 16, heuristic="auto")
session = never_left.__enter__()
for _ in range(auto._STEPS):
    y = weights
    for _ in range(100):
        y = (y * 0.9).sin()
    y.sum().backward()
    optimizer.step()
while session._chooser.spent_seconds == 0:
    time.sleep(0.01)
time.sleep(0.2)
"""


def test_a_process_that_ends_during_a_simulation_ends_well() -> None:
    """As with the CUDA allocator, whose scope nobody leaves."""
    done = subprocess.run(
        [sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
