"""The best setting that a search finds: how near a policy can come, from above.

A setting is of our own policy: the parameters of the score and what becomes of a dropped tensor.
Each is run in the simulator (mode ``pool``), and a scope can have it, but for policy ``"ignore"``
and MegEngine's sets. The search is simulated annealing: one parameter is changed at a time; a worse
setting is taken with a probability that falls with its overhead and with the time that is left. It
starts from the best preset and hence is never worse. It searches settings only, not single tensors'
fates. Deciding for each tensor could be better, and a proven bound below the best found says so
little by itself.

A setting is scored on the very trace that it is searched for, with every candidate looked at, so
nothing is drawn while it runs. Source: Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dtr_alloc.runtime.heuristic import PRESETS, Heuristic, name_of, resolve
from dtr_alloc.runtime.simulate.rules import SEARCH_THRASH, Policy, Rules
from dtr_alloc.runtime.simulate.simulator import Simulator

HOTTEST, COLDEST = 0.03, 0.001
"""Temperatures, in logarithms of overheads: a setting so much worse is taken every third time."""

MOST_SETTINGS = 5000
"""At most so many are tried."""

_NAMES = {
    "neighbourhood": ("none", "eqclass", "lineage", "full", "ancestors"),
    "selection": ("single", "window"),
}
_POLICIES: tuple[Policy, ...] = ("eager", "ignore")
_EXPONENTS = ("cost_exp", "size_exp", "staleness_exp")
_SWITCHES = ("next_use", "orphans_first", "stepping_stones")


@dataclass(frozen=True)
class Setting:
    """A setting, and what it takes.

    Attributes:
        heuristic, policy: as `simulate` takes them.
        overhead: the time of all operators that ran, those run again included, by that of each
            once; None where the run failed.
    """

    heuristic: str | Heuristic
    policy: Policy
    overhead: float | None

    def __str__(self) -> str:
        name = name_of(self.heuristic)
        return name if self.policy == "eager" else f"{name}, policy {self.policy}"


def run(simulator: Simulator, budget: int, heuristic: str | Heuristic, policy: Policy) -> Setting:
    """One setting under a budget, by the rules of this bound."""
    rules = Rules(heuristic, policy, "pool", SEARCH_THRASH, pin_outputs=False)
    result = simulator.run(budget, rules)
    return Setting(heuristic, policy, result.overhead if result.status == "ok" else None)


def presets(simulator: Simulator, budget: int) -> tuple[Setting, ...]:
    """Each preset under a budget."""
    return tuple(run(simulator, budget, name, "eager") for name in PRESETS)


def best_of(settings: Iterable[Setting]) -> Setting | None:
    """The least overhead; None where all failed."""
    worked = [setting for setting in settings if setting.overhead is not None]
    return min(worked, key=_overhead, default=None)


def anneal(
    simulator: Simulator, budget: int, begin: Iterable[Setting], enough: float, seconds: float
) -> Setting | None:
    """The best of the settings given and of those found in about so many seconds or `MOST_SETTINGS`
    runs, or until one has an overhead of at most `enough`."""
    now = best = best_of(begin)
    began, draw = time.monotonic(), random.Random(0)
    slow: set[str] = set()
    for number in range(MOST_SETTINGS if seconds else 0):
        done = max((time.monotonic() - began) / seconds, number / MOST_SETTINGS)
        if done >= 1 or _overhead(best) <= enough:
            break
        tried, start = _changed(now, draw, slow), time.monotonic()
        found = run(simulator, budget, tried.heuristic, tried.policy)
        if time.monotonic() - start > seconds / 20:
            slow.add(resolve(tried.heuristic).neighbourhood)
            slow.discard("none")
        if found.overhead is None:
            continue
        heat = HOTTEST * (COLDEST / HOTTEST) ** done
        worse = found.overhead / _overhead(now)
        if worse <= 1 or draw.random() < math.exp(-math.log(worse) / heat):
            now = found
        best = found if best is None else best_of([best, found])
    return best


def _overhead(setting: Setting | None) -> float:
    """Infinite where there is none, or it failed."""
    return math.inf if setting is None or setting.overhead is None else setting.overhead


def _changed(setting: Setting | None, draw: random.Random, slow: set[str]) -> Setting:
    """Another setting, next to the one given, that is not known to take long."""
    setting = setting or Setting(Heuristic(), "eager", None)
    old, policy = resolve(setting.heuristic), setting.policy
    changed: dict[str, Any] = {"seed": 0}
    if old.selection not in _NAMES["selection"]:
        changed["selection"] = "single"
    what = draw.choice((*_NAMES, "policy", "recompute_penalty", *_EXPONENTS, *_SWITCHES))
    if what == "policy":
        policy = draw.choice(_POLICIES)
    elif what in _NAMES:
        changed[what] = draw.choice([name for name in _NAMES[what] if name not in slow])
    elif what in _SWITCHES:
        changed[what] = not getattr(old, what)
    elif what == "recompute_penalty":
        changed[what] = round(draw.uniform(1, 1.5), 2)
    else:
        value = min(max(getattr(old, what) + draw.gauss(0, 0.3), 0.0), 2.0)
        changed[what] = round(value, 2)
    return Setting(replace(old, **changed), policy, None)
