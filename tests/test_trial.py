"""heuristic="auto": a choice that adds more than what was in force before it is taken back."""

import threading
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import dtr_alloc
from dtr_alloc import Heuristic, _core
from dtr_alloc.runtime import auto
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS
from dtr_alloc.runtime.trial import Added

BUDGET = 10 << 16
PROMISING = Heuristic("ancestors", orphans_first=True)
SECOND = Heuristic("lineage")
WORKED = 1000  # A step's own operators.


class Program:
    """A chooser whose steps add as much as the test says, without tensors."""

    def __init__(self) -> None:
        self.core, self.chooser = Mock(), auto.Chooser("eager", "wall")
        self.core.pool_stats.return_value.budget = self.chooser._budget = BUDGET
        self.core.watched.return_value = (0, _core.Watch.off)
        self.stats = Mock(remat_cost=0, search_ns=0, move_ns=0, base_cost=0)
        self.core.stats.return_value = self.stats

    def step(self, remat: int, search: int = 0, moves: int = 0) -> None:
        self.stats.remat_cost += remat
        self.stats.search_ns += search
        self.stats.move_ns += moves
        self.stats.base_cost += WORKED
        self.chooser.stepped(self.core)

    def steps(self, *each: int) -> None:
        for remat in each:
            self.step(remat)

    def promise(self, heuristic: Heuristic, added: float) -> None:
        """As a search does that has found it."""
        now = self.chooser._in_force()
        self.chooser._waiting = auto.Choice(heuristic, now, BUDGET, 4, 8, added, 0.4)

    @property
    def in_force(self) -> Heuristic:
        return self.chooser._in_force()


def on_trial(before: int) -> Program:
    program = Program()
    program.steps(*[before] * 6)
    program.promise(PROMISING, 0.2)
    program.step(before)
    assert program.in_force == PROMISING
    return program


def test_a_choice_that_adds_more_than_what_was_in_force_is_taken_back() -> None:
    program = on_trial(before=400)
    program.steps(900, *[570] * 3)
    assert program.in_force == PROMISING
    program.step(570)
    assert program.in_force == PRESETS[DEFAULT]
    assert program.core.follow.call_count == 2
    told = program.chooser.told()
    assert told.startswith("auto: foresight so far, since Heuristic(neighbourhood='ancestors'")
    assert told.endswith("added 57% of the operators' time on trial, foresight 40% of the "
                         "operators' time")  # fmt: skip


def test_the_step_in_which_it_was_taken_and_an_odd_batch_do_not_count() -> None:
    program = on_trial(before=400)
    program.steps(9000, 300, 9000, 300, 300)
    assert program.in_force == PROMISING
    assert "by a simulation of 8 candidates" in program.chooser.told()


@pytest.mark.parametrize("part", ["search", "moves"])
def test_choosing_victims_and_moving_pages_count_as_running_again_does(part: str) -> None:
    program = on_trial(before=400)
    for _ in range(5):
        program.step(300, **{part: 200})
    assert program.in_force == PRESETS[DEFAULT]


def test_little_more_is_not_more_and_of_little_nothing_is_judged() -> None:
    program = on_trial(before=400)
    program.steps(*[405] * 8)
    assert program.in_force == PROMISING
    program = on_trial(before=0)
    program.steps(*[4] * 8)
    assert program.in_force == PROMISING


def test_another_choice_waits_for_the_end_of_a_trial() -> None:
    program = on_trial(before=400)
    program.promise(SECOND, 0.1)
    program.steps(*[300] * 5)
    assert program.in_force == PROMISING
    program.step(300)
    assert program.in_force == SECOND
    program.steps(*[350] * 5)
    assert program.in_force == PROMISING
    assert "it adds 20% of the operators' time" in program.chooser.told()


def test_what_failed_is_not_tried_again_at_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def added(_: Any, __: Any, candidate: Heuristic, budget: int, ___: float) -> float:
        tried.append((candidate, budget))
        return 0.1 if candidate == PROMISING else 1.0

    monkeypatch.setattr(auto.Chooser, "_added", added)
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    program = on_trial(before=400)
    program.steps(*[570] * 5)
    program.chooser._try_all(Mock(), 4)
    assert (PROMISING, BUDGET) not in tried
    assert program.chooser._waiting is None
    program.chooser._budget -= 512
    program.chooser._try_all(Mock(), 4)
    assert (PROMISING, BUDGET - 512) in tried


def test_another_budget_ends_a_trial_since_it_compares_nothing_any_more() -> None:
    program = on_trial(before=400)
    program.core.pool_stats.return_value.budget = BUDGET // 2
    program.steps(*[900] * 8)
    assert program.in_force == PROMISING


def test_a_choice_is_compared_with_steps_at_its_own_budget() -> None:
    program = Program()
    program.steps(*[100] * 6)
    program.core.pool_stats.return_value.budget = BUDGET // 2
    program.step(300)  # The budget may have changed in the middle of it.
    program.promise(PROMISING, 0.2)
    program.steps(400, 400, *[390] * 4)
    assert program.in_force == PROMISING
    assert program.chooser._trial is None


def test_the_next_choice_is_compared_with_what_came_back() -> None:
    program = on_trial(before=400)
    program.promise(SECOND, 0.1)
    program.steps(*[900] * 5, 900)
    assert program.in_force == PRESETS[DEFAULT]
    program.step(400)
    assert program.in_force == SECOND
    program.steps(*[500] * 5)
    assert program.in_force == PRESETS[DEFAULT]


def test_the_median_is_of_the_last_steps() -> None:
    added = Added(3)
    for end in (0, 100, 150, 900, 950):
        added.step_ended(Mock(remat_cost=end, search_ns=0, move_ns=0, base_cost=end * 10))
    assert (added.steps, added.whole, added.median()) == (3, True, 0.1)
    added.clear()
    assert (added.steps, added.whole) == (0, False)


def test_a_bad_choice_is_taken_back_in_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = PRESETS["lru"]
    monkeypatch.setattr(auto, "CANDIDATES", (PRESETS[DEFAULT], bad))
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    monkeypatch.setattr(auto.Chooser, "_added", lambda _, __, one, *___: 0.1 if one == bad else 1)
    torch.manual_seed(0)
    weights = torch.randn(1 << 14, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.01)
    seen = []
    with dtr_alloc.rematerialize(BUDGET, heuristic="auto", clock="logical") as session:
        for step in range(16):
            y = weights
            for _ in range(16):
                y = (y * 0.9).sin()
            y.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            while step >= auto._STEPS and session._chooser and not session._chooser.idle():
                threading.Event().wait(0.01)
            seen.append(session.heuristic)
    assert bad in seen
    assert seen[-1] == PRESETS[DEFAULT]
