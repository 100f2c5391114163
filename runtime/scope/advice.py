"""Which budget would do: what an error adds when a scope's budget turned out too small.

The request that failed only tells what it needs itself, and the next one may need more. But the
first steps of every scope are recorded, and so is what `measure` runs. The simulator takes the live
runtime's decisions (mode ``pool``), so the smallest budget in which those steps run is found by
halving, without the program. What an optimizer made at the end of the last step is
there from the next one's begin on: the steps are simulated with that as well. 3 % are added,
because live decisions follow times, which are measured anew. Of several steps more is known than of
one (gradients that are kept, shapes that vary); before a whole one nobody can know, and the text
says so. It also says so where the whole ones would have run: then the batch is an odd one, of which
only the part until the request is known.

A search takes up to two seconds, once for each state of the program in which a request fails.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, short_size
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator
from dtr_alloc.runtime.trace.from_records import calls, trace_of, with_later_state

_SECONDS = 2.0  # For a search.
_MARGIN = 0.03
_BEYOND = 0.9  # What runs in so much of the request's budget has no such request.
_PLENTY = 1 << 38
_MORE = "; a later request may need more"
_NOT_FORETOLD = {
    _core.Watch.off: _MORE,
    _core.Watch.threads: f"{_MORE}, and what several threads need is not foretold",
}


@dataclass(frozen=True)
class _Seen:
    """What a scope did, from its begin on: raw records (trace/from_records.py)."""

    records: npt.NDArray[np.int64]
    operators: list[str]
    steps: int
    watch: _core.Watch

    @classmethod
    def of(cls, core: _core.Session) -> _Seen:
        return cls(*core.seen())

    def calls(self) -> Iterator[tuple[Any, ...]]:
        """Each operator and the bytes of what it made."""
        return calls(self.records.tolist(), self.operators)


# The last scope with a whole step, and the last without one that ended well; the later one last.
_before: dict[bool, _Seen] = {}


class Adviser:
    """Answers for one scope, whose decisions follow some rules."""

    def __init__(
        self, core: _core.Session, rules: Rules, *, swap: bool = False, call: str = "rematerialize"
    ) -> None:
        """`call`: what a budget is given to."""
        self._core = core
        self.call = call
        self._rules = rules
        self._swap = swap
        self._known: tuple[Any, str] | None = None  # The last search.

    def watch(self) -> None:
        """Records the scope from its begin on."""
        self._core.watch()

    def keep(self, *, failed: bool) -> None:
        """Keeps what was seen of the scope, which is over, for those after it. `failed`: its body,
        or what opens it, raised."""
        if sys.is_finalizing():  # NumPy may be gone.
            return
        seen = _Seen.of(self._core)
        if seen.steps or not (failed or seen.watch == _core.Watch.long):
            _before.pop(seen.steps > 0, None)
            _before[seen.steps > 0] = seen

    def enough(self, least: int) -> int | None:
        """The smallest budget from `least` bytes on in which, by a simulation, all would run that
        was seen of the scope; None where that is not known."""
        seen = _Seen.of(self._core)
        if seen.watch in _NOT_FORETOLD or not any(seen.calls()):
            return None
        try:
            return _smallest(list(_simulators([seen])), self._rules, least)
        except MemoryError:
            return None

    def peak_bytes(self) -> int:
        """The most bytes that what was seen would hold without a budget; 0 where nobody knows."""
        seen = _Seen.of(self._core)
        if seen.watch in _NOT_FORETOLD:
            return 0
        simulator = Simulator(trace_of(seen.records.tolist(), seen.operators))
        return simulator.run(_PLENTY, self._rules).peak_bytes

    def advise(self, at_least: int) -> str:
        """What follows "raise the budget to at least ...", in which `at_least` bytes are named."""
        if self._swap:  # Of which recordings know nothing.
            return f"{_MORE}: dtr-alloc plan --link measured SCRIPT finds a budget and a swap"
        seen = _Seen.of(self._core)
        question = len(seen.records), at_least
        if self._known is None or self._known[0] != question:
            try:
                found = _advise(seen, self._rules, at_least)
            except MemoryError:  # The simulator's pool takes addresses, which may be limited.
                found = _MORE
            self._known = question, found
        return self._known[1]


def _advise(seen: _Seen, rules: Rules, at_least: int) -> str:
    if seen.watch in _NOT_FORETOLD:
        return _NOT_FORETOLD[seen.watch]
    known = [*_begun_alike(seen), *([seen] if seen.steps else [])]
    begun = any(seen.calls())
    if not known and seen.watch == _core.Watch.long:
        return f"{_MORE}: no step was over when it became too long to keep"
    simulators = list(_simulators(known))
    found = _smallest(simulators, rules, at_least)
    if found is None and not (known and begun):
        return (
            "; the first step is not over, and a later request may need more: dtr-alloc plan "
            "SCRIPT finds what all need, and so do two steps in dtr_alloc.measure() before this "
            "scope"
        )
    what = _described(seen, begun)
    if found is None:
        return f"{_MORE}: {what} needed less than this one"
    do = f"{short_size(found)} do"
    if seen.steps and _run(simulators, rules, int(_BEYOND * at_least)) is not None:
        return f"; by a simulation of {what} and of this one until here, {do}{_MORE}"
    return f"; by a simulation of {what}, {do}"


def _described(seen: _Seen, begun: bool) -> str:
    """What was simulated."""
    if seen.steps:
        return f"{seen.steps} optimizer step{'s' * (seen.steps > 1)} seen so far"
    same = "" if begun else ", if this is the same program"
    return f"what an earlier scope of this process did{same}"


def _begun_alike(seen: _Seen) -> list[_Seen]:
    """The last scope that did what this one has done so far, and more, if there is one."""
    calls = list(seen.calls())
    longer = (one for one in reversed(_before.values()) if len(one.records) > len(seen.records))
    return [one for one in longer if list(islice(one.calls(), len(calls))) == calls][:1]


def _simulators(known: Iterable[_Seen]) -> Iterator[Simulator]:
    for seen in known:
        records = seen.records.tolist()
        for run in (records, with_later_state(records)):
            if run:
                yield Simulator(trace_of(run, seen.operators))


def _smallest(simulators: Sequence[Simulator], rules: Rules, at_least: int) -> int | None:
    """The smallest budget from `at_least` on in which all of it runs, and some; None where it takes
    less even without a budget."""
    end = time.monotonic() + _SECONDS
    low = high = min(at_least, LARGEST_BUDGET)
    while (done := _run(simulators, rules, high)) is None:
        low, high = high, min(2 * high, LARGEST_BUDGET)  # A process may have few addresses.
    if done < at_least:
        return None
    while high - low > max(high // 200, 512) and time.monotonic() < end:
        middle = (low + high) // 2
        if _run(simulators, rules, middle) is None:
            low = middle
        else:
            high = middle
    found = int(high * (1 + _MARGIN))
    # No policy that decides by score promises that more is enough where less is. What is told has
    # run, also where the time is over.
    while _run(simulators, rules, found) is None:
        found = min(found + found // (100 if time.monotonic() < end else 4), LARGEST_BUDGET)
    return found


def _run(simulators: Iterable[Simulator], rules: Rules, budget: int) -> int | None:
    """The most bytes that one of them holds at once, all of the budget where it evicts; None where
    the budget does not do for all."""
    peak = 0
    for simulator in simulators:
        result = simulator.run(budget, rules)
        if result.status != "ok":
            return None
        evicts = result.evictions > result.eager_evictions
        peak = max(peak, budget if evicts else result.peak_bytes)
    return peak
