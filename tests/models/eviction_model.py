"""How `engine_model` chooses what is evicted, and what an eviction leaves behind.

The memory is the pool's own model, so fragmentation forces the same evictions. Orders that decide
something are modelled too: which value became evictable last (it goes first among equal scores),
and that of the rows from which selection "sample" draws. Source: the paper, section 4.1.
"""

from collections.abc import Sequence

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import Heuristic
from tests.models import pool_model, room_model
from tests.models.modelled_values import (
    MASK,
    Content,
    EvictedClass,
    Recipe,
    Value,
    inputs_of,
    made_from,
    missing_beside,
    neighbourhood_cost,
    neighbours,
    node_of,
    rounded,
)


class OutOfMemoryError(MemoryError):
    """The budget cannot hold it, whatever is evicted."""


SMALLER, DEARER = 0.4, 5
"""Than what is made from it: a stepping stone's bytes, and its cost for each of them."""


class EvictionModel:
    def __init__(
        self, budget: int, heuristic: Heuristic, spare: int = 0, page_price: int | None = None
    ) -> None:
        self.pool = pool_model.Model(budget, rounded(budget) + spare, pool_model.GRANULE)
        self.heuristic = heuristic
        self.page_price = page_price
        self.random = 0x9E3779B97F4A7C15 ^ heuristic.seed
        self.storages: dict[int, Value] = {}
        self.candidates: list[Value] = []
        self.owned: list[Value] = []
        self.next_id = 0
        self.evicted: list[int] = []
        """Ids in the order of their eviction; values that no id holds are left out."""
        self.order = 0
        self.evictions = self.rematerializations = self.given_up = self.sampled = 0
        self.stones = 0
        """That were ever laid."""
        self.evaluations = self.allocated = 0
        self.runs_before = 0
        self.allocations_to_failure = self.replays_to_failure = 0
        self.clock = self.base_cost = self.remat_cost = 0

    def records(self) -> tuple[int, int]:
        """Live values and recipes; a constant counts while a recipe reads it."""
        values = set(self.storages.values())
        recipes: set[Recipe] = set()
        frontier = list(values)
        while frontier:
            value = frontier.pop()
            near = {*value.readers, value.recipe} - {None} - recipes
            for recipe in near:
                assert recipe is not None
                recipes.add(recipe)
                around = {*recipe.inputs, *recipe.outputs} - {None} - values
                for other in around:
                    assert other is not None
                    values.add(other)
                    frontier.append(other)
        return sum(1 for v in values if v.recipe or v.readers), len(recipes)

    # Room

    def _allocate(self, size: int, number: int) -> Content:
        if self.allocations_to_failure > 0:
            self.allocations_to_failure -= 1
            if self.allocations_to_failure == 0:
                raise OutOfMemoryError
        offset = self._offset(size)
        if offset is None:
            raise OutOfMemoryError
        self.allocated += rounded(size)
        return Content(number, offset)

    def _offset(self, size: int) -> int | None:
        if self.page_price is not None:
            return room_model.make_room(self, rounded(size), self.page_price)
        while True:
            offset = self.pool.allocate(size, _core.Fit.remap)
            if offset is not None or not self.evict_one():
                return offset

    def evict_one(self) -> bool:
        free = [value for value in self.candidates if not value.locks]
        if self.heuristic.selection == "sample" and not self._all_are_affordable():
            self.sampled += 1
            drawn = self._sample()
            self.evaluations += len(drawn)
            if drawn:
                self.evict_value(self._least(drawn))
                return True
        self.evaluations += len(free)
        if not free:
            return False
        self.evict_value(self._least(free))
        return True

    def waiting_values(self) -> list[Value]:
        """What only waiting recomputations and operators hold."""
        return [value for value in self.candidates if value.locks and value.locks == value.waiting]

    def waiting_bytes(self) -> int:
        return sum(value.size for value in self.waiting_values())

    def evict_waiting(self) -> bool:
        """One of them, unless they have run too often."""
        waiting = self.waiting_values()
        if self.rematerializations - self.runs_before > 100 * self.records()[1] or not waiting:
            return False
        self.evaluations += len(waiting)
        self.given_up += 1
        self.evict_value(self._least(waiting))
        return True

    def _least(self, values: Sequence[Value]) -> Value:
        return min(values, key=lambda value: (self.score(value), -value.order))

    def _all_are_affordable(self) -> bool:
        """At 6 ns a score, within a fiftieth of the operators' time."""
        rows = len(self.candidates)
        return rows <= 32 or (self.evaluations + rows) * 6 <= self.clock // 50

    def _sample(self) -> list[Value]:
        rows = len(self.candidates)
        small = sum(value.size for value in self.candidates) // rows // 100
        drawn = [self.candidates[self._draw(rows)] for _ in range(max(32, int(rows**0.5)))]
        return [value for value in drawn if value.size >= small and not value.locks]

    def _draw(self, rows: int) -> int:
        self.random = (self.random * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.random >> 32) * rows >> 32

    def _stamp(self, value: Value) -> None:
        self.order += 1
        value.order = self.order

    def _add_candidate(self, value: Value) -> None:
        self._stamp(value)
        self.candidates.append(value)

    def evict_value(self, value: Value) -> None:
        if value.home is not None:
            self.evicted.append(value.home)
        self._release(value)
        self.evictions += 1
        for near in missing_beside(value):
            root, other = node_of(value).root(), node_of(near).root()
            if root is not other:
                root.cost += other.cost
                other.parent = root

    def _release_dropped(self, value: Value) -> None:
        """Its recipe stays for its readers."""
        if value.recipe and value.content and value.readers:
            if self.heuristic.stepping_stones and self.evictions and self._leads(value):
                value.stone = True
                self.stones += 1
                return
            self._release(value)

    def _leads(self, value: Value) -> bool:
        """To something much larger that the program holds, and that is much cheaper to make."""

        def makes_cheap(made: Value) -> bool:
            assert value.recipe is not None
            assert made.recipe is not None
            dear = value.recipe.cost * made.size >= DEARER * made.recipe.cost * value.size
            return dear and value.size <= SMALLER * made.size

        return any(made in self.owned and makes_cheap(made) for made in made_from(value))

    def _disown(self, value: Value) -> None:
        """What stays for it alone goes."""
        swap_remove(self.owned, value)
        for stone in inputs_of(value):
            if not stone.stone or self._leads(stone):
                continue
            stone.stone = False
            if stone.locks:
                stone.dropped_while_locked = True
            else:
                self._release(stone)

    def _release(self, value: Value) -> None:
        assert value.content is not None
        self.pool.free(value.content.offset)
        self._lose(value)

    def _lose(self, value: Value) -> None:
        """However it lost its content, it joins the classes around it to one."""
        swap_remove(self.candidates, value)
        value.content = None
        value.stone = False
        assert value.recipe is not None
        joined = EvictedClass({value}, value.recipe.cost)
        for other in {v.evicted_class for v in neighbours(value) if v.evicted_class}:
            joined.members |= other.members
            joined.cost += other.cost
        for member in joined.members:
            member.evicted_class = joined

    def _return(self, value: Value) -> None:
        assert value.evicted_class is not None
        assert value.recipe is not None
        value.evicted_class.members.remove(value)
        value.evicted_class.cost -= value.recipe.cost
        value.evicted_class = None

    def score(self, value: Value) -> float:
        h = self.heuristic
        assert value.recipe is not None
        assert value.content is not None
        cost = value.recipe.cost + neighbourhood_cost(self.heuristic.neighbourhood, value)
        free = 0
        if h.fragmentation != 0:
            free = sum(self.pool.free_neighbours(value.content.offset))
        numerator: float = (float(cost) + 1) ** h.cost_exp
        if h.recompute_penalty != 1:
            numerator *= h.recompute_penalty**value.recomputes
        size = float(value.size) + h.fragmentation * float(free)
        staleness = float(self.clock - value.last_access) + 1
        denominator: float = size**h.size_exp * staleness**h.staleness_exp
        return numerator / denominator


def swap_remove(values: list[Value], value: Value) -> None:
    """Without it the last one takes its place."""
    if value in values:
        at = values.index(value)
        last = values.pop()
        if at < len(values):
            values[at] = last
