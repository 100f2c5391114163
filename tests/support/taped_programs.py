"""Programs whose steps a tape can follow, and the settings under which tests run them."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import Heuristic
from dtr_alloc.runtime.heuristic import DEFAULT, PRESETS
from dtr_alloc.runtime.scope.session import Session

ELEMENTS = 1 << 14  # 64 KiB.
BYTES = 4 * ELEMENTS

KINDS = [
    Heuristic(next_use=True),
    Heuristic("ancestors", staleness_exp=0.7, next_use=True),
    Heuristic("full", staleness_exp=0.5, next_use=True),
    Heuristic("lineage", next_use=True, orphans_first=True),
    Heuristic("none", next_use=True, selection="window"),
    PRESETS[DEFAULT],
    Heuristic("eqclass", next_use=True, stepping_stones=True),
]


@contextmanager
def scope(blocks: float, heuristic: Heuristic = KINDS[0]) -> Iterator[Session]:
    """Costs are bytes, so that each run decides alike."""
    with dtr_alloc.rematerialize(
        int(blocks * BYTES), heuristic=heuristic, clock="logical", thrash_limit=0
    ) as session:
        yield session


class Program:
    """Steps of an optimizer that has nothing to do."""

    def __init__(self) -> None:
        self.parameter = torch.zeros(ELEMENTS)
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1)

    def end_step(self) -> None:
        self.optimizer.step()


def random_step(x: Tensor, choose: random.Random, carried: Tensor) -> tuple[Tensor, Tensor]:
    """A chain with branches, some of it in place; what one step carries, the next reads."""
    values = [x + 1, carried * 1]
    for _ in range(choose.randrange(6, 20)):
        one, other = choose.choice(values), choose.choice(values)
        kind = choose.randrange(5)
        if kind == 0:
            values.append(one.sin())
        elif kind == 1:
            values.append(one + other)
        elif kind == 2:
            values.append((one * other).clamp(-1, 1))
        elif kind == 3:
            values.append(one.clone().add_(0.5))
        elif len(values) > 3:
            values.pop(choose.randrange(len(values)))
    total = values[0]
    for value in values[1:]:
        total = (total + value).tanh()
    return total, values[-1].clamp(-1, 1)


def run(seeds: list[int], after: Callable[[int], None]) -> list[Tensor]:
    program, x = Program(), torch.linspace(0, 1, ELEMENTS)
    carried, kept = torch.zeros(ELEMENTS), []
    for number, seed in enumerate(seeds):
        total, carried = random_step(x, random.Random(seed), carried)
        kept.append(total[:10].clone())
        program.end_step()
        after(number)
    return kept
