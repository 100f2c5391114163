"""Orphans: what the program let go, and nothing wanted rests on, goes first."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import Heuristic
from tests.support.trace_lines import Line, call, evicted, release

ELEMENTS = 1 << 14  # 64 KiB.
BYTES = 4 * ELEMENTS
ORPHANS_FIRST = Heuristic(orphans_first=True)
BY_COST = Heuristic("none", staleness_exp=0)
FIRST = replace(BY_COST, orphans_first=True)


def evicted_of_two(log: Path, heuristic: Heuristic, *parts: list[Line]) -> list[int]:
    """In two blocks of 8 bytes; what is let go stays."""
    return evicted(log, 16, heuristic, *parts, policy="ignore")


def test_what_was_let_go_goes_before_what_is_held_however_dear(log: Path) -> None:
    program = [call("", "dear", time=1000), call("", "held"), release("dear"), call("", "new")]
    assert evicted_of_two(log, BY_COST, *program) == [1]
    assert evicted_of_two(log, FIRST, *program) == [0]


def test_what_a_missing_value_of_the_program_rests_on_is_no_orphan(log: Path) -> None:
    parent, child = call("", "parent", time=1000), call("parent", "child")
    more = [call("", "other"), call("", "last")]
    there = [parent, child, release("parent"), *more]
    assert evicted_of_two(log, FIRST, *there)[0] == 0
    missing = [parent, child, more[0], release("parent"), more[1]]
    assert evicted_of_two(log, FIRST, *missing) == [1, 2]


def test_what_nobody_wants_any_more_wants_nothing(log: Path) -> None:
    parent, child = call("", "parent", time=1000), call("parent", "child")
    dropped = [parent, child, call("", "other"), release("parent", "child"), call("", "last")]
    assert evicted_of_two(log, FIRST, *dropped) == [1, 0]


def test_of_several_orphans_the_largest_goes(log: Path) -> None:
    made = [call("", "small", memory=4), call("", "large"), call("", "little", memory=4)]
    dropped = [*made, release("small", "large", "little"), call("", "new", memory=4)]
    assert evicted_of_two(log, FIRST, *dropped) == [1]


def test_of_very_many_orphans_the_last_are_looked_at(log: Path) -> None:
    """Each eviction would else look at all that a long recomputation left behind."""
    small = [call("", f"s{n}", memory=4) for n in range(256)]
    names = [f"s{n}" for n in range(256)]
    program = [call("", "large"), release("large"), *small, release(*names)]
    new = call("", "new", memory=4)
    assert evicted(log, 8 + 4 * 256, FIRST, *program, new, policy="ignore") == [256]


def test_an_orphan_goes_before_a_window_of_neighbours(log: Path) -> None:
    block = 1 << 16
    program = [
        call("", "dear", time=1000, memory=block),
        call("dear", "held", memory=block),
        release("dear"),
        call("", "new", memory=block),
    ]
    for orphans_first, victim in ((False, 1), (True, 0)):
        heuristic = replace(BY_COST, selection="window", orphans_first=orphans_first)
        found = evicted(log, 2 * block, heuristic, *program, policy="ignore", mode="pool")
        assert found == [victim]


def chain(x: Tensor, length: int) -> list[Tensor]:
    made = [x + 1]
    for _ in range(length):
        made.append(made[-1] * 2 - 1)
    return made


def test_results_and_books_are_right() -> None:
    x = torch.arange(ELEMENTS, dtype=torch.float32)
    expected = chain(x, 12)
    with dtr_alloc.rematerialize(6 * BYTES, heuristic=ORPHANS_FIRST) as session:
        made = chain(x, 12)
        for kept in (3, 9, 0, 12):
            assert torch.equal(made[kept], expected[kept])
            session.check()
        del made[1:8]
        session.check()
        assert torch.equal(made[-1], expected[-1])
        session.check()
        made.clear()
        session.check()
