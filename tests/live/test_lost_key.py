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
from tests.support.threads import in_threads

KEY = torch._C.DispatchKey(_core.dispatch_key)
WARNING = "was made without the runtime in a thread of the dtr_alloc scope"


def clear() -> None:
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def test_a_warning_comes_once_and_nothing_is_evicted(told: list[warnings.WarningMessage]) -> None:
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
            clear()
            made.append(torch.ones(256, 256))

        made: list[Tensor] = []
        in_threads(work)
        assert "unseen" in session.summary()


def test_memory_of_other_threads_is_theirs(told: list[warnings.WarningMessage]) -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        made: list[Tensor] = []
        in_threads(lambda: made.append(torch.ones(1024, 1024)), join=False)
        assert "unseen" not in session.summary()
    assert not told


def test_the_end_of_a_scope_is_no_request_of_the_program(
    told: list[warnings.WarningMessage], capfd: pytest.CaptureFixture[str]
) -> None:
    """It recomputes what the program still holds."""
    norm = torch.nn.BatchNorm1d(64)
    with scope("8MiB") as session:
        y = norm(torch.randn(256, 64))
        assert dtr_alloc.evict(y)
        clear()
    assert "unseen" not in session.summary()
    assert not told
    assert "made without" not in capfd.readouterr().err


def test_a_thread_of_an_earlier_scope_is_no_member_of_a_later_one(
    told: list[warnings.WarningMessage],
) -> None:
    """A scope that another thread leaves takes nothing from the thread that opened it."""
    first = dtr_alloc.rematerialize("1MiB")
    first.__enter__()
    in_threads(lambda: first.__exit__(None, None, None), join=False)
    clear()

    def work() -> None:
        with dtr_alloc.rematerialize("1MiB") as session:
            opened.set()
            made.wait()
            summaries.append(session.summary())

    opened, made = threading.Event(), threading.Event()
    summaries: list[str] = []
    thread = threading.Thread(target=work)
    thread.start()
    opened.wait()
    kept = torch.ones(256, 256)
    made.set()
    thread.join()
    assert "unseen" not in summaries[0]
    assert not told
    assert float(kept.sum()) == 65536


def test_after_the_scope_nothing_is_told(told: list[warnings.WarningMessage]) -> None:
    with dtr_alloc.rematerialize("1MiB"):
        pass
    torch.ones(1024)
    assert not told
    assert not torch._C._dispatch_tls_is_dispatch_key_included(KEY)


def f(x: Tensor) -> Tensor:
    return (x @ x).relu().sum(0)


def fakes(rng: random.Random) -> None:
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


def program(seed: int, *, fake: bool) -> list[Tensor]:
    steps: list[Callable[[Tensor], Tensor]]
    rng, of_fakes = random.Random(seed), random.Random(seed)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    steps = [torch.sin, torch.tanh, lambda t: t @ t.t() / 64, *layers]
    held = [torch.randn(64, 64)]
    for _ in range(rng.randint(8, 16)):
        x = held[rng.randrange(len(held))]
        step = rng.choice(steps)
        if fake and of_fakes.random() < 0.3:
            with torch.random.fork_rng():
                fakes(of_fakes)
            if of_fakes.random() < 0.5:
                # As the end of torch's own mode in C++ does. What is evicted cannot be read now.
                for one in (*(p for layer in layers for p in layer.parameters()), x):
                    dtr_alloc.materialize(one)
                clear()
                for _ in range(of_fakes.randint(1, 3)):
                    x.sin() @ x
                held.append(step(x))
                dtr_alloc.materialize(x)
                continue
        held.append(step(x))
    loss = torch.stack([one.square().mean() for one in held]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(one.weight.grad for one in layers if one.weight.grad is not None)]


@pytest.mark.filterwarnings("ignore:a tensor of .* was made without the runtime")
@pytest.mark.parametrize("seed", range(50))
def test_programs_that_open_fake_modes_are_exact(seed: int) -> None:
    expected = [bits(one) for one in program(seed, fake=False)]
    with scope("512KiB", evict_always=seed % 2 == 0):
        assert alike(map(bits, program(seed, fake=True)), expected)
