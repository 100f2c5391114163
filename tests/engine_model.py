"""The engine as dicts, sets and recursion: what an `EngineHarness` must do, written to be read.

Made from the paper (section 3, section 4.1, appendix C.2) and from the rules in `engine.h`,
`neighbourhood.h`, `score.h` and `engine_harness.h`. The memory is the pool's own model, so
fragmentation forces the same evictions. Orders that decide something are modelled too: which value
became evictable last (it goes first among equal scores), that of the readers (newest first), and
that of the rows from which selection "sample" draws. Values, recipes and neighbourhoods are in
`modelled_values`, and how a scope makes room is in `room_model`.
"""

from collections.abc import Sequence

from dtr_alloc import _core
from dtr_alloc.runtime.heuristic import Heuristic
from tests import pool_model, room_model
from tests.modelled_values import (
    MASK,
    Content,
    EvictedClass,
    Recipe,
    Value,
    content_of,
    inputs_of,
    made_from,
    missing_beside,
    neighbourhood_cost,
    neighbours,
    node_of,
    number_of,
    rounded,
)


class OutOfMemoryError(MemoryError):
    """The budget cannot hold it, whatever is evicted."""


SMALLER, DEARER = 0.4, 5
"""Than what is made from it: a stepping stone's bytes, and its cost for each of them."""


