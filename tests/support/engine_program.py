"""Programs for the engine's harness and its model: what they read must be exact, and what is
decided must be the model's."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dtr_alloc.runtime.heuristic import Heuristic
from tests.engine_harness.harness import EngineHarness
from tests.models.engine_model import Model
from tests.models.modelled_values import content_of

T = TypeVar("T")


def outcome(act: Callable[[], T]) -> T | MemoryError:
    try:
        return act()
    except MemoryError as error:
        return error


class Program:
    """A program under a budget: all it reads must be exact, all it decides must be the model's.

    Operands are numbers that are taken modulo what there is, so any numbers are a program.
    """

    def __init__(
        self,
        budget: int,
        heuristic: Heuristic,
        with_model: bool,
        spare: int = 0,
        page_price: int | None = None,
    ) -> None:
        self.run = EngineHarness(budget, heuristic._native(), spare=spare, page_price=page_price)
        self.model = Model(budget, heuristic, spare, page_price) if with_model else None
        self.budget = budget
        self.contents: dict[int, int] = {}
        self.made = self.failures = 0

    def both(self, act: Callable[[Any], T]) -> T | MemoryError:
        got = outcome(lambda: act(self.run))
        if self.model is not None:
            expected = outcome(lambda: act(self.model))
            if isinstance(got, MemoryError) or isinstance(expected, MemoryError):
                assert isinstance(got, MemoryError) == isinstance(expected, MemoryError)
            else:
                assert got == expected
        self.failures += isinstance(got, MemoryError)
        return got

    def pick(self, operand: int) -> int:
        ids = list(self.contents)
        return ids[operand % len(ids)]

    def constant(self, size: int) -> None:
        self.made += 1
        number = 1000 + self.made
        made = self.both(lambda engine: engine.constant(size, number))
        if not isinstance(made, MemoryError):
            self.contents[made] = number

    def call(
        self,
        cost: int,
        operands: Sequence[int],
        writes: Sequence[bool],
        results: Sequence[int],
        drops: Sequence[bool] = (),
    ) -> None:
        self.made += 1
        name = self.made
        inputs = [self.pick(operand) for operand in operands] if self.contents else []
        written: list[int] = []
        for position in range(min(len(inputs), len(writes))):
            if writes[position] and inputs[position] not in [inputs[at] for at in written]:
                written.append(position)
        gone = [inputs[at] for at in written]
        dropped: list[int] = []
        for position in range(min(len(inputs), len(drops))):
            if drops[position] and inputs[position] not in gone:
                gone.append(inputs[position])
                dropped.append(position)
        made = self.both(lambda engine: engine.call(name, cost, inputs, written, results, dropped))
        if isinstance(made, MemoryError):
            return
        assert len(made) == len(results)
        numbers = [self.contents[at] for at in inputs]
        for i, at in enumerate([*made, *(inputs[position] for position in written)]):
            self.contents[at] = content_of(name, numbers, i)
        for position in dropped:
            del self.contents[inputs[position]]

    def fail_allocation(self, k: int) -> None:
        """The k-th from now on, whatever asks for it. 0: none."""
        self.both(lambda engine: engine.fail_allocation(k))

    def fail_replay(self, k: int) -> None:
        self.both(lambda engine: engine.fail_replay(k))

    def drop(self, operand: int) -> None:
        at = self.pick(operand)
        self.both(lambda engine: engine.drop(at))
        del self.contents[at]

    def read(self, operand: int) -> None:
        at = self.pick(operand)
        resident = self.run.resident(at)
        got = self.both(lambda engine: engine.read(at))
        if isinstance(got, MemoryError):
            assert not resident
        else:
            assert got == self.contents[at]
            assert self.run.resident(at)

    def evict(self, operand: int) -> None:
        at = self.pick(operand)
        if self.both(lambda engine: engine.evict(at)):
            assert not self.run.resident(at)

    def freeze(self, operand: int) -> None:
        at = self.pick(operand)
        if not isinstance(self.both(lambda engine: engine.freeze(at)), MemoryError):
            assert self.run.resident(at)
            assert not self.run.evict(at)

    def commit(self) -> None:
        if not isinstance(self.both(lambda engine: engine.commit()), MemoryError):
            stats = self.run.stats()
            assert (stats.values, stats.ops, stats.evictable) == (0, 0, 0)
            assert all(self.run.resident(at) for at in self.contents)

    def compare(self) -> None:
        self.run.check()
        stats = self.run.stats()
        assert self.run.live_bytes <= self.run.peak_bytes <= self.budget
        assert stats.clock == stats.base_cost + stats.remat_cost
        evicted = [at for at in self.run.take_evicted() if at >= 0]
        model = self.model
        if model is None:
            return
        assert evicted == model.take_evicted()
        for name in ("evictions", "rematerializations", "clock", "base_cost", "remat_cost"):
            assert getattr(stats, name) == getattr(model, name), name
        assert (self.run.live_bytes, self.run.peak_bytes) == (model.pool.live(), model.pool.peak)
        assert (stats.values, stats.ops) == model.records()
        assert stats.evictable == sum(value.size for value in model.candidates)
        for at in self.contents:
            assert self.run.resident(at) == model.resident(at)
            assert not self.run.resident(at) or self.run.offset(at) == model.offset(at)

    def end(self) -> None:
        """Whatever was evicted, all is read once more, and nothing is left of it."""
        self.fail_allocation(0)
        self.fail_replay(0)
        for operand in range(len(self.contents)):
            self.read(operand)
            self.compare()
        self.commit()
        self.compare()
        while self.contents:
            self.drop(0)
        self.compare()
        stats = self.run.stats()
        assert (stats.values, stats.ops, stats.classes, self.run.live_bytes) == (0, 0, 0, 0)


def run_random(
    program: Program,
    rng: random.Random,
    steps: int,
    size: int,
    hold: int,
    longest: int = 1000,
    failing: bool = False,
) -> None:
    """Mostly calls, of up to `longest` ns; it holds about `hold` storages, the older ones dropped
    first. Where it is `failing`, requests and recomputations fail now and then."""
    for _ in range(4):
        program.constant(rng.randint(0, size))
    for _ in range(steps):
        draw = rng.random()
        anything = rng.randrange(1 << 30)
        if draw < 0.55 or not program.contents:
            recent = len(program.contents) - 1 - min(int(rng.expovariate(0.3)), hold)
            operands = [recent, *(rng.randrange(1 << 30) for _ in range(rng.randint(0, 2)))]
            writes = [rng.random() < 0.1 for _ in operands]
            results = [rng.randint(0, size) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)))]
            drops = [failing and rng.random() < 0.1 for _ in operands]
            program.call(rng.randint(0, longest), operands, writes, results, drops)
            while len(program.contents) > hold:
                program.drop(int(rng.triangular(0, hold, 0)))
        elif draw < 0.80:
            program.read(anything)
        elif draw < 0.86:
            program.drop(anything)
        elif draw < 0.92:
            program.evict(anything)
        elif draw < 0.93:
            program.freeze(anything)
        elif failing and draw < 0.95:
            program.fail_allocation(rng.randint(1, 10))
        elif failing and draw < 0.97:
            program.fail_replay(rng.randint(1, 10))
        elif draw < 0.998:
            program.constant(rng.randint(0, size))
        else:
            program.commit()
        program.compare()
