"""The rules of a simulation: all that `simulate` takes besides the trace and the budget.

`simulate` takes the rules by name, as a user writes them. Everything below it (a simulator, a
sweep, a plan, the advice of an error) takes them as one value, which is checked when it is made.
So each name, type and default is written once, here; what each means is told by `simulate`.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import (
    DEFAULT,
    Heuristic,
    insist_float,
    insist_name,
    insist_one_of,
    insist_switch,
    insist_whole,
    resolve,
)
from dtr_alloc.runtime.simulate.link import LeaveBy, Link, Linked

Policy = Literal["eager", "banish", "ignore"]
Mode = Literal["bytes", "pool"]
Placement = Literal["best_fit", "two_ended"]
Clock = Literal["wall", "logical"]
MovePrice: TypeAlias = "int | Literal['measured'] | None"

THRASH = 2.0
"""A run stops when it has computed this often as much as without a budget (appendix D)."""
SEARCH_THRASH = 4.0
"""The same, where settings are searched for: what is worse is not looked for."""
HOPELESS = 20.0
"""The same, where the live runtime is foretold: far below its own limit, and no use to anybody."""

_MOST = 10**9  # Pictures, or ns to move a page. Sums over a trace overflow far above it.


@dataclass(frozen=True)
class Rules:
    """By what a trace is replayed: see `simulate` for the fields.

    Raises:
        TypeError: `heuristic` is neither a name nor a `Heuristic`, or a switch or a number is none.
        ValueError: a name that is not known, a number out of its range, or a clock that the mode
            does not have.

    Example:
        >>> Rules("lru").policy
        'eager'
        >>> Rules(mode="bytes", clock="logical")
        Traceback (most recent call last):
            ...
        ValueError: mode 'bytes' has the clock of the paper's simulator, "wall"
    """

    heuristic: str | Heuristic = DEFAULT
    policy: Policy = "eager"
    mode: Mode = "pool"
    thrash: float | None = THRASH
    log_events: bool = False
    pin_outputs: bool = True
    remap: bool = True
    move_ns: MovePrice = None
    placement: Placement = "best_fit"
    layouts: int = 0
    clock: Clock = "wall"
    link: Linked = None
    leave_by: LeaveBy = "both"

    def __post_init__(self) -> None:
        resolve(self.heuristic)
        native_policy(self.policy)
        names = {"mode": Mode, "placement": Placement, "clock": Clock, "leave_by": LeaveBy}
        for name, known in names.items():
            insist_name(name, getattr(self, name), known)
        for name in ("log_events", "pin_outputs", "remap"):
            insist_switch(name, getattr(self, name))
        _insist_thrash(self.thrash)
        _insist_move_ns(self.move_ns)
        _insist_count("layouts", self.layouts)
        if self.mode == "bytes" and self.clock == "logical":
            raise ValueError("mode 'bytes' has the clock of the paper's simulator, \"wall\"")
        if self.link is not None:
            self._insist_link(self.link)
        elif self.leave_by == "swap":
            raise ValueError("leave_by 'swap' needs a link")

    def _insist_link(self, link: Link | str) -> None:
        Link.parse(link)
        if self.mode == "bytes":
            raise ValueError("mode 'bytes' is the paper's simulator, which has no link: use 'pool'")
        if self.policy != "eager":
            raise ValueError(f"a link needs the policy 'eager', not {self.policy!r}")


def native_policy(policy: str) -> _core.Policy:
    """The engine's own. Raises ValueError where the name is not known."""
    insist_one_of("policy", policy, get_args(Policy))
    return cast(_core.Policy, getattr(_core.Policy, policy))


def _insist_thrash(thrash: float | None) -> None:
    if thrash is None:
        return
    if not (isinstance(thrash, numbers.Real) and thrash > 1):
        raise ValueError(f"thrash is {thrash!r}; it is a multiple of the base time, above 1")
    insist_float("thrash", thrash)


def _insist_move_ns(price: MovePrice) -> None:
    if price in (None, "measured"):
        return
    if isinstance(price, str):
        raise ValueError(f'move_ns {price!r} is not "measured" or a number of ns')
    _insist_count("move_ns", price)


def _insist_count(name: str, value: int | None) -> None:
    insist_whole(name, value)
    if not 0 <= cast(int, value) <= _MOST:
        raise ValueError(f"{name} is {value!r}; it must be from 0 to 10^9")


DEFAULTS = Rules()
"""Those of a scope that is given none, but that what is held at the end is brought back."""


def live(heuristic: str | Heuristic = "dtr", clock: Clock = "wall") -> Rules:
    """Those of a scope: by them advice and plans foretell what it will do. Raises TypeError or
    ValueError as `Rules` does."""
    return Rules(
        heuristic,
        mode="pool",
        thrash=HOPELESS,
        pin_outputs=False,
        move_ns="measured" if clock == "wall" else None,
        clock=clock,
    )
