"""A budget that is a share of the activation peak, such as "60%".

Nobody knows that peak before the program has run, and the first step of an optimizer shows it. So
a scope opens with all the memory that the machine has, or `within` less, and is resized when that
step has ended: to the share of the peak, and all that must stay besides, because nothing can make
it again. The state of an optimizer is made at its first step, when the peak is over, so what stays
is asked before and after, and no budget refuses it. A second step may need more than the first, and
the budget is then set once more. Where steps evict, their peak is what the simulator finds without
a budget. What an optimizer's step makes for a moment cannot be evicted, so where that is the peak,
the budget holds all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dtr_alloc import _core
from dtr_alloc.pool.size import LARGEST_BUDGET, Share, format_size

_LOOKED_AT = 2  # Steps.


def whole_machine() -> int:
    """Bytes of memory: what a scope has whose budget is not known yet."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), LARGEST_BUDGET)


class PeakShare:
    """The share of one scope. `peak_bytes` simulates the steps so far without a budget."""

    def __init__(
        self, share: Share, opened: int, core: _core.Session, peak_bytes: Callable[[], int]
    ) -> None:
        self._share = share
        self._opened = opened
        self._core = core
        self._peak_bytes = peak_bytes
        self._steps = self._activations = self._stays = self._least = self._budget = 0
        self._set = core.pool_stats().budget
        self._begun: tuple[int, int] | None = None  # The peak, and bytes held by the first.

    def optimizer_begins(self) -> None:
        """Before an optimizer's step, behind its closure: it may make its state."""
        if self._steps == _LOOKED_AT:
            return
        now = self._core.stats()
        _, held = self._begun or (0, now.live_bytes)
        self._begun = now.peak_bytes, held
        if self._budget and self._ours():
            self._resize(self._opened)

    def optimizer_ended(self, *, step: bool) -> bool:
        """After an optimizer's step; `step`: with it one of the program has ended. Returns whether
        the budget has changed. Raises torch.OutOfMemoryError as `Session.resize` does."""
        if self._steps == _LOOKED_AT:
            return False
        self._steps += step
        now = self._core.stats()
        peak, held = self._begun or (now.peak_bytes, now.live_bytes)
        self._begun = None
        stays = now.live_bytes - now.evictable_bytes
        stayed = stays - max(now.live_bytes - held, 0)
        if now.peak_bytes > peak and self._steps < _LOOKED_AT:  # Later it may have recomputed.
            self._least = now.peak_bytes
        if step and now.evicted_bytes:
            peak = max(peak, self._peak_bytes())
        self._activations = max(self._activations, peak - stayed, now.peak_bytes - stays)
        share = self._share.of(self._activations + stays, stays)
        before, budget = self._budget, min(max(share, self._least), self._opened)
        if not self._ours():
            return False
        if budget > before:
            self._budget, self._stays = budget, stays
        if self._budget:
            self._resize(self._budget)
        return budget > before

    def _ours(self) -> bool:
        """Whether the program has not changed the budget itself."""
        return self._core.pool_stats().budget == self._set

    def _resize(self, budget: int) -> None:
        self._core.resize(budget)
        self._set = self._core.pool_stats().budget

    def lacks(self) -> str | None:
        """Why there is no budget so far."""
        if self._budget:
            return None
        if self._steps:
            return "the steps so far made nothing in the scope that a budget could bound"
        return "no step of an optimizer has ended, so there was nothing to take a share of"

    def row(self) -> tuple[str, str, str]:
        """Of the summary."""
        note = self.lacks() or (
            f"of {format_size(self._activations)} of activations, and "
            f"{format_size(self._stays)} that must stay: {format_size(self._budget)}"
            f"{', what an optimizer takes' * (self._budget == self._least)}"
        )
        return "share", str(self._share), note
