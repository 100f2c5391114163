"""The rules of a simulation: all that `simulate` takes besides the trace and the budget.

`simulate` takes the rules by name, as a user writes them. Everything below it (a simulator, a
sweep, a plan, the advice of an error) takes them as one value, which is checked when it is made.
So each name, type and default is written once, here; what each means is told by `simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dtr_alloc.runtime.heuristic import Heuristic, Policy, native_policy, resolve
from dtr_alloc.runtime.link import LeaveBy, Link, Linked

Mode = Literal["bytes", "pool"]
Placement = Literal["best_fit", "two_ended"]
Clock = Literal["wall", "logical"]
MovePrice: TypeAlias = "int | Literal['measured'] | None"

THRASH = 2.0
"""A run stops when it has computed this often as much as without a budget (appendix D)."""


@dataclass(frozen=True)
class Rules:
    """By what a trace is replayed: see `simulate` for the fields.

    Raises:
        TypeError: `heuristic` is neither a name nor a `Heuristic`.
        ValueError: a name that is not known, a number out of its range, or a clock that the mode
            does not have.

    Example:
        >>> Rules("lru", mode="pool").policy
        'eager'
        >>> Rules(clock="logical")
        Traceback (most recent call last):
            ...
        ValueError: mode 'bytes' has the clock of the paper's simulator, "wall"
    """

    heuristic: str | Heuristic = "dtr"
    policy: Policy = "eager"
    mode: Mode = "bytes"
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
        if self.mode not in ("bytes", "pool"):
            raise ValueError(f'mode {self.mode!r} is not "bytes" or "pool"')
        if self.thrash is not None and not self.thrash > 1:
            raise ValueError(
                f"thrash is {self.thrash!r}; it is a multiple of the base time, above 1"
            )
        if self.placement not in ("best_fit", "two_ended"):
            raise ValueError(f'placement {self.placement!r} is not "best_fit" or "two_ended"')
        if self.clock not in ("wall", "logical"):
            raise ValueError(f'clock {self.clock!r} is not "wall" or "logical"')
        if self.mode == "bytes" and self.clock == "logical":
            raise ValueError("mode 'bytes' has the clock of the paper's simulator, \"wall\"")
        if self.leave_by not in ("drop", "swap", "both"):
            raise ValueError(f'leave_by {self.leave_by!r} is not "drop", "swap" or "both"')
        if self.link is None:
            if self.leave_by == "swap":
                raise ValueError("leave_by 'swap' needs a link")
            return
        Link.parse(self.link)
        if self.mode == "bytes":
            raise ValueError("mode 'bytes' is the paper's simulator, which has no link: use 'pool'")
        if self.policy != "eager":
            raise ValueError(f"a link needs the policy 'eager', not {self.policy!r}")


DEFAULT = Rules()
"""The paper's simulator with h_DTR."""
