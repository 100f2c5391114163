"""Which tensor goes first: one parametric score, and the presets that name its known points.

The lowest score is evicted first::

    score = (c + n)^cost_exp * recompute_penalty^(times recomputed)
            / ((size + fragmentation * free neighbours)^size_exp * staleness^staleness_exp)

c is the cost of the tensor's own operator, n that of its evicted neighbourhood, staleness the time
since its last use.
Source: "Dynamic Tensor Rematerialization", section 4.1 and appendix D; the penalty and the free
neighbours are MegEngine's.
"""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from dtr_alloc import _core

Scorer = Literal["auto", "host", "device"]


def native_scorer(scorer: str) -> _core.ScorerPlace:
    """The engine's own. Raises ValueError where the name is not known."""
    insist_one_of("scorer", scorer, get_args(Scorer))
    return cast(_core.ScorerPlace, getattr(_core.ScorerPlace, scorer))


_COSTS: tuple[tuple[str, Literal["full", "eqclass", "none"], int], ...] = (
    ("full", "full", 1),
    ("eqclass", "eqclass", 1),
    ("local", "none", 1),
    ("none", "none", 0),
)  # Of ABLATIONS: name, neighbourhood, exponent.


USER_PARAMETERS = tuple(one for one in _core.SCORE_PARAMETERS if one.role != "nanoseconds")
"""The parameters that `Heuristic` has, as listed in runtime/csrc/policy/score.h."""


def insist_switch(name: str, value: object) -> None:
    """Raises TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be True or False")


def insist_whole(name: str, value: object) -> None:
    """Raises TypeError unless it is an integer, NumPy's included."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")


def insist_name(name: str, value: object, known: object) -> None:
    """Raises ValueError unless it is one of those of a Literal."""
    *others, last = (f'"{one}"' for one in get_args(known))
    if value not in get_args(known):
        raise ValueError(f"{name} {value!r} is not {', '.join(others)} or {last}")


def insist_one_of(name: str, value: object, known: Collection[str]) -> None:
    """Raises ValueError unless it is."""
    if value not in known:
        names = ", ".join(f'"{one}"' for one in known)
        raise ValueError(f"{name} {value!r} is not one of {names}")


