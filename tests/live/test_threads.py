"""Several threads in one scope: each computes eager's bits, a value that two of them need is
recomputed once, and what one of them writes is not seen by another's recomputations."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.exactness import alike, bits, same, scope
from tests.support.own_process import printed
from tests.support.threads import in_threads


class Trainer:
    """A model, its optimizer and its random numbers: nothing is shared with another one."""

    def __init__(self, seed: int, batch: int = 64) -> None:
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True), nn.Linear(256, 256),
            nn.Tanh(), nn.Linear(256, 64),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.seen: list[tuple[Any, ...]] = []

    def train(self, steps: int = 6) -> None:
        for _ in range(steps):
            x = torch.randn(self.batch, 64, generator=self.generator)
            noise = torch.rand(self.batch, 256, generator=self.generator)
            hidden = self.model[:3](x)
            hidden = torch.where(noise > 0.3, hidden, hidden * 0.1)
            loss = self.model[3:](hidden).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.seen.append(bits(loss))
        self.seen += [bits(p) for p in (*self.model.parameters(), *self.model.buffers())]


@pytest.mark.parametrize("instruments", [{}, {"evict_always": True}], ids=["budget", "hardest"])
def test_threads_in_one_budget_compute_what_they_do_alone(instruments: dict[str, bool]) -> None:
    batch = 64 if instruments else 512
    alone = [Trainer(seed, batch) for seed in range(3)]
    for trainer in alone:
        trainer.train()
    together = [Trainer(seed, batch) for seed in range(3)]
    budget = None if instruments else 9 << 20
    with scope(budget, **instruments) as session:
        in_threads(*(trainer.train for trainer in together))
        session.check()
    stats = session.stats()
    assert stats.evictions > 0
    assert stats.rematerializations > 0
    assert stats.records == 0
    if budget:
        assert stats.peak_bytes <= budget
    for one, other in zip(alone, together, strict=True):
        assert len(one.seen) > 6
        assert alike(one.seen, other.seen)


def test_a_value_that_several_threads_need_at_once_is_recomputed_once() -> None:
    rounds, found = 20, []
    with scope(None) as session:
        x = torch.randn(256, 256)
        chain = [x]
        for _ in range(10):
            chain.append(chain[-1].sin())
        want = bits(chain[-1] * 2)
        for done in range(rounds):
            for value in chain[1:]:
                assert dtr_alloc.evict(value)
            in_threads(*[lambda: found.append(bits(chain[-1] * 2))] * 4)
            assert session.stats().rematerializations == 10 * (done + 1)
        session.check()
    assert len(found) == 4 * rounds
    assert all(same(want, one) for one in found)


def test_recomputing_in_one_thread_while_another_writes_what_is_read_there() -> None:
    """The writer waits for eager's order: the reader's value was computed before the write."""
    with scope(None) as session:
        for _ in range(30):
            x = torch.randn(400, 400).exp()
            early = x.sin()
            want, after = bits(early), bits(x * 2)
            dtr_alloc.evict(early)

            def read(early: Tensor = early, want: Any = want) -> None:
                assert same(bits(early), want)

            def write(x: Tensor = x) -> None:
                x.mul_(2)

            in_threads(read, write)
            assert same(bits(x), after)
        session.check()


def test_an_operator_that_draws_waits_for_a_replay_in_another_thread() -> None:
    """Its recipe needs the state of the generator that the replay may have exchanged."""
    runs = []
    begun, drawn = threading.Event(), threading.Event()

    @torch.library.custom_op("dtr_alloc_test::patient", mutates_args=())
    def patient(x: torch.Tensor) -> torch.Tensor:
        runs.append(drawn.is_set())
        if len(runs) == 2:
            begun.set()
            runs.append(drawn.wait(0.5))
        return x.cos()

    patient.register_fake(torch.empty_like)
    with scope(None, recordable=["dtr_alloc_test::patient"]):
        x = torch.ones(1 << 14).exp()
        y = patient(x)
        assert dtr_alloc.evict(y)

        def draw() -> None:
            assert begun.wait(60)
            torch.rand(1 << 14)
            drawn.set()

        in_threads(lambda: y.sum(), draw)
    assert runs == [False, False, False]


def test_random_numbers_of_threads_are_recomputed_as_they_were_drawn() -> None:
    found: list[tuple[Tensor, tuple[Any, ...]]] = []
    with scope(None):

        def draw() -> None:
            for _ in range(50):
                x = torch.randn(40, 40)
                found.append((x, bits(x)))

        in_threads(draw, draw, draw)
        for x, first in found:
            assert dtr_alloc.evict(x)
            assert same(bits(x), first)
    assert len(found) == 150


def test_a_fast_thread_s_optimizer_does_not_pin_a_slow_thread_s_tensors() -> None:
    with scope(None):
        fast = Trainer(0)
        slow = Trainer(1)
        stepped = threading.Event()
        evictable: list[bool] = []

        def step_slowly() -> None:
            slow.train(1)
            kept = [torch.randn(64, 64).exp()]
            kept.append(kept[-1].sin())
            go.set()
            stepped.wait()
            evictable.extend(dtr_alloc.evict(value) for value in kept)

        def step_fast() -> None:
            fast.train(1)
            go.wait()
            fast.train(8)
            stepped.set()

        go = threading.Event()
        in_threads(step_slowly, step_fast)
        assert evictable == [True, True]


def test_a_scope_is_joined_once_and_only_while_it_is_open() -> None:
    with pytest.raises(RuntimeError, match="no dtr_alloc scope is open"), dtr_alloc.join_scope():
        pass
    with (
        dtr_alloc.rematerialize("4MiB"),
        pytest.raises(RuntimeError, match="belongs to a dtr_alloc scope already"),
        dtr_alloc.join_scope(),
    ):
        pass


def test_a_trace_is_of_one_thread(tmp_path: Path) -> None:
    def join_and_record() -> None:
        wanted = pytest.raises(RuntimeError, match="1 others have joined")
        with wanted, dtr_alloc.record_trace(log):
            pass

    def join() -> None:
        wanted = pytest.raises(RuntimeError, match="a trace is being recorded")
        with wanted, dtr_alloc.join_scope():
            pass

    log = str(tmp_path / "step.log")
    with dtr_alloc.rematerialize("4MiB"):
        in_threads(join_and_record)
        with dtr_alloc.record_trace(log):
            in_threads(join, join=False)
            torch.ones(100, 100).exp()


@pytest.mark.parametrize("remedy", ["materialize", "pin", "join_scope"])
def test_the_remedies_that_the_error_names_work_in_a_thread_that_did_not_join(remedy: str) -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        want = x.sum().item()
        dtr_alloc.evict(x)

        def touch() -> None:
            with pytest.raises(RuntimeError, match=remedy):
                x.sum()
            if remedy == "join_scope":
                with dtr_alloc.join_scope():
                    assert x.sum().item() == want
            else:
                getattr(dtr_alloc, remedy)(x)
                assert x.sum().item() == want

        in_threads(touch, join=False)


def test_an_error_in_one_thread_leaves_the_others_exact() -> None:
    with scope(2 << 20):
        keeps = torch.randn(200, 200).exp()
        want = bits(keeps.sin())

        def ask_too_much() -> None:
            for _ in range(20):
                with pytest.raises(torch.OutOfMemoryError):
                    torch.empty(1 << 21)

        def compute() -> None:
            for _ in range(50):
                assert same(bits(keeps.sin()), want)

        in_threads(ask_too_much, compute)


LETTING_GO = """
import queue, sys, threading, torch, dtr_alloc
given = queue.SimpleQueue()
def let_go():
    while made := given.get():
        while made:
            made.pop()
