"""What a program calls on a session, on a device whose clock is the fake driver's: each between the
passes of a step whose operators are work of the device, and the training ends with plain torch's
bits. `measure`, `plan` and `run` are in test_front_door_of_programs.py."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import Pool, Session
from dtr_alloc.runtime.scope.memory_history import History
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.trace.format import Call
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.fake_cuda.operator_work import Speed, operators_work
from tests.support.instruments import instrumented

MS = 1_000_000
LAYERS, WIDTH, ROWS = 10, 128, 4096  # A result of a layer is a page.
BUDGET = 24 * PAGE  # A step holds some twelve at once.
SPEED = Speed(host_us=5, gigabytes=2.097152, gigaflops=1e9)  # A page is read and written in 2 ms.


class Training:
    """In plain torch, or in a scope on the device. The host follows the device once a step."""

    def __init__(self, cuda: FakeCuda | None = None) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self._cuda = cuda
        self._losses: list[float] = []
        self._synchronized = 0

    def forward(self) -> Tensor:
        found: Tensor = self.model(torch.linspace(0, 1, ROWS * WIDTH).view(ROWS, WIDTH))
        return found.square().mean()

    def finish(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self._cuda is not None:
            before = self._cuda.time("waited")
            self._cuda.call("cuStreamSynchronize", 0)  # As loss.item() does.
            self._synchronized += self._cuda.time("waited") - before
        self._losses.append(loss.item())

    def waited(self) -> int:
        """Nanoseconds that the host waited for the device otherwise."""
        assert self._cuda is not None
        return self._cuda.time("waited") - self._synchronized

    def result(self) -> list[float]:
        return [*self._losses, *(p.double().sum().item() for p in self.model.parameters())]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    training = Training()
    for _ in range(5):
        training.finish(training.forward())
    return training.result()


@contextmanager
def fourth_step(
    cuda: FakeCuda, library: str, expected: list[float], **options: Any
) -> Iterator[tuple[Session, Training]]:
    """The body runs between its passes; what it and another step come to is exact all the same."""
    cuda.call("cuInit", 0)
    training = Training(cuda)
    opened = rematerialize(BUDGET, thrash_limit=0, **options)
    with instrumented(on_cuda=True), opened as session, operators_work(cuda, library, SPEED):
        for _ in range(3):  # Then the runtime knows what operators take.
            training.finish(training.forward())
        assert session.stats().evictions == 0
        loss = training.forward()
        yield session, training
        training.finish(loss)
        del loss
        training.finish(training.forward())
        session.check()
    assert training.result() == expected


def test_a_smaller_budget_waits_for_the_device_once_and_the_training_never(
    timed: FakeCuda, library: str, expected: list[float]
) -> None:
    with fourth_step(timed, library, expected) as (session, training):
        before = timed.used()
        session.resize(8 * PAGE)
        session.reset_peak()
        assert timed.used() <= 8 * PAGE < before
        waited = training.waited()
        assert waited > 0  # Kernels read what is taken from them.
    assert session.stats().peak_bytes <= 8 * PAGE
    assert session.stats().evictions > 0
    assert training.waited() == waited


def test_what_is_lent_is_there_for_another_of_the_device(
    timed: FakeCuda, library: str, expected: list[float]
) -> None:
    timed.set_capacity(BUDGET)
    pool = Pool(16 * PAGE, "cuda")
    with fourth_step(timed, library, expected) as (session, _):
        with pytest.raises(MemoryError):
            pool.allocate(16 * PAGE)
        with session.lend(16 * PAGE):
            pool.free(pool.allocate(16 * PAGE))
            pool.trim()
        assert session.stats().budget_bytes == BUDGET
    assert session.stats().rematerializations > 0


def test_what_is_released_leaves_the_device_and_is_computed_there_again(
    timed: FakeCuda, library: str, expected: list[float]
) -> None:
    with fourth_step(timed, library, expected) as (session, _):
        before = timed.used()
        assert session.release() == before - timed.used() >= LAYERS * PAGE
        before = session.stats().remat_ns
    again = session.stats().remat_ns - before
    assert again >= LAYERS * 2 * MS  # By the device's clock: the host needs microseconds.


def test_pictures_are_of_the_device_with_the_times_that_it_took(
    timed: FakeCuda, library: str, expected: list[float], tmp_path: Path
) -> None:
    with fourth_step(timed, library, expected, events=True) as (session, _):
        session.release()
    events = History(session._core).events
    again = [e.duration for e in events if (e.what, e.operator) == ("recomputed", "aten::tanh")]
    assert again == [pytest.approx(2 * MS, rel=0.1)] * LAYERS
    held = session.held()
    assert held.size_bytes == session.stats().peak_bytes
    assert any(line.module.startswith("Sequential.") for line in held)
    session.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    session.dump_snapshot(tmp_path / "run.pickle")
    (entries,) = pickle.loads((tmp_path / "run.pickle").read_bytes())["device_traces"]
    names = [entry["frames"][0]["name"] for entry in entries if entry["frames"]]
    assert names.count("rematerialize aten::tanh") == LAYERS
    session.export_chrome_trace(tmp_path / "run.json")
    assert "aten::tanh" in json.dumps(json.loads((tmp_path / "run.json").read_text()))


def test_a_trace_of_a_part_of_a_training_has_the_times_that_the_device_took(
    timed: FakeCuda, library: str, expected: list[float]
) -> None:
    step = fourth_step(timed, library, expected)
    with step as (_, training), dtr_alloc.record_trace() as recording:
        training.forward()
    assert recording.trace is not None
    made = [item for item in recording.trace.instructions if isinstance(item, Call)]
    times = [item.time for item in made if item.name == "aten::tanh"]
    assert times == [pytest.approx(2 * MS, rel=0.1)] * LAYERS


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_code_is_evicted_and_runs_again_on_the_device(timed: FakeCuda) -> None:
    torch._dynamo.reset()
    block = torch.compile(lambda x: x.sin() * 2, backend="dtr_alloc")
    x = torch.linspace(0, 1, 1 << 18)
    expected = block(x)
    with instrumented(on_cuda=True), rematerialize("64MiB") as session:
        found = block(x)
        assert timed.used() > 0
        assert dtr_alloc.evict(found)
        assert torch.equal(found, expected)
        assert session.stats().rematerializations == 1
        session.check()
        del found
