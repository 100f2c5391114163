"""The heuristic: its presets, its defaults, and the words for a bad value."""

import re
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import (
    ABLATIONS,
    DEFAULT,
    LIVE_PRESETS,
    PRESETS,
    USER_PARAMETERS,
    Heuristic,
    name_of,
    resolve,
    resolve_live,
)

NAN = float("nan")
INF = float("inf")

SAME = {
    "full_size_stale": "dtr_full",
    "full_size": "e_star",
    "eqclass_size_stale": "dtr",
    "local_size_stale": "dtr_local",
    "none_size": "size",
    "none_stale": "lru",
}
"""Ablations that are presets."""


def point(h: Heuristic) -> tuple[str, float, float, float]:
    return (h.neighbourhood, h.cost_exp, h.size_exp, h.staleness_exp)


def test_the_ablations_are_every_cost_with_and_without_size_and_staleness() -> None:
    costs = {
        "full": ("full", 1),
        "eqclass": ("eqclass", 1),
        "local": ("none", 1),
        "none": ("none", 0),
    }
    assert {name: point(heuristic) for name, heuristic in ABLATIONS.items()} == {
        cost + "_size" * size + "_stale" * stale: (neighbourhood, exponent, size, stale)
        for cost, (neighbourhood, exponent) in costs.items()
        for size in (0, 1)
        for stale in (0, 1)
    }
    draws = [name for name, heuristic in ABLATIONS.items() if heuristic.selection == "random"]
    assert draws == ["none"]  # Nothing is left to score.


def test_a_heuristic_has_the_name_of_its_preset_or_ablation() -> None:
    for name, heuristic in PRESETS.items():
        assert name_of(name) == name_of(heuristic) == name
    for name, heuristic in ABLATIONS.items():
        assert name_of(name) == name
        assert name_of(heuristic) == SAME.get(name, name)
    assert name_of(Heuristic(seed=3)) == repr(Heuristic(seed=3))
    assert name_of(ABLATIONS["full"], LIVE_PRESETS) == repr(ABLATIONS["full"])


def test_a_name_resolves_to_its_preset_or_ablation_and_a_heuristic_to_itself() -> None:
    for name, heuristic in (PRESETS | ABLATIONS).items():
        assert resolve(name) is heuristic
    mine = Heuristic(staleness_exp=0.5)
    assert resolve(mine) is mine


def test_the_default_of_a_scope_differs_from_the_papers_by_lineages_and_three_switches() -> None:
    assert PRESETS[DEFAULT] == Heuristic(
        "lineage", next_use=True, orphans_first=True, stepping_stones=True
    )
    with dtr_alloc.measure() as session:
        assert session.heuristic == PRESETS[DEFAULT]


LIVE = "dtr, dtr_full, dtr_local, e_star, foresight, lru, megengine, msps, random, size"
ALL = (
    f"{LIVE.replace('megengine', 'megengine, megengine_published')}; and the ablations full, "
    "eqclass, local and none, with or without _size and _stale behind"
)


@pytest.mark.parametrize("name", ["belady", "", "DTR", "auto"])
@pytest.mark.parametrize(("find", "known"), [(resolve, ALL), (resolve_live, LIVE)])
def test_a_name_that_is_no_preset_is_told_the_known_ones(find: Any, known: str, name: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        find(name)
    assert str(error.value) == f"heuristic {name!r} is not known; there are {known}"


@pytest.mark.parametrize("name", ["megengine_published", *ABLATIONS])
def test_a_scope_takes_no_name_that_is_for_simulations_only(name: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        resolve_live(name)
    assert str(error.value) == (
        f"heuristic {name!r} is for simulations only, as megengine_published is, and the "
        "ablations full, eqclass, local and none, with or without _size and _stale behind; a "
        f"scope takes {LIVE}"
    )


def test_a_scope_takes_each_neighbourhood_but_megengines() -> None:
    kinds = get_args(get_type_hints(Heuristic)["neighbourhood"])
    taken = [kind for kind in kinds if kind != "megengine"]
    for kind in taken:
        assert resolve_live(Heuristic(kind)).neighbourhood == kind
    with pytest.raises(ValueError) as error:  # noqa: PT011
        resolve_live(Heuristic("megengine"))
    assert str(error.value) == (
        "neighbourhood 'megengine' is for simulations only; a scope takes "
        f"{', '.join(taken[:-1])} and {taken[-1]}"
    )


def test_a_scope_takes_all_other_presets() -> None:
    assert {name: resolve_live(name) for name in LIVE.split(", ")} == LIVE_PRESETS
    assert PRESETS.keys() - LIVE_PRESETS.keys() == {"megengine_published"}


@pytest.mark.parametrize("value", [None, 1, ["dtr"]])
@pytest.mark.parametrize("find", [resolve, resolve_live])
def test_what_is_no_name_and_no_heuristic_is_refused(find: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="is neither a name nor a Heuristic"):
        find(value)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"seed": np.int64(7)}, {"seed": 7}),
        ({"cost_exp": np.float32(0.5)}, {"cost_exp": 0.5}),
        ({"size_exp": Fraction(1, 3)}, {"size_exp": 1 / 3}),
        ({"fragmentation": np.uint8(2)}, {"fragmentation": 2}),
    ],
)
def test_a_number_of_any_kind_becomes_pythons(
    given: dict[str, Any], plain: dict[str, Any], tmp_path: Path
) -> None:
    heuristic, same = Heuristic(**given), Heuristic(**plain)
    assert (repr(heuristic), hash(heuristic)) == (repr(same), hash(same))
    assert heuristic == same
    heuristic.save(tmp_path / "mine.json")
    assert Heuristic.load(tmp_path / "mine.json") == same


