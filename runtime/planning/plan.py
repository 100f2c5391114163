"""Which budget? Predicted, before the training is run under any.

A plan is a profile of the first steps (profile.py) asked about budgets (forecast.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from dtr_alloc.pool.size import LARGEST_BUDGET, parse_size
from dtr_alloc.runtime.adapters import compiled_code
from dtr_alloc.runtime.heuristic import (
    DEFAULT,
    LIVE_PRESETS,
    Heuristic,
    insist_number,
    insist_whole,
    name_of,
    resolve_live,
)
from dtr_alloc.runtime.planning.cost import rematerialization_ns
from dtr_alloc.runtime.planning.forecast import Forecast, Prediction
from dtr_alloc.runtime.planning.profile import (
    TRIED_SHARE,
    Make,
    Profile,
    Recorded,
    eager_steps,
    recorded_steps,
    warn_of_trial,
)
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.swapping import Folder, swap_folder
from dtr_alloc.runtime.simulate.link import Link, Linked
from dtr_alloc.runtime.simulate.simulator import Budget, parse_budget

_FASTER = 1.25
"""Some programs are that much faster in a scope (perf/results/demo.json), which is no noise."""


@dataclass(frozen=True)
class Plan:
    """Predictions for one training; without a budget first.

    Attributes:
        batch: what the script was given for ``{batch}``; None without.
        link: the one that was given, as text; None without. `swap_dir`: likewise.
        heuristic: by which was predicted: its name, or how to write it.
        measured_peak_bytes: most bytes in the pool without a budget, or within the one that was
            given, as the runtime counted them.
        relative_to_eager: slowdowns are against plain torch; else against no budget.
        too_noisy: the times without a budget and those in plain torch, where nothing is evicted
            either, differ by more than the slowdown that was asked for. Then they tell nothing.
        smallest: of the budgets under the slowdown that was asked for, or None.
        activation_memory_budget: torch's option, in each block that `backend="dtr_alloc"` compiled
            without, where the plan tried one; None: as the program has it.
        saving_less: the plan for the same program with that option; None where there is no such
            block, or the program failed with it.
    """

    batch: str | None
    link: str | None
    swap_dir: str | None
    heuristic: str
    measured_peak_bytes: int
    relative_to_eager: bool
    too_noisy: bool
    predictions: tuple[Prediction, ...]
    smallest: Prediction | None
    activation_memory_budget: float | None = None
    saving_less: Plan | None = None

    def with_what_was_tried(self) -> tuple[Plan, ...]:
        """This plan, and `saving_less` if there is one."""
        return (self, self.saving_less) if self.saving_less else (self,)

    def as_json(self) -> str:
        """One object, of the attributes."""
        return json.dumps(asdict(self), indent=1)


def plan(
    make: Make,
    budgets: Sequence[Budget] | None = None,
    slowdown: float = 1.2,
    *,
    steps: int = 4,
    rounds: int = 3,
    heuristic: str | Heuristic = DEFAULT,
    within: int | str | None = None,
    link: Linked = None,
    swap_dir: Folder | None = None,
) -> Plan:
    """Predicts what a training would take under budgets.

    What `backend="dtr_alloc"` compiled is tried with less saved, too (`Plan.saving_less`). For that
    all compiled code of the process is compiled anew.

    Args:
        make: makes the model and its optimizer anew and returns what trains one step. What `make`
            makes lies outside the budget, as what is made before a scope.
        budgets: sizes, such as "8GiB", or shares, such as "60%", as `simulate` has them. Default:
            from the peak down to the smallest that is enough.
        slowdown: what the smallest budget is looked for under.
        steps: of each training; the first warms up.
        rounds: trainings in plain torch and in a scope, in turn; the least times count.
        within: where the training does not fit into memory: a budget that the scope has. Nothing
            is run in plain torch then, and slowdowns are against no budget.
        link: the way to the file of a scope with ``swap``: "2GB/s", a `Link`, or "measured". None:
            without ``swap``.
        swap_dir: the folder of that file, as `rematerialize` has it.

    Raises:
        TypeError, ValueError: an argument of a wrong type, a number out of its range, a name that
            is not known, or a folder that a swap cannot have. Nothing has run then.
        RuntimeError: a scope is open. Nothing has run then.
        OSError: the link cannot be measured.
        torch.OutOfMemoryError: `within` is too small.

    Example:
        >>> import torch
        >>> def make():
        ...     layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(9)])
        ...     optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        ...     def step():
        ...         optimizer.zero_grad()
        ...         layers(torch.ones(512, 64)).sum().backward()
        ...         optimizer.step()
        ...     return step
        >>> made = plan(make, ["50%"], steps=2, rounds=1)
        >>> made.predictions[0].peak_bytes == made.measured_peak_bytes
        True
        >>> made.predictions[1].rematerializations > 0
        True
    """
    if current.scope() is not None:
        raise RuntimeError(
            "plan() opens scopes of its own, and one of rematerialize(), measure() or allocator() "
            "is open already; scopes do not nest: call plan() outside of it, or in another process"
        )
    link = check(
        () if budgets is None else budgets,
        slowdown,
        steps,
        rounds,
        heuristic,
        within,
        link,
        swap_dir,
    )
    eager: list[tuple[int, ...]] = []
    recorded: list[Recorded] = []
    saving_less: list[Recorded] = []
    compiled_code.saves_all = False
    if compiled_code.backend_has_compiled:
        torch._dynamo.reset()
    for _ in range(rounds):
        if within is None:
            eager.append(eager_steps(make, steps))
        recorded.append(recorded_steps(make, steps, within))
    if compiled_code.saves_all:
        try:
            with _saving_less():
                saving_less = [recorded_steps(make, steps, within) for _ in range(rounds)]
        except RuntimeError as error:
            warn_of_trial(error)
    profile = Profile.of(eager, recorded, saving_less)
    return plan_of(profile, budgets, slowdown, heuristic, link=link, swap_dir=swap_dir)


@contextmanager
def _saving_less() -> Iterator[None]:
    torch._dynamo.reset()  # Else what was compiled serves the model that is made next.
    compiled_code.tried_share = TRIED_SHARE
    try:
        yield
    finally:
        compiled_code.tried_share = None
        torch._dynamo.reset()


def check(
    budgets: Sequence[Budget],
    slowdown: float,
    steps: int,
    rounds: int,
    heuristic: str | Heuristic,
    within: int | str | None,
    link: Linked,
    swap_dir: Folder | None = None,
) -> Link | None:
    """Whether `plan` takes them. Returns the link, measured where that is asked for. Raises
    TypeError or ValueError where it does not, or OSError where the link cannot be measured."""
    if isinstance(budgets, (str, bytes)) or not isinstance(budgets, Sequence):
        raise TypeError(f"budgets is {budgets!r}, and a plan takes several: give a list")
    for budget in budgets:
        parse_budget(budget)
    resolve_live(heuristic)
    if within is not None:
        parse_size(within, "within", LARGEST_BUDGET)
    for name, count in (("steps", steps), ("rounds", rounds)):
        insist_whole(name, count)
    insist_number("slowdown", slowdown)
    if steps < 2:
        raise ValueError(f"steps is {steps}: the first warms up, so give 2 or more")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: give 1 or more")
    if not slowdown >= 1:
        raise ValueError(f"slowdown is {slowdown}: a multiple of plain torch's time, 1 or more")
    return _way(link, swap_dir)


def _way(link: Linked, swap_dir: Folder | None) -> Link | None:
    if swap_dir is not None and link is None:
        raise ValueError(
            'swap_dir without link: say how fast the way there is, link="2GB/s", or "measured"'
        )
    if link == "measured":
        return Link.measured(swap_folder(swap_dir))
    if swap_dir is not None:
        swap_folder(swap_dir)
    return None if link is None else Link.parse(link)


def plan_of(
    profile: Profile,
    budgets: Sequence[Budget] | None,
    slowdown: float,
    heuristic: str | Heuristic = DEFAULT,
    batch: str | None = None,
    link: Link | None = None,
    swap_dir: Folder | None = None,
    share: float | None = None,
    too_noisy: bool = False,
) -> Plan:
    """The plan that a profile gives; see `plan`. With a `share` saved, a step's time need not be
    that in plain torch: `too_noisy` is then given."""
    forecast = Forecast(profile, heuristic, rematerialization_ns(), link)
    free = forecast.predict(None)
    if share is None:
        too_noisy = free.slowdown > slowdown or free.slowdown * max(slowdown, _FASTER) < 1
    saving_less = None
    if profile.saving_less:
        told = budgets, slowdown, heuristic, batch, link, swap_dir
        saving_less = plan_of(profile.saving_less, *told, TRIED_SHARE, too_noisy)
    return Plan(
        batch,
        None if link is None else str(link),
        None if swap_dir is None else os.fspath(swap_dir),
        name_of(heuristic, LIVE_PRESETS),
        profile.peak_bytes,
        bool(profile.eager_ns),
        too_noisy,
        (free, *(forecast.predict(budget) for budget in budgets or forecast.spread())),
        None if too_noisy else forecast.smallest(slowdown),
        share,
        saving_less,
    )
