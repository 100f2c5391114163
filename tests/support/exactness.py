"""Runs a program eagerly and under the runtime's hardest modes, and compares bit for bit.

evict_always evicts every tensor after every operator, so each touch is a recomputation; verify
replays every recorded operator at once; swap_always writes every tensor to a file after every
operator, and reads it when it is touched. All compare with plain torch on the same seed.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.runtime.scope.session import Session
from tests.support.instruments import instrumented

P = ParamSpec("P")
Program = Callable[[], Iterable[Tensor]]

MODES: dict[str, dict[str, Any]] = {
    "recorded": {},
    "evict_always": {"evict_always": True},
    "verify": {"verify": True},
    "swap_always": {"swap_always": True},
}


def bits(tensor: Tensor) -> tuple[Any, ...]:
    """What two equal tensors agree on: geometry, type and every byte (so NaN equals NaN)."""
    tensor = tensor.detach()
    content = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), content.clone()


def grad_of(tensor: Tensor) -> Tensor:
    """Its gradient, which it must have."""
    assert tensor.grad is not None
    return tensor.grad


def after_training(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int = 2,
) -> Iterator[Tensor]:
    """Losses, then every parameter, gradient, buffer and tensor of optimizer state."""
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield value
    for parameter in model.parameters():
        yield parameter
        yield grad_of(parameter)
    yield from model.buffers()
    for state in optimizer.state.values():
        yield from (item for item in state.values() if isinstance(item, Tensor))


def comes_back(tensor: Tensor) -> bool:
    """Whether it can be evicted, and has the same bits again when it is read."""
    before = bits(tensor)
    return dtr_alloc.evict(tensor) and same(bits(tensor), before)


def chain(length: int, rows: int = 256) -> list[Tensor]:
    """`length` tensors of 64 KiB (for 256 rows), each computed from the one before."""
    tensors = [torch.ones(rows, 64).exp()]
    while len(tensors) < length:
        tensors.append((tensors[-1] * 1.01).sin())
    return tensors


def same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return first[:2] == second[:2] and torch.equal(first[2], second[2])


def alike(found: Iterable[tuple[Any, ...]], expected: Iterable[tuple[Any, ...]]) -> bool:
    """Whether as many tensors have the same bits."""
    return all(same(one, other) for one, other in zip(found, expected, strict=True))


def run(program: Program, seed: int | None = 0) -> list[tuple[Any, ...]]:
    """What the program shows, from a seed, or from the generator as it stands."""
    if seed is not None:
        torch.manual_seed(seed)
    return [bits(tensor) for tensor in program()]


def assert_exact(
    program: Program,
    *,
    evictions: bool = True,
    modes: Iterable[str] = tuple(MODES),
    recordable: Any = (),
) -> None:
    """The program's results, and the generator after it, are eager's in every one of `modes`.

    With `evictions`, something must have been evicted in evict_always mode: else nothing was shown.
    """
    expected = run(program)
    generator = torch.get_rng_state()
    for mode in modes:
        with scope(None, recordable=recordable, **MODES[mode]) as session:
            found = run(program)
            assert torch.equal(torch.get_rng_state(), generator), f"{mode}: the generator differs"
            session.check()
        assert len(found) == len(expected)
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            assert same(one, other), f"{mode}: result {index} differs from eager"
        stats = session.stats()
        assert stats.records == 0, f"{mode}: {stats.records} records outlive the scope"
        if mode == "evict_always" and evictions:
            assert stats.evictions > 0


def exact(program: Callable[P, Iterable[Tensor]]) -> Callable[P, None]:
    """The test that a program is exact in all modes. The test's arguments are the program's."""

    @functools.wraps(program)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        assert_exact(lambda: program(*args, **kwargs))

    return test


def assert_exact_within(share: float, program: Program, **options: Any) -> Session:
    """The program's results are eager's in `share` of what it has in memory at its peak and not at
    its end, beside what it has then. It recomputes, and the budget holds. The session that was."""
    expected = run(program)
    with dtr_alloc.measure() as measured:
        run(program)
        kept = measured.stats().live_bytes
    budget = kept + int(share * (measured.stats().peak_bytes - kept))
    with dtr_alloc.rematerialize(budget, clock="logical", thrash_limit=0, **options) as session:
        found = run(program)
        session.check()
    assert alike(found, expected)
    assert session.stats().rematerializations > 0
    assert session.stats().peak_bytes <= budget
    return session


@contextmanager
def scope(
    budget: int | str | None, *, recordable: Any = (), **instruments: Any
) -> Iterator[Session]:
    swap: dict[str, Any] = {}
    if instruments.get("swap_always"):
        swap = {"swap": "1GiB", "swap_anywhere": True}
        budget = budget or "64GiB"
    opened = dtr_alloc.rematerialize(
        budget, clock="logical", thrash_limit=0, recordable=recordable, **swap
    )
    with instrumented(**instruments), opened as session:
        yield session
