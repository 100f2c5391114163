"""What ``heuristic="auto"`` tries: settings that were best somewhere, then changes of the best.

No setting is best for every program, and at a tight budget a small change of one may save a fifth
of what is recomputed: another tensor goes first, and others after it. By how much cannot be said
but by trying. So first come settings that differ much. Then one parameter of the best so far is
changed at a time, as in runtime/bounding/search.py; here only what is better is kept.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS, Heuristic

FIRST: tuple[Heuristic, ...] = (
    PRESETS[DEFAULT],
    replace(PRESETS[DEFAULT], staleness_exp=0.5),
    Heuristic("ancestors", orphans_first=True),
    Heuristic(staleness_exp=0.5, orphans_first=True),
    Heuristic("lineage"),
    Heuristic("lineage", staleness_exp=0.5, next_use=True),
    Heuristic(orphans_first=True),
    Heuristic(staleness_exp=0.5, next_use=True),
)
"""The default; then each that saved most, beside those before it, on our own traces, chosen among
36. There were no stepping stones then; the first two have them since."""

_EXPONENTS = ("cost_exp", "size_exp", "staleness_exp")
_SWITCHES = ("next_use", "orphans_first", "stepping_stones")
_LEAST, _MOST, _USUAL = 0.2, 3.0, 0.25  # Of exponents, and by how much they are changed.


def changed(heuristic: Heuristic, draw: random.Random) -> Heuristic:
    """The same but for one parameter; of three changes two are of an exponent.

    Example:
        >>> changed(Heuristic("lineage"), random.Random(0))
        Heuristic()
    """
    what = draw.choice((*_EXPONENTS, *_EXPONENTS, "neighbourhood", "switch", "switch"))
    value: Any
    if what in _EXPONENTS:
        value = getattr(heuristic, what) + draw.gauss(0, _USUAL)
        value = round(min(max(value, _LEAST), _MOST), 2)
    elif what == "switch":
        what = draw.choice(_SWITCHES)
        value = not getattr(heuristic, what)
    else:
        value = draw.choice(
            [one for one in ("lineage", "ancestors", "eqclass") if one != heuristic.neighbourhood]
        )
    return replace(heuristic, **{what: value})