def insist_number(name: str, value: object) -> None:
    """Raises TypeError unless it is a real number, or ValueError where no float is as large."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    insist_float(name, value)


def insist_float(name: str, value: numbers.Real) -> None:
    """Raises ValueError where a number is above the largest float, as an integer may be."""
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{name} is above the largest float: give a smaller number") from None


def _check(parameter: _core.ScoreParameter, value: Any) -> None:
    """Raises TypeError where the parameter cannot have a value of this type, or ValueError where it
    cannot have this value."""
    name = parameter.name
    if parameter.role == "name":
        insist_one_of(name, value, parameter.names)
    elif parameter.role == "switch":
        insist_switch(name, value)
    elif parameter.role == "seed":
        insist_whole(name, value)
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} is {value!r}; it must be from 0 to 2^64 - 1")
    else:
        insist_number(name, value)
        if parameter.role == "factor" and not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value!r}; it must be positive")
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} is {value!r}; it must be a finite number, 0 or more")


@dataclass(frozen=True, repr=False)
class Heuristic:
    """A point in the family of scores.

    Args:
        neighbourhood: what n counts of what must be recomputed besides the tensor itself:
            ``"none"`` of it; ``"eqclass"``, the paper's approximation by a union-find; ``"full"``,
            exactly (its e*; slow, for studies); ``"ancestors"``, exactly what the tensor itself
            rests on; ``"lineage"``, the nearest 48 of it, more the more they are, and four times if
            there are more than 48 (docs/scoring.md); ``"megengine"``, MegEngine's sets as
            published, without c, for comparison in simulations: no scope takes it.
        cost_exp, size_exp, staleness_exp: exponents; 0 drops the term.
        fragmentation: weight of the free bytes next to the tensor's block, per byte of its own
            size.
        recompute_penalty: factor for each time the tensor has been recomputed; 1 for none.
        next_use: where a step does what one before it did, staleness is the time until the tensor
            is needed next, in the time that the step before took. What is not needed any more goes
            first. Elsewhere it is the time since the last use, as without.
        orphans_first: what the program has let go goes before everything else, if no missing value
            that is still wanted was made from it.
        stepping_stones: what the program has let go stays, as a candidate, while the program holds
            something much larger that is much cheaper to make from it. From the first eviction on;
            in a simulation with policy ``"eager"`` alone.
        selection: ``"single"`` looks at all candidates; ``"sample"`` too while that takes less
            than a fiftieth of the operators' time, then at about sqrt(candidates), at least 32,
            and passes over tensors below a hundredth of the mean size (appendix E.2);
            ``"window"`` evicts neighbours, so that one hole holds what is asked for; ``"random"``
            takes any and has no score.
        seed: of what ``"sample"`` and ``"random"`` draw.

    Raises:
        TypeError: a value of a wrong type, such as a text for a number.
        ValueError: a name that is not known, a number that is not finite, or a penalty that is not
            positive.

    Example:
        >>> Heuristic(staleness_exp=0.5).size_exp
        1.0
    """

    neighbourhood: Literal["none", "eqclass", "lineage", "full", "ancestors", "megengine"] = (
        "eqclass"
    )
    cost_exp: float = 1.0
    size_exp: float = 1.0
    staleness_exp: float = 1.0
    fragmentation: float = 0.0
    recompute_penalty: float = 1.0
    next_use: bool = False
    orphans_first: bool = False
    stepping_stones: bool = False
    selection: Literal["sample", "single", "random", "window"] = "sample"
    seed: int = 0

    def __post_init__(self) -> None:
        for parameter in USER_PARAMETERS:
            value = getattr(self, parameter.name)
            _check(parameter, value)
            if type(value) in (str, bool, int, float):
                continue
            if isinstance(value, numbers.Real):  # NumPy's, or a fraction: JSON has none.
                plain: Any = int if isinstance(value, numbers.Integral) else float
                object.__setattr__(self, parameter.name, plain(value))
                _check(parameter, plain(value))  # It may have been rounded to 0.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON: what differs from ``Heuristic()``.

        Raises:
            OSError: the file cannot be written.

        Example:
            >>> import tempfile, pathlib
            >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.json")
            >>> Heuristic(staleness_exp=0.5).save(path)
            >>> Heuristic.load(path)
            Heuristic(staleness_exp=0.5)
        """
        Path(path).write_text(json.dumps(self._changes(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Heuristic:
        """What `save` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not what `save` writes; the text names the file.
        """
        try:
            return cls(**json.loads(Path(path).read_text()))
        except (ValueError, TypeError, RecursionError) as error:  # The last: of deep JSON.
            raise ValueError(f"{os.fspath(path)} is no saved heuristic: {error}") from error

    def _changes(self) -> dict[str, Any]:
        """What differs from the default."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if getattr(self, one.name) != one.default
        }

    def __repr__(self) -> str:
        changes = (f"{name}={value!r}" for name, value in self._changes().items())
        return f"Heuristic({', '.join(changes)})"

    def _native(self, epsilon: int = 1) -> _core.Heuristic:
        given = {parameter.name: getattr(self, parameter.name) for parameter in USER_PARAMETERS}
        return _core.Heuristic(**given, epsilon=epsilon)


DEFAULT = "foresight"
"""That of a scope, and of an allocator."""

PRESETS: dict[str, Heuristic] = {
    "foresight": Heuristic("lineage", next_use=True, orphans_first=True, stepping_stones=True),
    "dtr": Heuristic(),
    "dtr_full": Heuristic(neighbourhood="full"),
    "dtr_local": Heuristic(neighbourhood="none"),
    "lru": Heuristic(neighbourhood="none", cost_exp=0, size_exp=0),
    "size": Heuristic(neighbourhood="none", cost_exp=0, staleness_exp=0),
    "msps": Heuristic(neighbourhood="ancestors", staleness_exp=0),
    "e_star": Heuristic(neighbourhood="full", staleness_exp=0),
    "megengine": Heuristic(fragmentation=1, recompute_penalty=1.0001),
    "megengine_published": Heuristic(neighbourhood="megengine", fragmentation=1),
    "random": Heuristic(neighbourhood="none", selection="random"),
}
"""The named heuristics; docs/heuristics.md has the score and the source of each."""

LIVE_PRESETS = {name: one for name, one in PRESETS.items() if one.neighbourhood != "megengine"}
"""Those that a scope takes."""

ABLATIONS: dict[str, Heuristic] = {
    "_".join([cost, *["size"][:size], *["stale"][:stale]]): Heuristic(
        neighbourhood=neighbourhood,
        cost_exp=cost_exp,
        size_exp=size,
        staleness_exp=stale,
        selection="random" if not (cost_exp or size or stale) else "sample",
    )
    for cost, neighbourhood, cost_exp in _COSTS
    for size in (1, 0)
    for stale in (1, 0)
}
"""The 16 of appendix D.1: cost e*, by evicted classes, local or none, each with and without size
and staleness, for simulations. Names say what is in the score: ``eqclass_size_stale`` is ``dtr``,
``full_size`` ``e_star``, ``none_size`` is ``size``, and ``none``, without any term, takes any."""


def heuristic_of(native: _core.Heuristic) -> Heuristic:
    """What the engine follows."""
    return Heuristic(**{one.name: getattr(native, one.name) for one in USER_PARAMETERS})


def resolve(heuristic: str | Heuristic) -> Heuristic:
    """The heuristic of the name of a preset or an ablation, or the one given, for a simulation.
    Raises TypeError where it is neither a name nor a heuristic, or ValueError where there is none
    of that name."""
    if isinstance(heuristic, Heuristic):
        return heuristic
    if not isinstance(heuristic, str):
        raise TypeError(f"heuristic {heuristic!r} is neither a name nor a Heuristic")
    found = (PRESETS | ABLATIONS).get(heuristic)
    if found is None:
        raise ValueError(
            f"heuristic {heuristic!r} is not known; there are {_names(PRESETS)}; and the ablations "
            "full, eqclass, local and none, with or without _size and _stale behind"
        )
    return found


def resolve_live(heuristic: str | Heuristic) -> Heuristic:
    """That of a scope, which takes neither ablations nor MegEngine's sets.

    Raises:
        TypeError: it is neither a name nor a heuristic.
        ValueError: there is none of that name, or it is for simulations only.

    Example:
        >>> resolve_live("size").cost_exp
        0
    """
    if isinstance(heuristic, str) and heuristic not in LIVE_PRESETS:
        if heuristic in PRESETS | ABLATIONS:
            raise ValueError(
                f"heuristic {heuristic!r} is for simulations only, as megengine_published is, and "
                "the ablations full, eqclass, local and none, with or without _size and _stale "
                f"behind; a scope takes {_names(LIVE_PRESETS)}"
            )
        raise ValueError(f"heuristic {heuristic!r} is not known; there are {_names(LIVE_PRESETS)}")
    chosen = resolve(heuristic)
    if chosen.neighbourhood == "megengine":
        raise ValueError(
            "neighbourhood 'megengine' is for simulations only; a scope takes none, eqclass, "
            "lineage, full and ancestors"
        )
    return chosen


def _names(heuristics: Mapping[str, Heuristic]) -> str:
    return ", ".join(sorted(heuristics))


def name_of(
    heuristic: str | Heuristic, named: Mapping[str, Heuristic] = PRESETS | ABLATIONS
) -> str:
    """Its name, where it is one of those that have one; else how to write it."""
    if isinstance(heuristic, str):
        return heuristic
    return next((name for name, known in named.items() if known == heuristic), repr(heuristic))
