"""The engine as dicts, sets and recursion: what an `EngineHarness` must do, written to be read.

Made from the paper (section 3, section 4.1, appendix C.2) and from the rules in `engine.h`,
`neighbourhood.h`, `score.h` and `engine_harness.h`. Values, recipes and neighbourhoods are in
`modelled_values`, the choice of a victim is in `eviction_model`, and how a scope makes room is in
`room_model`.
"""

from collections.abc import Sequence

from tests.models.eviction_model import EvictionModel, OutOfMemoryError, swap_remove
from tests.models.modelled_values import Content, Recipe, Value, content_of, number_of, rounded


class Model(EvictionModel):
    # What a program does

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
            self._bring_back(values)
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

    # Coming back

    def _bring_back(self, values: Sequence[Value]) -> None:
        """Locked already. Until all have been there they wait, and may be given up."""
        for value in values:
            value.waiting += 1
        try:
            for value in values:
                self._materialize(value)
        finally:
            for value in values:
                value.waiting -= 1
        for value in values:
            self._materialize(value)

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
