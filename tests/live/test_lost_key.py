"""Somebody clears the key's bit of a thread inside a scope, as torch's C++ fake mode does when it
ends: the budget holds, it is said at once, and the runtime sees the thread again soon."""

import random
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import alike, bits, scope

KEY = torch._C.DispatchKey(_core.dispatch_key)
WARNING = "made without the runtime in a thread of the dtr_alloc scope"


def clear() -> None:
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def test_a_warning_comes_once_and_nothing_is_evicted_meanwhile(
    told: list[warnings.WarningMessage],
) -> None:
    """A kernel that the runtime does not see may be reading any tensor."""
    with dtr_alloc.rematerialize("2MiB") as session:
        held = [torch.ones(256, 256) * i for i in range(7)]
        before = session.stats().evictions
        clear()
        made = [held[-1] + i for i in range(100)]
        assert session.stats().evictions == before
        assert all(float(one.sum()) == (6 + i) * 65536 for i, one in enumerate(made))
    assert session.stats().peak_bytes <= 2 << 20
    assert sum(WARNING in str(one.message) for one in told) == 1
    assert "unseen" in session.summary()


@pytest.mark.parametrize("call", ["materialize", "evict", "pin", "resize", "optimizer"])
def test_own_calls_and_steps_switch_it_on_again(call: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([parameter])
    with scope("8MiB") as session:
        x = torch.ones(256, 256)
        clear()
        if call == "optimizer":
            optimizer.step()
        elif call == "resize":
            session.resize("6MiB")
        else:
            getattr(dtr_alloc, call)(x)
        y = x + 1
        assert dtr_alloc.evict(y)
        assert float(y.sum()) == 2 * 256 * 256


def test_a_thread_that_joined_is_told_of_too(told: list[warnings.WarningMessage]) -> None:
    with dtr_alloc.rematerialize("8MiB") as session:

        def work() -> None:
            with dtr_alloc.join_scope():
                clear()
                made.append(torch.ones(256, 256))

        made: list[Tensor] = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert "unseen" in session.summary()


def test_memory_of_other_threads_is_theirs(told: list[warnings.WarningMessage]) -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(torch.ones(1024, 1024)))
        thread.start()
        thread.join()
        assert "unseen" not in session.summary()
    assert not told


def test_after_the_scope_nothing_is_told(told: list[warnings.WarningMessage]) -> None:
    with dtr_alloc.rematerialize("1MiB"):
        pass
    torch.ones(1024)
    assert not told
    assert not torch._C._dispatch_tls_is_dispatch_key_included(KEY)


def f(x: Tensor) -> Tensor:
    return (x @ x).relu().sum(0)


def fakes(rng: random.Random, x: Tensor) -> None:
    """What opens a fake mode, and closes it."""
    kind = rng.randrange(4)
    if kind == 0:
        with FakeTensorMode() as mode:
            f(mode.from_tensor(torch.ones(8, 8)))
    elif kind == 1:
        make_fx(f, tracing_mode="fake")(torch.ones(8, 8))
    elif kind == 2:
        module = torch.nn.Linear(4, 4)
        torch.export.export(module, (torch.ones(2, 4),))
    else:
        torch._dynamo.reset()
        torch.compile(f, backend="eager")(torch.ones(8, 8))
    if rng.random() < 0.5:
        clear()  # As that of torch's C++ would.
        dtr_alloc.materialize(x)


def program(seed: int, *, fake: bool) -> list[Tensor]:
    steps: list[Callable[[Tensor], Tensor]]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    steps = [torch.sin, torch.tanh, lambda t: t @ t.t() / 64, *layers]
    held = [torch.randn(64, 64)]
    for _ in range(rng.randint(8, 16)):
        x = held[rng.randrange(len(held))]
        if rng.random() < 0.3 and fake:
            with torch.random.fork_rng():
                fakes(random.Random(seed), x)
        held.append(rng.choice(steps)(x))
    loss = torch.stack([one.square().mean() for one in held]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(one.weight.grad for one in layers if one.weight.grad is not None)]


@pytest.mark.parametrize("seed", range(50))
def test_programs_that_open_fake_modes_are_exact(seed: int) -> None:
    expected = [bits(one) for one in program(seed, fake=False)]
    with scope("512KiB", evict_always=seed % 2 == 0):
        assert alike(map(bits, program(seed, fake=True)), expected)
