"""heuristic="auto": how candidates are searched, offered, and searched anew after a failure."""

import atexit
import math
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dtr_alloc import Heuristic, _core
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS
from dtr_alloc.runtime.scope import auto
from dtr_alloc.runtime.scope.candidates import FIRST
from dtr_alloc.runtime.scope.trial import Added
from tests.live.test_trial import BUDGET, PROMISING, SECOND, Program, on_trial


def test_what_failed_is_not_tried_again_at_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def added(_: Any, __: Any, candidate: Heuristic, budget: int, ___: float) -> float:
        tried.append((candidate, budget))
        return 0.1 if candidate == PROMISING else 1.0

    monkeypatch.setattr(auto.Chooser, "_added", added)
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    program = on_trial(before=400)
    program.steps(*[570] * 5)
    seen = program.chooser._seen = Mock(last=4)
    program.chooser._try_all(Mock(), seen)
    assert (PROMISING, BUDGET) not in tried
    assert program.chooser._waiting is None
    assert "no other candidate would add less; Heuristic(" in program.chooser.told()
    with program.chooser._wake:
        program.chooser._begin_anew(BUDGET - 512)
    program.chooser._try_all(Mock(), seen)
    assert (PROMISING, BUDGET - 512) in tried


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> dict[Heuristic, float]:
    """What a simulation says that each candidate adds, others 1; but for what is cut, because it
    adds more than the best so far."""
    each: dict[Heuristic, float] = {}

    def added(_: Any, __: Any, candidate: Heuristic, ___: int, enough: float) -> float:
        adds = each.get(candidate, 1.0)
        return adds if adds <= enough else math.inf

    monkeypatch.setattr(auto.Chooser, "_added", added)
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    return each


def search(program: Program) -> None:
    """As the thread does, once."""
    program.chooser._seen = program.chooser._seen or Mock(last=4)
    assert program.chooser._try_all(Mock(), program.chooser._seen)


def fail(program: Program) -> Heuristic:
    """What waits is taken, and fails. Returns it."""
    program.steps(*[400] * 6)
    tried = program.in_force
    program.steps(*[570] * 5)
    assert program.in_force == PRESETS[DEFAULT]
    return tried


def test_after_a_failure_what_was_cut_beside_it_is_looked_for(
    promises: dict[Heuristic, float],
) -> None:
    promises |= {FIRST[0]: 0.44, PROMISING: 0.3, SECOND: 0.35}
    program = Program()
    search(program)
    assert fail(program) == PROMISING
    assert not program.chooser.idle()
    assert "since the next simulations are not over; Heuristic(" in program.chooser.told()
    search(program)
    program.steps(*[400] * 6)
    assert program.in_force == SECOND


def test_what_waits_when_a_trial_fails_has_its_trial_before_another_search(
    promises: dict[Heuristic, float],
) -> None:
    promises |= {FIRST[0]: 0.44, PROMISING: 0.3, SECOND: 0.1}
    program = on_trial(before=400)
    search(program)
    asked = program.chooser._asked
    program.steps(*[570] * 5)
    assert program.chooser._asked == asked
    program.steps(*[400] * 5)
    assert program.in_force == SECOND


def test_after_three_failures_nothing_else_is_tried(promises: dict[Heuristic, float]) -> None:
    promises |= {FIRST[0]: 0.44, PROMISING: 0.1, SECOND: 0.2, FIRST[1]: 0.3, FIRST[3]: 0.35}
    program = Program()
    failed = []
    for _ in range(3):
        search(program)
        failed.append(fail(program))
    assert failed == [PROMISING, SECOND, FIRST[1]]
    search(program)
    program.steps(*[400] * 8)
    assert program.in_force == PRESETS[DEFAULT]
    assert program.chooser._patience == 2 * auto._AGAIN
    assert "since what simulations prefer adds more in fact; Heuris" in program.chooser.told()


def test_a_trial_that_fails_ends_the_search_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, tried = on_trial(before=400), []

    def added(_: Any, __: Any, candidate: Heuristic, *___: Any) -> float:
        tried.append(candidate)
        if len(tried) == 2:
            program.steps(*[570] * 5)
        return 1.0

    monkeypatch.setattr(auto.Chooser, "_added", added)
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    search(program)
    assert len(tried) == 2
    search(program)
    assert PROMISING not in tried[2:]


def another_budget(chooser: auto.Chooser) -> None:
    with chooser._wake:
        chooser._begin_anew(chooser._budget + 512)


def other_steps(chooser: auto.Chooser) -> None:
    with chooser._wake:
        chooser._seen = Mock(last=12)
        chooser._ask()


