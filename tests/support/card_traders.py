"""A trainer and an inference engine on one card, a process each, that trade its bytes by `resize`.

The parent is the broker: whoever has more gives before the other takes. The trainer trains on
meanwhile, and a thread of it obeys. On the fake driver each process has a driver of its own. There
the broker tells each what the other holds, so a card of which more is asked than it has says so.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import Session
from tests.fake_cuda.driver import ROOT, FakeCuda
from tests.gpu.programs import deterministic, digest
from tests.support.instruments import instrumented


@dataclass(frozen=True)
class Card:
    """`driver`: the fake one's path; None: a GPU. Budgets in bytes, of which the card has two, a
    large and a small one. A layer's result has `rows` times `width` numbers."""

    driver: str | None
    much: int
    little: int
    rows: int
    width: int

    @property
    def size(self) -> int:
        return self.much + self.little

    @property
    def device(self) -> str:
        return "cuda" if self.driver is None else "cpu"


@dataclass(frozen=True)
class Opened:
    session: Session
    held: Callable[[], int]  # Bytes of the card.
    others: Callable[[int], object]  # Is told what the other process holds.


@contextmanager
def opened(card: Card) -> Iterator[Opened]:
    """The large budget, on the card."""
    if card.driver is None:
        allocator: Any = dtr_alloc.allocator(card.much, thrash_limit=0.0)
        torch.cuda.memory.change_current_allocator(allocator)
        allocator.free(allocator.allocate(1))
        core = allocator._core
        yield Opened(allocator.session, lambda: core.pool_stats(0).committed, lambda _: None)
        return
    os.environ["DTR_ALLOC_LIBCUDA"] = card.driver
    cuda = FakeCuda(card.driver)
    cuda.timed()
    cuda.set_capacity(card.size)
    with instrumented(on_cuda=True), dtr_alloc.rematerialize(card.much, thrash_limit=0) as session:
        yield Opened(session, cuda.used, cuda.set_others)


class Training:
    def __init__(self, card: Card) -> None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.set_num_threads(1)
        deterministic()
        self._card, width = card, card.width
        layers = [part for _ in range(10) for part in (nn.Linear(width, width), nn.Tanh())]
        self.model = nn.Sequential(*layers).to(card.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def step(self) -> None:
        rows, width = self._card.rows, self._card.width
        x = torch.linspace(0, 1, rows * width, device=self._card.device).view(rows, width)
        loss: Tensor = self.model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def result(self) -> list[str]:
        return [digest(parameter) for parameter in self.model.parameters()]


def obey(broker: Connection, on: Opened, answers: dict[str, Callable[[], Any]]) -> None:
    """Until the broker has nothing more to say."""
    while (message := broker.recv()) is not None:
        name, value = message
        if name == "resize":
            on.session.resize(value)
            broker.send((on.held(), on.session.stats().budget_bytes))
        elif name == "others":
            broker.send(on.others(value))
        else:
            broker.send(answers[name]())


def trainer(card: Card, broker: Connection) -> None:
    """Is asked for a `step`: it answers when another one is over."""
    stepped, over = threading.Condition(), threading.Event()
    steps = 0

    def step() -> int:
        with stepped:
            now = steps
            stepped.wait_for(lambda: steps > now + 1)  # The one under way began before.
        return on.held()

    with opened(card) as on:
        training = Training(card)

        def listen() -> None:
            try:
                obey(broker, on, {"step": step})
            finally:
                over.set()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        while not over.is_set():
            training.step()
            with stepped:
                steps += 1
                stepped.notify()
        thread.join()
        on.session.check()
        stats = on.session.stats()
    broker.send({"steps": steps, "result": training.result(), "again": stats.rematerializations})


def engine(card: Card, broker: Connection) -> None:
    """Is asked to `serve`: it fills a cache that nobody can recompute, reads it, and drops it."""

    def serve() -> tuple[float, int]:
        try:
            cache = torch.ones((card.much - card.much // 8) // 4, device=card.device)
            dtr_alloc.pin(cache)
            return float(cache[:: 1 << 12].sum()) / cache[:: 1 << 12].numel(), on.held()
        except torch.OutOfMemoryError:
            return 0.0, on.held()

    with opened(card) as on:
        on.session.resize(card.little)
        obey(broker, on, {"serve": serve})


def alone(card: Card, broker: Connection) -> None:
    """The trainer's steps in plain torch."""
    training = Training(card)
    for _ in range(broker.recv()):
        training.step()
    broker.send(training.result())


class Broker(AbstractContextManager["Broker"]):
    """Its processes end with it."""

    def __init__(self, card: Card) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._processes = ExitStack()
        self._card = card
        self._ends: dict[str, Connection] = {}
        self.most = 0  # Bytes that the two held together.
        self._held = {"trainer": 0, "engine": 0}

    def start(self, program: Callable[[Card, Connection], None]) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=program, args=(self._card, there), daemon=True)
        sys.path.append(str(ROOT))  # The process imports this module.
        process.start()
        sys.path.remove(str(ROOT))
        self._processes.callback(process.join)
        self._processes.callback(process.terminate)
        there.close()  # So that the end of a program is the end of its messages.
        self._ends[program.__name__] = here

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def ask(self, name: str, *message: Any) -> Any:
        self._ends[name].send(message or None)
        return self._ends[name].recv()

    def holds(self, name: str, held: int) -> None:
        self._held[name] = held
        self.most = max(self.most, sum(self._held.values()))
        other = {"trainer": "engine", "engine": "trainer"}[name]
        self.ask(other, "others", held)

    def resize(self, name: str, budget: int) -> None:
        held, now = self.ask(name, "resize", budget)
        assert now == budget
        self.holds(name, held)

    def step(self) -> None:
        self.holds("trainer", self.ask("trainer", "step", None))

    def serve(self) -> float:
        answer, held = self.ask("engine", "serve", None)
        self.holds("engine", held)
        return float(answer)

    def plain(self, steps: int) -> list[str]:
        self.start(alone)
        self._ends["alone"].send(steps)
        found: list[str] = self._ends["alone"].recv()
        return found


def traded(card: Card, turns: int) -> None:
    """The engine answers in each turn, the trainer goes on, and no bit of it differs."""
    with Broker(card) as broker:
        broker.start(trainer)
        broker.start(engine)
        for _ in range(turns):
            broker.step()
            broker.resize("trainer", card.little)
            broker.resize("engine", card.much)
            assert broker.serve() == 1.0
            broker.step()  # With little.
            broker.resize("engine", card.little)
            broker.resize("trainer", card.much)
        assert card.much < broker.most <= card.size
        done = broker.ask("trainer")
        assert done["steps"] >= 4 * turns
        assert done["again"] > 0
        assert done["result"] == broker.plain(done["steps"])


def untraded(card: Card) -> float:
    """What the engine answers where the trainer has not given: 0, for it is out of memory."""
    with Broker(card) as broker:
        broker.start(trainer)
        broker.start(engine)
        broker.step()
        broker.ask("engine", "resize", card.much)
        return broker.serve()
