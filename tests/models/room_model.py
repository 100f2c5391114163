"""How a request gets memory (make_room.h, window.h), over the naive engine of `engine_model`: what
is tried and in which order, when pages move, and which neighbours go together.

Every page that moves has one price. Windows are those of heuristics whose terms are integers: their
scores are compared in the order of the engine's own operations, so that ties are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dtr_alloc import _core
from tests.models.modelled_values import Value, classes_cost, neighbourhood_cost
from tests.models.pool_model import Range

if TYPE_CHECKING:
    from tests.models.eviction_model import EvictionModel

EPSILON = 1
SEARCH_BLOCK = 10
DEAR_SHARE = 0.1
TOO_MUCH = 1 / 3


def make_room(model: EvictionModel, asked: int, page_price: int) -> int | None:
    """The offset of a block of `asked` bytes, a multiple of the granule; None: there is none."""
    while True:
        offset = model.pool.allocate(asked, _core.Fit.committed)
        if offset is not None:
            return offset
        pages = pages_to_move(model, asked)
        if pages is not None:
            if moving_is_dearer(model, asked, pages * page_price, page_price):
                for value in cheapest_window(model, asked):
                    model.evict_value(value)
            offset = model.pool.allocate(asked, _core.Fit.remap)
            if offset is not None:
                return offset
        if model.evict_one():
            continue
        offset = model.pool.allocate(asked, _core.Fit.remap)
        if offset is not None:
            return offset
        least = model.pool.live() - model.waiting_bytes()
        if least + asked > model.pool.budget or not model.evict_waiting():
            return model.pool.allocate(asked, _core.Fit.beyond)


def pages_to_move(model: EvictionModel, asked: int) -> int | None:
    """None where the bytes are not there, or no hole can have the pages."""
    pool = model.pool
    if pool.live() + asked > pool.budget:
        return None
    run = pool.pages_after_moves(asked)
    if run is None:
        return None
    headroom = pool.limit - len(pool.pages)
    return max(len(run - pool.pages) - headroom, 0)


def moving_is_dearer(model: EvictionModel, asked: int, move: int, page_price: int) -> bool:
    """Than to recompute what the cheapest window holds."""
    took = model.base_cost + model.remat_cost
    page = float(model.pool.page)
    dear = took > 0 and page_price * float(model.allocated) > took * DEAR_SHARE * page
    if not dear:
        return False
    if model.remat_cost <= TOO_MUCH * model.base_cost:
        return True
    search = SEARCH_BLOCK * sum(not part.free for part in model.pool.ranges)
    window = cheapest_window(model, asked)
    if move <= search or not window:
        return False
    return move - search > window_cost(model, window)


def windows(model: EvictionModel, asked: int) -> Iterator[list[Value]]:
    """The values of the shortest run that holds the request, for each last block that ends one."""
    lacking = max(model.pool.live() + asked - model.pool.budget, 1)
    evictable = {v.content.offset: v for v in model.candidates if v.content and not v.locks}
    parts = backed_parts(model, asked)
    for end in range(1, len(parts) + 1):
        values: list[Value] = []
        size = 0
        for part in reversed(parts[:end]):
            if part is None or (not part.free and part.offset not in evictable):
                break
            size += part.size
            if not part.free:
                values.insert(0, evictable[part.offset])
            if size >= asked and sum(v.size for v in values) >= lacking:
                yield values
                break


def backed_parts(model: EvictionModel, asked: int) -> list[Range | None]:
    """Blocks and holes; of holes without pages for any request, the parts that have pages, and None
    for those that have none."""
    pool = model.pool
    spare = (pool.limit - len(pool.pages)) * pool.page
    lacking = pool.ranges[-1].end - len(pool.pages) * pool.page
    if spare >= min(asked + 2 * pool.page, lacking):
        return list(pool.ranges)
    parts: list[Range | None] = []
    for part in pool.ranges:
        if not part.free:
            parts.append(part)
            continue
        pages = range(part.offset // pool.page, -(-part.end // pool.page))
        for backed, run in itertools.groupby(pages, lambda page: page in pool.pages):
            numbers = list(run)
            begin = max(part.offset, numbers[0] * pool.page)
            end = min(part.end, (numbers[-1] + 1) * pool.page)
            parts.append(Range(begin, end - begin, free=True) if backed else None)
    return parts


def window_cost(model: EvictionModel, values: list[Value]) -> int:
    """Classes that members share count once."""
    own = sum(value.recipe.cost for value in values if value.recipe)
    kind = model.heuristic.neighbourhood
    if kind == "eqclass":
        return own + classes_cost(values)
    return own + sum(neighbourhood_cost(kind, value) for value in values)


def cheapest_window(model: EvictionModel, asked: int) -> list[Value]:
    """The first one of the least cost times bytes over staleness of all its bytes."""
    best = float("inf")
    found: list[Value] = []
    for values in windows(model, asked):
        over = float(window_cost(model, values) + EPSILON) * sum(v.size for v in values)
        under = float(sum(v.size * (model.clock + EPSILON - v.last_access) for v in values))
        if over < best * under:
            best = over / under
            found = values
    return found
