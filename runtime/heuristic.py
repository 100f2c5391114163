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

from dataclasses import dataclass
from typing import Literal

from dtr_alloc import _core


@dataclass(frozen=True)
class Heuristic:
    """A point in the family of scores.

    Args:
        neighbourhood: what n counts: ``"none"``, or ``"eqclass"``, the paper's union-find
            approximation of all that must be recomputed besides the tensor itself.
        cost_exp, size_exp, staleness_exp: exponents; 0 drops the term.
        fragmentation: weight of the free bytes next to the tensor's block, per byte of its own
            size.
        recompute_penalty: factor for each time the tensor has been recomputed; 1 for none.
        selection: ``"sample"`` looks at about sqrt(candidates), at least 32, and passes over
            tensors below a hundredth of the mean size (appendix E.2); ``"single"`` looks at all.

    Raises:
        ValueError: a name that is not known, a number that is not finite, or a penalty that is not
            positive.

    Example:
        >>> Heuristic(staleness_exp=0.5).size_exp
        1.0
    """

    neighbourhood: Literal["none", "eqclass"] = "eqclass"
    cost_exp: float = 1.0
    size_exp: float = 1.0
    staleness_exp: float = 1.0
    fragmentation: float = 0.0
    recompute_penalty: float = 1.0
    selection: Literal["sample", "single"] = "sample"

    def __post_init__(self) -> None:
        if self.neighbourhood not in ("none", "eqclass"):
            raise ValueError(f'neighbourhood {self.neighbourhood!r} is not "none" or "eqclass"')
        if self.selection not in ("sample", "single"):
            raise ValueError(f'selection {self.selection!r} is not "sample" or "single"')
        for name in ("cost_exp", "size_exp", "staleness_exp", "fragmentation"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}; it must be a finite number, 0 or more")
        penalty = self.recompute_penalty
        if not 0 < penalty < float("inf"):
            raise ValueError(f"recompute_penalty is {penalty!r}; it must be positive")

    def _native(self) -> _core.Heuristic:
        return _core.Heuristic(
            neighbourhood=getattr(_core.Neighbourhood, self.neighbourhood),
            cost_exp=self.cost_exp,
            size_exp=self.size_exp,
            staleness_exp=self.staleness_exp,
            fragmentation=self.fragmentation,
            recompute_penalty=self.recompute_penalty,
            selection=getattr(_core.Selection, self.selection),
        )


PRESETS: dict[str, Heuristic] = {
    "dtr": Heuristic(),
    "dtr_local": Heuristic(neighbourhood="none"),
    "lru": Heuristic(neighbourhood="none", cost_exp=0, size_exp=0),
    "size": Heuristic(neighbourhood="none", cost_exp=0, staleness_exp=0),
}
"""The named heuristics: h_DTR with evicted classes, h_local, least recently used, largest first."""


def resolve(heuristic: str | Heuristic) -> Heuristic:
    """The heuristic of a preset's name, or the one given.

    Raises:
        ValueError: no preset has that name.
    """
    if isinstance(heuristic, Heuristic):
        return heuristic
    if heuristic not in PRESETS:
        known = ", ".join(sorted(PRESETS))
        raise ValueError(f"heuristic {heuristic!r} is not known; there are {known}")
    return PRESETS[heuristic]