class Model:
    def __init__(
        self, budget: int, heuristic: Heuristic, spare: int = 0, page_price: int | None = None
    ) -> None:
        self.pool = pool_model.Model(budget, rounded(budget) + spare, pool_model.GRANULE)
        self.follow(heuristic)
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

    # What a program does

    def follow(self, heuristic: Heuristic) -> None:
        self.heuristic = heuristic

    def constant(self, size: int, number: int) -> int:
        return self._new_storage(Value(rounded(size), self._allocate(size, number)))

    def call(
        self,
        name: int,
        cost: int,
        inputs: Sequence[int],
        written: Sequence[int],
        results: Sequence[int],
        dropped: Sequence[int] = (),
    ) -> list[int]:
        values = [self.storages[at] for at in inputs]
        for value in values:
            value.locks += 1
            value.last_access = self.clock
        made: list[Content] = []
        try:
            for value in values:
                self._materialize(value)
            for position in written:
                if values[position].recipe is None:
                    self._retire(values[position])
            for size in results:
                made.append(self._allocate(size, 0))
        except OutOfMemoryError:
            for content in made:
                self.pool.free(content.offset)
            self._unlock(values)
            raise

        # Nothing can fail from here on.
        numbers = [number_of(value) for value in values]
        overwritten = [values[position] for position in written]
        recorded = all(value.recipe for value in overwritten) and bool(results or written)
        for i, content in enumerate(made):
            content.number = content_of(name, numbers, i)
        fresh = [Value(rounded(size), content) for size, content in zip(results, made, strict=True)]
        ids = [self._new_storage(value) for value in fresh]
        superseded = []
        for i, old in enumerate(overwritten, len(results)):
            assert old.content is not None
            old.content.number = content_of(name, numbers, i)
            if old.recipe is None:
                continue  # It is no recipe's input any more: its new content is just there.
            new = Value(old.size, old.content, home=old.home)
            assert old.home is not None
            self.storages[old.home] = new
            superseded.append(old)
            fresh.append(new)
        for position in dropped:
            self._let_go(self.storages.pop(inputs[position]))
            values[position].dropped_while_locked = True
        self.clock += cost
        self.base_cost += cost
        if recorded:
            recipe = Recipe(name, cost, values, list(fresh))
            for value in values:
                value.readers.append(recipe)
            for value in fresh:
                value.recipe = recipe
                value.last_access = self.clock
                self.owned.append(value)
                self._add_candidate(value)
        for value in superseded:
            self._let_go(value)
            self._lose(value)
        self._unlock(values)
        return ids

    def drop(self, at: int) -> None:
        value = self.storages.pop(at)
        self._let_go(value)
        self._release_dropped(value)
        self._collect(value)

    def read(self, at: int) -> int:
        value = self.storages[at]
        value.locks += 1
        value.last_access = self.clock
        try:
            self._materialize(value)
            return number_of(value)
        finally:
            self._unlock([value])

    def evict(self, at: int) -> bool:
        value = self.storages[at]
        if value.recipe is None or value.content is None:
            return False
        self.evict_value(value)
        return True

    def freeze(self, at: int) -> None:
        self.read(at)
        if self.storages[at].recipe is not None:
            self._freeze(self.storages[at])

    def fail_allocation(self, k: int) -> None:
        self.allocations_to_failure = k

    def fail_replay(self, k: int) -> None:
        self.replays_to_failure = k

    def commit(self) -> None:
        """What cannot be brought back stays missing; the rest is frozen."""
        for i in reversed(range(len(self.owned))):
            if i < len(self.owned) and self.owned[i].content is not None:
                self._freeze(self.owned[i])
        error: OutOfMemoryError | None = None
        lost: list[Value] = []
        while left := [value for value in self.owned if value not in lost]:
            try:
                self._settle(left[-1])
            except OutOfMemoryError as first:
                error = error or first
                lost.append(left[-1])
        if error:
            raise error

    # What can be seen

    def take_evicted(self) -> list[int]:
        evicted, self.evicted = self.evicted, []
        return evicted

    def resident(self, at: int) -> bool:
        return self.storages[at].content is not None

    def offset(self, at: int) -> int:
        content = self.storages[at].content
        assert content is not None
        return content.offset

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

    # Memory

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

    def evict_waiting(self) -> bool:
        """Of what only waiting recomputations hold, unless they have run too often."""
        waiting = [v for v in self.candidates if v.locks and v.locks == v.waiting]
        if self.rematerializations - self.runs_before > 100 * self.records()[1] or not waiting:
            return False
        self.evaluations += len(waiting)
        self.given_up += 1
        self.evict_value(self._least(waiting))
        return True

    def _least(self, values: Sequence[Value]) -> Value:
        return min(values, key=lambda value: (self.score(value), -value.order))

    def _all_are_affordable(self) -> bool:
        """At 25 ns a score, within a hundredth of the operators' time."""
        rows = len(self.candidates)
        return rows <= 32 or (self.evaluations + rows) * 25 <= self.clock // 100

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

    # Coming back

    def _materialize(self, value: Value) -> None:
        if value.content is None:
            self.runs_before = self.rematerializations
            self._replay(value)

    def _replay(self, wanted: Value) -> None:
        """What is there is locked at once, what is missing as it comes back. Until all have been
        there they wait, and may be given up; from then on they are held, and brought back."""
        recipe = wanted.recipe
        assert recipe is not None
        for value in recipe.inputs:
            value.last_access = self.clock
        missing = [value for value in recipe.inputs if not value.content]
        waiting = [value for value in recipe.inputs if value.content]
        for value in waiting:
            value.locks += 1
            value.waiting += 1
        try:
            while missing:
                if missing[0].content is None:
                    self._replay(missing[0])
                missing[0].locks += 1
                missing[0].waiting += 1
                waiting.append(missing.pop(0))
            while waiting:
                waiting.pop().waiting -= 1
            while lost := [value for value in recipe.inputs if value.content is None]:
                self._replay(lost[0])
            self._run(recipe)
            if wanted.content is not None:
                self._stamp(wanted)
            self.rematerializations += 1
            self.clock += recipe.cost
            self.remat_cost += recipe.cost
        finally:
            for value in waiting:
                value.waiting -= 1
            for value in missing:
                value.locks += 1
            self._unlock(recipe.inputs)

    def _run(self, recipe: Recipe) -> None:
        """Brings back what is missing when it starts. A sibling that goes meanwhile stays gone."""
        if self.replays_to_failure > 0:
            self.replays_to_failure -= 1
            if self.replays_to_failure == 0:
                raise OutOfMemoryError
        numbers = [number_of(value) for value in recipe.inputs]
        made: list[tuple[Value, Content]] = []
        missing = [(i, v) for i, v in enumerate(recipe.outputs) if v and v.content is None]
        try:
            for i, value in missing:
                number = content_of(recipe.name, numbers, i)
                made.append((value, self._allocate(value.size, number)))
        except OutOfMemoryError:
            for _, content in made:
                self.pool.free(content.offset)
            raise
        for value, content in made:
            self._return(value)
            if value.node:
                value.node.root().cost -= recipe.cost
                value.node.parent, value.node.cost = None, recipe.cost
            value.content = content
            value.recomputes += 1
            self._add_candidate(value)

    # Lifetime

    def _new_storage(self, value: Value) -> int:
        value.home = self.next_id
        self.storages[self.next_id] = value
        self.next_id += 1
        return value.home

    def _let_go(self, value: Value) -> None:
        if value in self.owned:
            self._disown(value)
        value.home = None

    def _unlock(self, values: Sequence[Value]) -> None:
        for value in values:
            value.locks -= 1
            if not value.locks:
                self._stamp(value)
                if value.dropped_while_locked:
                    value.dropped_while_locked = False
                    self._release_dropped(value)
            self._collect(value)

    def _collect(self, value: Value) -> None:
        """Frees it, and whatever only it kept, if nothing needs it."""
        if value.home is not None or value.readers or value.locks:
            return
        recipe = value.recipe
        if value.content is not None:
            swap_remove(self.candidates, value)
            self.pool.free(value.content.offset)
        else:
            self._return(value)
        value.content = None
        if recipe:
            self._cut(value, recipe)

    def _cut(self, value: Value, recipe: Recipe) -> None:
        """The recipe makes `value` no more; with its last output it goes."""
        value.recipe = None
        recipe.outputs[recipe.outputs.index(value)] = None
        if any(recipe.outputs):
            return
        for read in recipe.inputs:
            read.readers.remove(recipe)
        for read in reversed(recipe.inputs):
            if read.recipe or read.content:  # Else it went with another input.
                self._collect(read)

    def _freeze(self, value: Value) -> None:
        swap_remove(self.candidates, value)
        self._disown(value)
        assert value.recipe is not None
        self._cut(value, value.recipe)

    def _settle(self, value: Value) -> None:
        value.locks += 1
        try:
            self._materialize(value)
            if value.recipe:
                self._freeze(value)
        finally:
            self._unlock([value])

    def _retire(self, constant: Value) -> None:
        """Freezes all that rests on `constant` and that the program holds, the newest first. What
        cannot be brought back stays missing."""
        seen: set[Recipe] = set()
        frontier = [constant]
        live: list[Value] = []
        while frontier:
            for recipe in reversed(frontier.pop().readers):
                if recipe not in seen:
                    seen.add(recipe)
                    outputs = [output for output in recipe.outputs if output]
                    frontier += outputs
                    live += [output for output in outputs if output.home is not None]
        for value in live:
            value.locks += 1
        error: OutOfMemoryError | None = None
        while live:
            try:
                self._settle(live[-1])
            except OutOfMemoryError as first:
                error = error or first
            self._unlock([live.pop()])
        if error:
            raise error


def swap_remove(values: list[Value], value: Value) -> None:
    """Without it the last one takes its place."""
    if value in values:
        at = values.index(value)
        last = values.pop()
        if at < len(values):
            values[at] = last
