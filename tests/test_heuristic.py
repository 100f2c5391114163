"""The heuristic: its presets, its defaults, and the words for a bad value."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import PRESETS, Heuristic, resolve

native: Any = _core

NAN = float("nan")
INF = float("inf")


def test_the_presets_are_the_known_points_of_the_score() -> None:
    def point(h: Heuristic) -> tuple[str, float, float, float]:
        return (h.neighbourhood, h.cost_exp, h.size_exp, h.staleness_exp)

    assert {name: point(heuristic) for name, heuristic in PRESETS.items()} == {
        "dtr": ("eqclass", 1, 1, 1),
        "dtr_local": ("none", 1, 1, 1),
        "lru": ("none", 0, 0, 1),
        "size": ("none", 0, 1, 0),
    }
    for heuristic in PRESETS.values():
        assert (heuristic.fragmentation, heuristic.recompute_penalty) == (0, 1)
        assert heuristic.selection == "sample"


def test_a_name_resolves_to_its_preset() -> None:
    for name, heuristic in PRESETS.items():
        assert resolve(name) is heuristic


def test_a_heuristic_resolves_to_itself() -> None:
    mine = Heuristic(staleness_exp=0.5)
    assert resolve(mine) is mine


def test_the_default_is_the_preset_dtr() -> None:
    assert Heuristic() == PRESETS["dtr"]


@pytest.mark.parametrize("name", ["msps", "", "DTR"])
def test_a_name_that_is_no_preset_is_told_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        resolve(name)
    assert str(error.value) == (
        f"heuristic {name!r} is not known; there are dtr, dtr_local, lru, size"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighbourhood": "full"}, 'neighbourhood \'full\' is not "none" or "eqclass"'),
        ({"neighbourhood": None}, 'neighbourhood None is not "none" or "eqclass"'),
        ({"selection": "window"}, 'selection \'window\' is not "sample" or "single"'),
        *(
            ({name: value}, f"{name} is {value!r}; it must be a finite number, 0 or more")
            for name in ("cost_exp", "size_exp", "staleness_exp", "fragmentation")
            for value in (-0.5, INF, -INF, NAN)
        ),
        *(
            ({"recompute_penalty": value}, f"recompute_penalty is {value!r}; it must be positive")
            for value in (0, -1.0, NAN)
        ),
    ],
)
def test_a_bad_value_is_named_with_what_would_do(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Heuristic(**changes)
    assert str(error.value) == message
    with pytest.raises(ValueError) as error:  # noqa: PT011
        replace(PRESETS["dtr"], **changes)
    assert str(error.value) == message


def test_an_infinite_penalty_is_refused() -> None:
    with pytest.raises(ValueError, match="recompute_penalty is inf"):
        Heuristic(recompute_penalty=INF)


def test_the_least_values_that_are_allowed_are_taken() -> None:
    least = Heuristic(
        cost_exp=0, size_exp=0, staleness_exp=0, fragmentation=0, recompute_penalty=1e-300
    )
    assert isinstance(least._native(), native.Heuristic)


def test_a_heuristic_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        PRESETS["dtr"].cost_exp = 2  # type: ignore[misc]


FLAT = Heuristic("none", cost_exp=0, size_exp=0, staleness_exp=0, selection="single")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "b"),  # A tie: the last.
        ({"cost_exp": 1}, "a"),  # 40 and 60
        ({"cost_exp": 1, "neighbourhood": "eqclass"}, "b"),  # 40 + 100 and 60
        ({"size_exp": 1}, "a"),  # 2 blocks and 1
        ({"size_exp": 1, "fragmentation": 1}, "b"),  # 2 + 1 and 1 + 1 + 11
        ({"staleness_exp": 1}, "a"),
        ({"recompute_penalty": 2}, "a"),  # b has been recomputed once.
    ],
)
def test_every_field_reaches_the_engine(changes: dict[str, Any], expected: str) -> None:
    run = native.DryRun(16 * 512, replace(FLAT, **changes)._native())
    c = run.constant(512, 7)
    (a,) = run.call(1, 40, [c], [], [2 * 512])
    (missing,) = run.call(2, 100, [a], [], [512])
    (b,) = run.call(3, 60, [c], [], [512])
    run.evict(b)
    run.read(b)
    run.evict(missing)
    run.take_evicted()
    run.constant(12 * 512, 8)
    assert run.take_evicted()[0] == {"a": a, "b": b}[expected]
