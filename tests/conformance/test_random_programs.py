"""Random programs: views, writes through them, libraries' names for the same memory, raw access,
lazy clones, resized storages, random numbers and dropped tensors, in any order. Each is run eagerly
and in every mode, and all that it can see must be alike, whenever it looks."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

import dtr_alloc
from tests.support.exactness import alike, assert_exact, run, scope
from tests.support.threads import in_threads

T = TypeVar("T")
SIDE = 20  # Matrices of 1600 bytes: above what is evictable.


class Machine:
    """A program of `length` steps that `seed` decides. Values stay small, so that nothing becomes
    infinite. Only with `draws` does it use torch's own generator."""

    def __init__(self, seed: int, length: int, draws: bool = True) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.length = length
        self.draws = draws
        self.held: list[Tensor] = []

    def one_of(self, *choices: Callable[[], T]) -> T:
        return self.random.choice(choices)()

    def any(self) -> Tensor:
        return self.random.choice(self.held)

    def run(self) -> Iterator[Tensor]:
        normal = torch.randn(SIDE, SIDE, generator=self.generator)
        self.held = [normal, torch.ones(SIDE, SIDE).cos()]
        steps: list[Callable[[], Tensor | None]] = [
            self.compute, self.compute, self.compute, self.view, self.view, self.write, self.write,
            self.write_view, self.out, self.expose, self.swap, self.statistics, self.several,
            self.draw if self.draws else self.compute,
        ]  # fmt: skip
        # Never both: torch gives a library the memory that a lazy clone leaves when it is written.
        steps.append(self.random.choice([self.library, self.lazy]))
        for _ in range(self.length):
            made = self.random.choice(steps)()
            if made is not None:
                self.held.append(made)
            if len(self.held) > 10:
                self.held.pop(self.random.randrange(len(self.held)))
            if self.random.random() < 0.2:
                dtr_alloc.evict(self.any())
            if self.random.random() < 0.1:
                yield self.any()
        yield from self.held

    def compute(self) -> Tensor:
        x, y = self.any(), self.any()
        return self.one_of(
                lambda: x.sin(), lambda: x + y, lambda: x * 0.5 - y, lambda: (x @ y).tanh(),
                lambda: torch.where(x > 0, x, y), lambda: torch.cat([x[:9], y[9:]]),
                lambda: x.t().contiguous(), lambda: x.clone(), lambda: x.softmax(0),
                lambda: x.sum(0, keepdim=True) * 0.01 + y, lambda: x.detach().cos(),
                lambda: torch.empty_like(x).copy_(y), lambda: torch.zeros_like(x) + 1,
        )  # fmt: skip

    def view(self) -> Tensor:
        x = self.any()
        return self.one_of(
            lambda: x.t(), lambda: x.view_as(x), lambda: x.flip(0), lambda: x.detach(),
            lambda: x.unfold(0, SIDE, 1)[0].t(), lambda: x.reshape(SIDE, SIDE)
        )  # fmt: skip

    def write(self) -> None:
        x, y = self.any(), self.any().clone()
        self.one_of(
            lambda: x.mul_(0.5), lambda: x.add_(y).tanh_(), lambda: x.copy_(y),
            lambda: x.zero_(), lambda: x.clamp_(-1, 1), lambda: x.masked_fill_(y > 0.5, 0.25)
        )  # fmt: skip

    def write_view(self) -> None:
        x, row = self.any(), self.random.randrange(SIDE)
        self.one_of(
            lambda: x[row].fill_(0.5), lambda: x[:, row].mul_(0.5), lambda: x.diagonal().add_(0.1),
            lambda: x[row:].copy_(x[: SIDE - row].clone()), lambda: x.t()[row].neg_()
        )  # fmt: skip

    def out(self) -> None:
        x, y, into = self.any(), self.any().clone(), self.any()
        torch.add(x.clone(), y, alpha=0.5, out=into)

    def library(self) -> Tensor:
        """Another name for memory of ours, or two for one array."""
        x = self.any().detach()  # A name of its own: `set_` would free what a library reads.
        if self.random.random() < 0.5:
            array = np.full((SIDE, SIDE), self.random.random(), dtype=np.float32)
            self.held.append(torch.from_numpy(array))
            return torch.from_numpy(array)
        if x.storage_offset() == 0 and x.is_contiguous():
            return torch.utils.dlpack.from_dlpack(x)
        return torch.from_numpy(x.numpy())

    def expose(self) -> None:
        x = self.any()
        self.one_of(lambda: str(x.tolist()), lambda: repr(x), lambda: str(x.numpy().sum()))

    def lazy(self) -> Tensor:
        return torch._lazy_clone(self.any())

    def draw(self) -> Tensor:
        x = self.any()
        return self.one_of(
            lambda: torch.dropout(x, 0.3, True), lambda: torch.randn_like(x),
            lambda: torch.rand(SIDE, SIDE), lambda: torch.bernoulli(x.sigmoid())
        )  # fmt: skip

    def swap(self) -> None:
        """What holds a tensor's place is another storage."""
        x, y = self.any(), self.any().clone()
        if self.random.random() < 0.5:
            x.data = y
        else:
            x.set_(y)  # type: ignore[call-overload]

    def statistics(self) -> Tensor:
        mean, x = torch.zeros(SIDE), self.any()
        spread = torch.ones(SIDE)
        result = torch.nn.functional.batch_norm(x, mean, spread, training=True)
        return result + mean * 0.1 + spread.expand(SIDE, SIDE) * 0.1

    def several(self) -> Tensor:
        values, _ = self.any().topk(SIDE, dim=1)
        first, second = torch.split(values, SIDE // 2)
        return torch.cat([second, first])


@pytest.mark.parametrize(
    ("seed", "length"),
    [
        *((seed, 150) for seed in range(12)),
        *(pytest.param(seed, 600, marks=pytest.mark.slow) for seed in range(100, 160)),
    ],
)
def test_a_random_program_sees_what_it_sees_in_eager(seed: int, length: int) -> None:
    assert_exact(lambda: Machine(seed, length).run())


@pytest.mark.parametrize("instruments", [{}, {"evict_always": True}], ids=["by hand", "always"])
@pytest.mark.parametrize("seed", range(0, 12, 4))
def test_random_programs_in_threads_see_what_each_sees_alone(
    seed: int, instruments: dict[str, bool]
) -> None:
    def program(number: int) -> Machine:
        return Machine(seed + number, 150, draws=False)

    def work(number: int) -> None:
        found[number] = run(program(number).run, seed=None)

    found: dict[int, list[tuple[Any, ...]]] = {}
    alone = [run(program(number).run) for number in range(4)]
    with scope(None, **instruments) as session:
        in_threads(*(partial(work, number) for number in range(4)))
        session.check()
    assert session.stats().evictions > 0
    assert session.stats().records == 0
    for number, expected in enumerate(alone):
        assert alike(found[number], expected)