def test_a_file_that_is_no_heuristic_is_refused_by_name(tmp_path: Path) -> None:
    for text in ("[1]", "{", "[" * 100_000, '{"cost": 1}', '{"cost_exp": -1}', '{"next_use": 1}'):
        path = tmp_path / "mine.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"mine\.json is no saved heuristic: "):
            Heuristic.load(path)


WRONG: tuple[Any, ...] = (1.5, "7", None, True)
SELECTIONS = '"sample", "single", "random", "window"'
KINDS = '"none", "eqclass", "lineage", "full", "ancestors", "megengine"'


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"neighbourhood": "exact"}, f"neighbourhood 'exact' is not one of {KINDS}"),
    ({"neighbourhood": None}, f"neighbourhood None is not one of {KINDS}"),
    ({"selection": "best"}, f"selection 'best' is not one of {SELECTIONS}"),
    *(
        ({"seed": value}, f"seed is {value!r}; it must be from 0 to 2^64 - 1")
        for value in (-1, 2**64)
    ),
    *(
        ({name: value}, f"{name} is {value!r}; it must be a finite number, 0 or more")
        for name in ("cost_exp", "size_exp", "staleness_exp", "fragmentation")
        for value in (-0.5, INF, -INF, NAN)
    ),
    *(
        ({"recompute_penalty": value}, f"recompute_penalty is {value!r}; it must be positive")
        for value in (0, -1.0, INF, NAN)
    ),
]
WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    *(({"seed": value}, f"seed is {value!r}; it must be a whole number") for value in WRONG),
    *(
        ({name: value}, f"{name} is {value!r}; it must be a number")
        for name in ("cost_exp", "fragmentation", "recompute_penalty")
        for value in ("1", None, True)
    ),
    *(
        ({"next_use": value}, f"next_use is {value!r}; it must be True or False")
        for value in (1, "no", None)
    ),
]


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [
        *((ValueError, *wrong) for wrong in WRONG_VALUES),
        *((TypeError, *wrong) for wrong in WRONG_TYPES),
    ],
)
@pytest.mark.parametrize("make", [Heuristic, partial(replace, PRESETS["dtr"])])
def test_a_bad_value_is_named_with_what_would_do(
    make: Any, error: type[Exception], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(error) as raised:
        make(**changes)
    assert str(raised.value) == message


def test_numbers_of_numpy_are_numbers() -> None:
    given = Heuristic(seed=np.int64(7), cost_exp=np.float32(0.5), size_exp=np.int32(2))  # type: ignore[arg-type]
    native = given._native()
    assert (native.seed, native.cost_exp, native.size_exp) == (7, 0.5, 2)


def test_the_least_values_that_are_allowed_are_taken() -> None:
    least = Heuristic(
        cost_exp=0, size_exp=0, staleness_exp=0, fragmentation=0, recompute_penalty=1e-300
    )
    assert isinstance(least._native(), _core.Heuristic)


def test_a_heuristic_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        PRESETS["dtr"].cost_exp = 2  # type: ignore[misc]


def test_the_fields_are_the_listed_parameters_with_their_defaults() -> None:
    listed = [(one.name, one.default) for one in USER_PARAMETERS]
    assert [(field.name, field.default) for field in fields(Heuristic)] == listed
    kept = [one.name for one in _core.SCORE_PARAMETERS if one not in USER_PARAMETERS]
    assert kept == ["epsilon"]


def test_the_types_of_names_are_the_listed_names() -> None:
    types = get_type_hints(Heuristic)
    named = [one for one in USER_PARAMETERS if one.role == "name"]
    assert [one.name for one in named] == ["neighbourhood", "selection"]
    for one in named:
        assert get_args(types[one.name]) == one.names


def test_a_parameter_has_a_sentence_and_a_default_that_its_role_allows() -> None:
    for one in _core.SCORE_PARAMETERS:
        assert re.fullmatch(r"[A-Z].*\.", one.sentence)
        defaults = {"exponent": 1, "weight": 0, "factor": 1, "nanoseconds": 1, "seed": 0}
        defaults["switch"] = False
        if one.role == "name":
            assert one.default in one.names
        else:
            assert one.default == defaults[one.role]


def test_the_native_heuristic_has_every_value() -> None:
    changes: dict[str, Any] = {"seed": 7}
    changes |= {one.name: True for one in USER_PARAMETERS if one.role == "switch"}
    for at, one in enumerate(USER_PARAMETERS):
        changes.setdefault(one.name, one.names[-1] if one.role == "name" else 1.25 + at)
    given = Heuristic(**changes)
    native = given._native(epsilon=3)
    for one in USER_PARAMETERS:
        assert getattr(native, one.name) == getattr(given, one.name)
    assert native.epsilon == 3


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"cost": 1}, TypeError),
        ({"seed": "seven"}, TypeError),
        ({"neighbourhood": "all"}, ValueError),
    ],
)
def test_the_native_heuristic_refuses_what_it_does_not_know(
    given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        _core.Heuristic(**given)