thread = threading.Thread(target=let_go)
thread.start()
with dtr_alloc.rematerialize("1MiB", device="cpu") as session:
    w = torch.randn(1024)
    for _ in range(800):
        made = [w + i for i in range(200)]
        for tensor in made:
            dtr_alloc.evict(tensor)
        for tensor in made:
            dtr_alloc.materialize(tensor)
        tensor = None
        given.put(made)
        del made
        torch.ones(230_000)  # Room for it is made of what the other thread is letting go.
    given.put(None)
    thread.join()
    session.check()
print(session.stats().evictions > 0)
"""


def test_a_tensor_may_die_in_one_thread_while_another_evicts_it() -> None:
    """In a process of its own: without the rule it corrupts the heap in nearly every run."""
    assert printed(LETTING_GO) == "True\n"


ASKING = """
import sys, threading, torch, dtr_alloc
sys.setswitchinterval(1e-5)
@torch.library.custom_op("tests_threads::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
library = torch.library.Library("aten", "IMPL")
def sinc(x):
    return torch.sin(x) / x
@torch.library.custom_op("tests_threads::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    if failing:
        raise ValueError("not again")
    return x * 3
asking, failing = True, False
def ask():
    while asking:
        session.stats()
thread = threading.Thread(target=ask)
try:
    with dtr_alloc.rematerialize("64MiB", device="cpu") as session:
        x = torch.ones(1000)
        made = double(x)
        library.impl("sinc", sinc, "CPU")
        thread.start()
        overridden = torch.sinc(x)
        for one in (made, overridden):
            for _ in range(500):
                dtr_alloc.evict(one)
                dtr_alloc.materialize(one)
        lost = [fails(x) for _ in range(100)]
        failing = True
        for one in lost:
            dtr_alloc.evict(one)
except ValueError:
    asking = False
    thread.join()
    print("done")
"""


def test_what_python_has_seen_does_not_die_while_the_runtime_is_locked() -> None:
    """It takes Python's lock then, and who has that may wait for the runtime's."""
    assert printed(ASKING) == "done\n"


ENDING = """
import weakref, numpy, torch, dtr_alloc
asked, watched = [], []
def ask(_):
    asked.append(session.stats().records)
def batch():
    array = numpy.ones((256, 256), numpy.float32)
    watched.append(weakref.ref(array, ask))
    return torch.from_numpy(array)
@torch.library.custom_op("tests_threads::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = x * 2, x * 3
    watched.append(weakref.ref(made[1], ask))
    return made
with dtr_alloc.rematerialize("1MiB", device="cpu", heuristic="lru", debug=True) as session:
    x = torch.ones(1000)
    END
print(len(asked) > 0)
"""
ENDS = {
    "a batch with its last recipe": "batch() + 1",
    "a batch shed to make room": """
    kept = batch()[:128] * 3
    others = [torch.ones(1 << 15) + n for n in range(16)]
""",
    "a result that was compared": "pair(x)",
    "a result that nobody lacks": """
    made = pair(x)[0]
    dtr_alloc.evict(made)
    dtr_alloc.materialize(made)
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_may_ask_the_runtime(end: str) -> None:
    """In a function that is called then: a locked runtime would wait for its own thread."""
    assert printed(ENDING.replace("END", ENDS[end])) == "True\n"


def test_what_read_a_tensor_before_a_thread_wrote_it_is_right_though_a_third_pins_it() -> None:
    for _ in range(5):
        with scope(None):
            base = torch.linspace(0, 1, 1 << 24)
            written = base * 2
            before = written.sin()
            dtr_alloc.evict(before)

            def write(tensor: Tensor = written) -> None:
                tensor.mul_(3)

            def pin(tensor: Tensor = written) -> None:
                time.sleep(0.003)  # Most often in the middle of the write.
                dtr_alloc.pin(tensor)

            in_threads(write, pin)
            assert torch.equal(before, (base * 2).sin())
            assert torch.equal(written, base * 2 * 3)
