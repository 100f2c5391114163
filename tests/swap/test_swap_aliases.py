"""With a swap no memory moves that the program has another name for: an array, a storage, a tensor
laid over a storage. Random programs make such names, write and read through them, and drop them."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dtr_alloc
from tests.support.exactness import grad_of
from tests.support.instruments import instrumented

SIDE = 128  # Matrices of 64 KiB.
ROOM = 1 << 20


def rebuilt(t: Any) -> Tensor:
    made: Tensor = torch._utils._rebuild_tensor(  # type: ignore[no-untyped-call]
        t._typed_storage(), 0, t.size(), t.stride()
    )
    return made


NAMES: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda t: t.detach().numpy(),
    "dlpack": lambda t: np.from_dlpack(t.detach()),
    "storage": lambda t: t.untyped_storage(),
    "copy": copy.copy,
    "set_ to a storage": lambda t: torch.empty(0).set_(
        t.untyped_storage(), 0, t.size(), t.stride()
    ),
    "set_ to a tensor": lambda t: torch.empty(0).set_(t.detach()),
    "rebuilt": rebuilt,
    "data": lambda t: t.data,
    "view": lambda t: t.detach().view(-1),
    "array of a copy": lambda t: copy.copy(t).numpy(),
    "memory": lambda t: memoryview(t.detach().numpy()),
}


class Aliases:
    def __init__(self, seed: int, length: int = 60) -> None:
        self.random = random.Random(seed)
        self.length = length
        self.names: list[Any] = []
        self.made = 0

    def fresh(self) -> Tensor:
        """A tensor that nobody can compute again, or one that somebody can."""
        self.made += 1
        made = torch.full((SIDE, SIDE), 1 + self.made / 100).exp()
        if self.random.random() < 0.5:
            return made
        leaf = torch.ones(SIDE, SIDE, requires_grad=True)
        (leaf * made).sum().backward()  # type: ignore[no-untyped-call]
        return grad_of(leaf)

    def tensor(self) -> Tensor:
        tensors = [name for name in self.names if isinstance(name, Tensor)]
        return self.random.choice(tensors) if tensors else self.fresh()

    def write(self, name: Any) -> None:
        value = float(self.random.randrange(1, 50))
        if isinstance(name, Tensor):
            name.detach().view(-1)[3:40].fill_(value)
        elif isinstance(name, np.ndarray):
            name.reshape(-1)[5:60] = value
        elif isinstance(name, memoryview):
            name[0, 7] = value

    def run(self) -> Iterator[float]:
        self.names = [self.fresh()]
        for _ in range(self.length):
            drawn = self.random.random()
            if drawn < 0.35:
                base = self.tensor()
                if base.numel() == SIDE * SIDE and base.dim() == 2:
                    self.names.append(NAMES[self.random.choice(sorted(NAMES))](base))
            elif drawn < 0.5:
                self.names.append(self.fresh())
            elif drawn < 0.7:
                self.write(self.random.choice(self.names))
            elif drawn < 0.8:
                others = [torch.full((SIDE, SIDE), float(i)).cos() for i in range(20)]
                yield sum(float(other.sum()) for other in others)
            if len(self.names) > 8:
                del self.names[self.random.randrange(len(self.names))]
            seen = self.random.choice(self.names)
            if isinstance(seen, Tensor):
                yield float(seen.detach().sum())
            elif not isinstance(seen, torch.UntypedStorage):
                yield float(torch.as_tensor(np.asarray(seen)).sum())


@pytest.mark.parametrize("how", ["pool", "torch", "always"])
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_of_aliases_see_what_they_see_eagerly(seed: int, how: str) -> None:
    wanted, always = list(Aliases(seed).run()), how == "always"
    options: Any = {"memory": "torch" if how == "torch" else "pool", "clock": "logical"}
    scope = dtr_alloc.rematerialize(
        (4 if always else 2) * ROOM, swap="64MiB", swap_anywhere=True, **options
    )
    with instrumented(swap_always=always), scope as session:
        found = list(Aliases(seed).run())
        session.check()
    assert found == wanted


@pytest.mark.parametrize("memory", ["pool", "torch"])
@pytest.mark.parametrize("how", ["copy", "set_ to a storage", "rebuilt"])
def test_an_array_stays_where_a_tensor_is_laid_over_its_storage(how: str, memory: Any) -> None:
    scope = dtr_alloc.rematerialize("4MiB", memory=memory, swap="64MiB", swap_anywhere=True)
    with scope as session:
        tensor = torch.full((256, 256), 1.5).exp()
        array = tensor.numpy()
        over = NAMES[how](tensor)
        others = [torch.full((256, 256), float(i)).exp() for i in range(24)]
        assert session.stats().evictions > 0
        array[...] = 99.0
        assert float(tensor[0, 0]) == float(over[0, 0]) == 99.0
        assert [float(other[7, 7]) for other in others] == [
            float(torch.tensor(float(i)).exp()) for i in range(24)
        ]
        del others
