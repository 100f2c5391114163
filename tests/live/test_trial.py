"""heuristic="auto": a choice that adds more than what was in force before it is taken back."""

import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import dtr_alloc
from dtr_alloc import Heuristic, _core
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS
from dtr_alloc.runtime.scope import auto
from dtr_alloc.runtime.scope.trial import Added, Choice
from tests.live.test_auto import wait_for_search

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

    def set_budget(self, budget: int) -> None:
        self.core.pool_stats.return_value.budget = budget

    def promise(self, heuristic: Heuristic, added: float) -> None:
        """As a search does that has found it."""
        now = self.chooser._in_force()
        self.chooser._waiting = Choice(heuristic, now, 4, 8, added, 0.4)

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
    assert told.startswith("auto: foresight so far, since ")
    assert told.endswith(
        "orphans_first=True) was tried and added 57% of the operators' time, where foresight had "
        "added 40% of the operators' time"
    )


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


def test_where_steps_differ_only_more_than_the_dearest_is_more() -> None:
    program = Program()
    program.steps(300, 300, 300, 500, 300, 400)
    program.promise(PROMISING, 0.2)
    program.step(450)
    program.steps(*[490] * 5)
    assert program.in_force == PROMISING
    assert program.chooser._trial is None


def test_of_little_nothing_is_judged() -> None:
    program = on_trial(before=0)
    program.steps(*[4] * 8)
    assert program.in_force == PROMISING


def test_another_choice_waits_for_the_end_of_a_trial() -> None:
    program = on_trial(before=400)
    program.promise(SECOND, 0.1)
    program.steps(*[300] * 4)
    assert program.in_force == PROMISING
    program.step(300)
    assert program.in_force == SECOND
    program.steps(*[350] * 5)
    assert program.in_force == PROMISING
    told = program.chooser.told()
    assert "it adds 20% of the operators' time" in told
    assert "lineage') was tried and added 35%" in told


def test_choices_that_are_each_a_little_worse_do_not_follow_one_another() -> None:
    program = Program()
    program.steps(440, 440, 480, 440, 440, 480)
    program.promise(PROMISING, 0.4)
    program.steps(440, *[440, 470, 470, 510, 470])
    assert (program.in_force, program.chooser._trial) == (PROMISING, None)
    program.promise(SECOND, 0.3)
    program.steps(470, *[500] * 5)
    assert program.in_force == PROMISING


def test_what_is_in_force_may_add_more_than_its_limit_by_now() -> None:
    """As where batches grow: what saves a part of that is no worse."""
    program = on_trial(before=100)
    program.steps(*[100] * 5, *[600] * 5)
    program.promise(SECOND, 0.3)
    program.steps(600, *[400] * 5)
    assert (program.in_force, program.chooser._trial) == (SECOND, None)


def test_the_limit_of_one_budget_is_none_at_another() -> None:
    program = on_trial(before=400)
    program.steps(*[390] * 5)
    program.set_budget(BUDGET // 2)
    program.steps(*[390] * 3, 420, 390)
    program.promise(SECOND, 0.3)
    program.step(390)
    program.steps(*[410] * 5)
    assert (program.in_force, program.chooser._trial) == (SECOND, None)


def test_another_budget_ends_a_trial_and_with_it_the_choice() -> None:
    program = on_trial(before=400)
    program.set_budget(BUDGET // 2)
    program.step(900)
    assert program.in_force == PRESETS[DEFAULT]
    assert program.core.follow.call_count == 2


def test_what_failed_at_a_budget_does_not_come_back_with_it() -> None:
    program = on_trial(before=400)
    program.steps(*[570] * 5)
    program.set_budget(BUDGET // 2)
    program.step(600)
    assert "was tried" not in program.chooser.told()
    program.steps(*[600] * 4)
    program.promise(PROMISING, 0.2)
    program.steps(*[500] * 6)
    assert (program.in_force, program.chooser._trial) == (PROMISING, None)
    program.set_budget(BUDGET)
    program.step(500)
    assert program.in_force == PRESETS[DEFAULT]


def test_a_choice_is_compared_with_steps_at_its_own_budget() -> None:
    program = Program()
    program.steps(*[100] * 6)
    program.set_budget(BUDGET // 2)
    program.promise(PROMISING, 0.2)
    program.step(100)  # The budget may have changed in the middle of it.
    assert program.chooser._waiting is None
    program.promise(PROMISING, 0.2)
    program.steps(*[400] * 3)
    assert program.in_force == PRESETS[DEFAULT]
    program.step(400)
    assert program.in_force == PROMISING
    program.steps(*[390] * 5)
    assert (program.in_force, program.chooser._trial) == (PROMISING, None)


def test_the_next_choice_is_compared_with_what_came_back() -> None:
    program = on_trial(before=400)
    program.promise(SECOND, 0.1)
    program.steps(*[900] * 5)
    assert program.in_force == PRESETS[DEFAULT]
    program.steps(*[400] * 5)
    assert program.in_force == SECOND
    assert "was tried" not in program.chooser.told()
    program.steps(*[500] * 5)
    assert program.in_force == PRESETS[DEFAULT]


def test_what_failed_may_be_tried_again_when_the_program_has_changed() -> None:
    program = on_trial(before=400)
    program.steps(*[570] * 5)
    chooser = program.chooser
    chooser._seen, chooser._over, chooser._looking = Mock(), True, True
    chooser._begun, chooser._thread = chooser._asked, Mock()
    program.core.watching_again.return_value = _core.Watch.over
    program.core.seen_again.return_value = (Mock(), [], auto._STEPS, _core.Watch.over)
    program.step(400)
    assert not chooser._worse
    assert chooser._most == math.inf


def test_the_median_is_of_the_last_steps() -> None:
    added = Added(3)
    for end in (0, 100, 150, 900, 950):
        added.step_ended(Mock(remat_cost=end, search_ns=0, move_ns=0, base_cost=end * 10))
    assert (added.whole, added.median(), added.most()) == (True, 0.1, 0.1)
    added.clear()
    assert not added.whole


def test_a_step_without_operators_is_part_of_the_one_before() -> None:
    """As where two optimizers step one after the other."""
    added = Added(2)
    for again, base in ((0, 0), (100, 1000), (300, 1000), (400, 2000)):
        added.step_ended(Mock(remat_cost=again, search_ns=0, move_ns=0, base_cost=base))
    assert added.whole
    assert added.median() == pytest.approx(0.2)
    assert added.most() == pytest.approx(0.3)


def test_a_bad_choice_is_taken_back_in_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = PRESETS["lru"]
    monkeypatch.setattr(auto, "FIRST", (PRESETS[DEFAULT], bad))
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    monkeypatch.setattr(auto.Chooser, "_added", lambda _, __, one, *___: 0.1 if one == bad else 1)
    step_ended = Added.step_ended

    def by_costs_alone(added: Added, stats: Any) -> None:  # Other programs take time of a search.
        costs = Mock(remat_cost=stats.remat_cost, base_cost=stats.base_cost)
        costs.search_ns = costs.move_ns = 0
        step_ended(added, costs)

    monkeypatch.setattr(Added, "step_ended", by_costs_alone)
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
            if step >= auto._STEPS:
                wait_for_search(session)
            seen.append(session.heuristic)
    assert bad in seen
    assert seen[-1] == PRESETS[DEFAULT]
