"""The pool as a list: what each call must answer, written to be read and not to be fast.

Made from the rules in `pool/csrc/pool.h` and not from the code: best fit, the low end of the
hole; among equal holes the one that became a hole last below 64 granules, the lowest address from
there on; where pages must move, the end of a hole that lacks the fewest; committed pages stay until
another hole needs them, or, beyond the limit, until no live block is on them.
"""

from dataclasses import dataclass

from dtr_alloc import _core

GRANULE = 512
SMALL = 64 * GRANULE


@dataclass
class Range:
    offset: int
    size: int
    free: bool
    since: int = 0
    """When it became a hole of this extent."""

    @property
    def end(self) -> int:
        return self.offset + self.size


class Model:
    def __init__(self, budget: int, capacity: int, page: int) -> None:
        self.budget = budget
        self.page = page
        self.limit = -(-budget // page)
        self.ranges = [Range(0, capacity, free=True)]
        self.pages: set[int] = set()
        self.peak = self.allocations = self.frees = self.failures = self.remaps = 0
        self.clock = 0

    def live(self) -> int:
        return sum(r.size for r in self.ranges if not r.free)

    def largest_hole(self) -> int:
        largest = max((r.size for r in self.ranges if r.free), default=0)
        return min(largest, self.budget - self.live())

    def allocate(self, size: int, fit: _core.Fit) -> int | None:
        """Returns the offset of the new block, or None."""
        size = max(-(-size // GRANULE), 1) * GRANULE
        if self.live() + size > self.budget:
            self.failures += 1
            return None
        holes = sorted((r for r in self.ranges if r.free and r.size >= size), key=self._best_fit)
        begin = next((h.offset for h in holes if self._fits(self.pages, h.offset, size)), None)
        if begin is None and fit != _core.Fit.committed:
            begin = self._begin_after_moves(size)
        if begin is None and fit == _core.Fit.beyond:
            begin = next((h.offset for h in holes), None)
        if begin is None:
            self.failures += 1
            return None

        at = next(i for i, r in enumerate(self.ranges) if r.offset <= begin < r.end)
        hole = self.ranges[at]
        block = Range(begin, size, free=False)
        low, high = (hole.offset, begin), (block.end, hole.end)
        rests = [Range(a, b - a, free=True, since=self._tick()) for a, b in (low, high) if a < b]
        self.ranges[at : at + 1] = sorted([*rests, block], key=lambda r: r.offset)
        needed = self._touched(block.offset, block.end)
        excess = len(self.pages | needed) - self.limit
        # Where the limit is passed already, no more than the block needs.
        excess = min(excess, len(needed - self.pages))
        taken = self._page_order()[: max(excess, 0)]
        self.remaps += bool(taken)
        self.pages -= set(taken)
        self.pages |= needed
        self.allocations += 1
        self.peak = max(self.peak, self.live())
        return block.offset

    def free(self, offset: int) -> None:
        at = next(i for i, r in enumerate(self.ranges) if r.offset == offset and not r.free)
        first = at - 1 if at > 0 and self.ranges[at - 1].free else at
        last = at + 1 if at + 1 < len(self.ranges) and self.ranges[at + 1].free else at
        begin, end = self.ranges[first].offset, self.ranges[last].end
        hole = Range(begin, end - begin, free=True, since=self._tick())
        self.ranges[first : last + 1] = [hole]
        self.frees += 1
        surplus = max(len(self.pages) - self.limit, 0)
        self.pages -= set(self._page_order()[:surplus])

    def free_neighbours(self, offset: int) -> tuple[int, int]:
        at = next(i for i, r in enumerate(self.ranges) if r.offset == offset)
        left = self.ranges[at - 1] if at > 0 else None
        right = self.ranges[at + 1] if at + 1 < len(self.ranges) else None
        return (
            left.size if left is not None and left.free else 0,
            right.size if right is not None and right.free else 0,
        )

    def trim(self) -> int:
        before = len(self.pages)
        self.pages = self._held()
        return (before - len(self.pages)) * self.page

    def pages_after_moves(self, size: int) -> set[int] | None:
        """Those of a block that gets its pages from other holes; None where no hole can."""
        begin = self._begin_after_moves(size)
        return None if begin is None else self._touched(begin, begin + size)

    def _begin_after_moves(self, size: int) -> int | None:
        """The first end of a hole, in the order of best fit, that lacks the fewest pages. After one
        that lacks a single page, no other hole is looked at."""
        holes = sorted((r for r in self.ranges if r.free and r.size >= size), key=self._best_fit)
        held, least, best = self._held(), self.limit + 1, None
        for hole in holes:
            for begin in (hole.offset, hole.end - size):
                lacking = len(self._touched(begin, begin + size) - self.pages)
                if lacking < least and self._fits(held, begin, size):
                    least, best = lacking, begin
            if least <= 1:
                break
        return best

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    @staticmethod
    def _best_fit(hole: Range) -> tuple[int, int]:
        return (hole.size, -hole.since if hole.size < SMALL else hole.offset)

    def _touched(self, begin: int, end: int) -> set[int]:
        return set(range(begin // self.page, -(-end // self.page)))

    def _held(self) -> set[int]:
        """The pages that live blocks cannot do without."""
        held: set[int] = set()
        for r in self.ranges:
            if not r.free:
                held |= self._touched(r.offset, r.end)
        return held

    def _fits(self, pages: set[int], offset: int, size: int) -> bool:
        needed = self._touched(offset, offset + size)
        return needed <= pages or len(pages | needed) <= self.limit

    def _page_order(self) -> list[int]:
        """Committed pages without a live byte as they are taken: largest holes first, end first."""
        holes = sorted(
            (r for r in self.ranges if r.free),
            key=lambda r: (-r.size, -r.since if r.size < SMALL else -r.offset),
        )
        order = []
        for hole in holes:
            inside = range(-(-hole.offset // self.page), hole.end // self.page)
            order += [page for page in reversed(inside) if page in self.pages]
        return order