@pytest.mark.parametrize("comes", [another_budget, other_steps])
def test_a_search_ends_when_its_steps_or_its_budget_are_no_longer_of_now(
    monkeypatch: pytest.MonkeyPatch, comes: Callable[[auto.Chooser], None]
) -> None:
    chooser = Program().chooser
    tried = []

    def added(_: Any, __: Any, candidate: Heuristic, *___: Any) -> float:
        tried.append(candidate)
        comes(chooser)
        return 0.5 / len(tried)

    monkeypatch.setattr(auto.Chooser, "_added", added)
    monkeypatch.setattr(auto, "_SHARE", 1e9)
    seen = chooser._seen = Mock(last=4)
    assert chooser._try_all(Mock(), seen)
    assert len(tried) == 1


def test_what_was_found_by_another_search_is_not_offered() -> None:
    chooser = Program().chooser
    found = {FIRST[0]: 0.5, SECOND: 0.1}
    chooser._offer(SECOND, chooser._asked - 1, 4, found)
    assert chooser._waiting is None
    chooser._offer(SECOND, chooser._asked, 4, found)
    assert chooser._waiting is not None


def test_what_waits_gives_way_only_to_what_is_better_by_some() -> None:
    chooser = Program().chooser
    found = {FIRST[0]: 0.5, PROMISING: 0.1, SECOND: 0.099, FIRST[1]: 0.09}
    for heuristic, waits in ((PROMISING, PROMISING), (SECOND, PROMISING), (FIRST[1], FIRST[1])):
        chooser._offer(heuristic, chooser._asked, 4, found)
        assert chooser._waiting is not None
        assert chooser._waiting.heuristic == waits


def replay(own: int, search: tuple[int, int] = (0, 0), moves: tuple[int, int] = (0, 0)) -> Any:
    """Steps whose operators take 1,000, and with `own` more all; 100 and 300 of them run again."""

    def simulator(base: int, again: int, searched: int, moved: int) -> Any:
        result = Mock(status="ok", base_compute=base, total_compute=base + again)
        result.search_ns, result.move_ns = searched, moved
        return Mock(baseline=Mock(compute=base), run=Mock(return_value=result))

    earlier = simulator(1000, 100, search[0], moves[0])
    return Mock(earlier=earlier, all=simulator(1000 + own, 300, search[1], moves[1]))


def test_what_a_candidate_adds_is_of_the_last_steps() -> None:
    chooser = auto.Chooser("eager", "wall")
    assert chooser._added(replay(1000), FIRST[0], BUDGET, math.inf) == pytest.approx(0.2)
    assert chooser._added(replay(1000, (0, 200)), FIRST[0], BUDGET, 0.4) == pytest.approx(0.3)
    moving = replay(1000, moves=(200, 250))
    assert chooser._added(moving, FIRST[0], BUDGET, 0.4) == pytest.approx(0.25)


def test_an_interruption_in_the_shorter_run_makes_no_candidate_better() -> None:
    chooser = auto.Chooser("eager", "wall")
    assert chooser._added(replay(1000, (10**9, 0)), FIRST[0], BUDGET, 0.4) == pytest.approx(0.2)


def test_where_no_step_is_left_nothing_is_known() -> None:
    assert auto.Chooser("eager", "wall")._added(replay(0), FIRST[0], BUDGET, 0.4) == math.inf


def test_costs_that_are_bytes_are_not_added_to_the_hosts_times() -> None:
    added = Added(1, timed=False)
    for end in (0, 100):
        added.step_ended(Mock(remat_cost=end, search_ns=end, move_ns=end, base_cost=end * 10))
    assert added.median() == 0.1
    chooser = auto.Chooser("eager", "logical")
    assert chooser._rules.move_ns is None
    both = replay(1000, search=(0, 200), moves=(200, 250))
    assert chooser._added(both, FIRST[0], BUDGET, 0.4) == pytest.approx(0.2)


def test_without_a_thread_a_program_goes_on_and_the_summary_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    program = Program()
    program.core.watched.return_value = (auto._STEPS, _core.Watch.over)
    program.core.seen.return_value = ([], [], auto._STEPS, _core.Watch.over)
    program.steps(*[400] * 3)
    program.chooser.close()
    assert program.core.seen.call_count == 1
    assert "there is no thread to simulate: can't start new thread" in program.chooser.told()


def test_an_interrupted_end_of_a_scope_waits_for_the_thread_when_the_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the thread would come back from C++ when Python has gone."""
    program = Program()
    unregistered: list[object] = []
    program.chooser._thread = Mock()
    program.chooser._thread.join.side_effect = KeyboardInterrupt
    monkeypatch.setattr(atexit, "unregister", unregistered.append)
    with pytest.raises(KeyboardInterrupt):
        program.chooser.close()
    assert not unregistered
