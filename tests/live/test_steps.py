"""An outlier batch is told: which steps evicted, how many bytes, and once by a warning."""

import re
import signal
import time
import warnings
from functools import partial

import pytest
import torch

import dtr_alloc
from dtr_alloc.runtime.scope.steps import Step, Steps
from tests.support.own_process import forked
from tests.support.threads import in_threads

LAYERS, WIDTH = 6, 256
ROW = LAYERS * 2 * WIDTH * 4  # Bytes of activations.


class Program:
    """A chain of layers, trained by batches of `rows`."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*(part for layer in layers for part in layer))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, rows: int) -> None:
        self.model(torch.linspace(0, 1, rows * WIDTH).view(rows, WIDTH)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, sizes: list[int]) -> None:
        for rows in sizes:
            self.step(rows)


def budget() -> int:
    """In which 256 rows fit, and 1,024 do not."""
    program = Program()
    with dtr_alloc.measure() as session:
        program.step(256)
    return session.stats().peak_bytes + ROW * 256


def test_the_step_that_did_not_fit_is_told_in_the_summary_and_once_by_a_warning() -> None:
    plain, program = Program(), Program()
    sizes = [256] * 4 + [1024] + [256] * 4 + [1024, 256]
    plain.steps(sizes)
    with dtr_alloc.rematerialize(budget()) as session:
        with pytest.warns(UserWarning, match=r"step 5 of an optimizer did not fit") as told:
            program.steps(sizes)
        summary, stats = session.summary(), session.stats()
        costliest = session.costliest_steps()
    assert len(told) == 1
    assert told[0].filename == __file__
    assert sorted(step.number for step in costliest) == [5, 10]
    assert sum(step.evicted_bytes for step in costliest) == stats.evicted_bytes > 0
    rounded = len(costliest)  # Each step's to a nanosecond, and so is the sum.
    assert (
        sum(step.added_ns for step in costliest)
        <= stats.remat_ns + stats.search_ns + stats.move_ns + rounded
    )
    assert all(0 < step.added_ns < step.elapsed_ns for step in costliest)
    words = [line.split() for line in summary.splitlines()]
    assert ["steps", "11", "2", "needed"] in [row[:4] for row in words]
    assert {row[1] for row in words if row[0] == "step"} == {"5", "10"}
    state = zip(plain.model.parameters(), program.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in state)


def test_a_budget_that_no_step_fits_is_chosen_and_not_warned_of() -> None:
    program = Program()
    with dtr_alloc.rematerialize(budget()) as session:
        program.steps([1024] * 6)
        rows = [line for line in session.summary().splitlines() if line.startswith("step")]
    (row,) = rows
    assert "6 needed evictions" in row


def test_a_step_that_does_not_fit_what_a_loan_leaves_is_not_odd() -> None:
    program, least = Program(), budget()
    with dtr_alloc.rematerialize(2 * least) as session:
        program.steps([256] * 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with session.lend(least):
                program.steps([1024])
        program.steps([256] * 4)
        with pytest.warns(dtr_alloc.OutlierBatchWarning, match="step 10 "):
            program.steps([2048])
    assert len(session.costliest_steps()) == 2


def test_steps_that_fit_are_counted() -> None:
    program = Program()
    with dtr_alloc.measure() as session:
        assert "steps" not in session.summary()
        program.step(64)
        assert "1   none needed evictions" in session.summary()
    assert session.costliest_steps() == []


def test_evictions_by_hand_and_by_a_smaller_budget_are_no_want_of_memory() -> None:
    program = Program()
    with dtr_alloc.rematerialize("64MiB") as session:
        program.steps([64] * 4)
        held = [torch.ones(1 << 18) + n for n in range(8)]
        assert dtr_alloc.evict(held[0])
        session.resize("4MiB")
        session.release()
        session.resize("64MiB")
        program.step(64)
        assert session.stats().evictions >= 8
        assert session.stats().evicted_bytes == 0
        assert "5   none needed evictions" in session.summary()


def test_only_the_dearest_are_kept() -> None:
    program = Program()
    with dtr_alloc.rematerialize(budget()) as session:
        program.steps([1024] * 15)
        costliest = session.costliest_steps()
    assert len(costliest) == 10
    costs = [step.added_ns for step in costliest]
    assert costs == sorted(costs, reverse=True)


def test_a_step_reads_as_what_it_cost() -> None:
    step = Step(number=5, evicted_bytes=3 << 20, added_ns=1_500_000_000, elapsed_ns=4_000_000_000)
    assert str(step) == "3 MiB evicted, 1,500 of 4,000 ms recomputing and finding memory"


def test_a_forked_child_goes_on_without_the_count() -> None:
    program = Program()
    with dtr_alloc.rematerialize("64MiB") as session:
        program.step(64)

        def child() -> bool:
            program.step(64)
            return "evictions" in session.summary()

        assert forked(child) == "True"
        program.step(64)
        assert "steps                        2" in session.summary()


def test_a_warning_needs_three_quiet_steps_before() -> None:
    steps = Steps()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for evicted in 0, 0, 512, 0, 0, 512, 0, 0, 0:
            steps.ended(evicted, 0)
    with pytest.warns(UserWarning, match=r"step 10 .* The 3 steps before it needed no evictions"):
        steps.ended(512, 0)


def test_an_optimizer_of_a_thread_outside_the_scope_is_not_counted() -> None:
    inside, outside = Program(), Program()
    with dtr_alloc.rematerialize("64MiB") as session:
        in_threads(lambda: outside.steps([8] * 3), join=False)
        inside.step(64)
        assert "steps                        1" in session.summary()


def test_steps_of_several_threads_share_the_count_and_no_figure_is_negative() -> None:
    programs = [Program() for _ in range(2)]
    with dtr_alloc.rematerialize("12MiB") as session:
        in_threads(*(partial(program.steps, [1024] * 5) for program in programs))
        costliest = session.costliest_steps()
        assert "steps                       10" in session.summary()
    assert costliest
    assert all(step.evicted_bytes > 0 and step.added_ns > 0 for step in costliest)


def test_the_warning_names_the_programs_line_also_behind_a_scheduler() -> None:
    program = Program()
    torch.optim.lr_scheduler.StepLR(program.optimizer, step_size=100)
    with dtr_alloc.rematerialize(budget()), pytest.warns(dtr_alloc.OutlierBatchWarning) as told:
        program.steps([256] * 4 + [1024])
    assert [one.filename for one in told] == [__file__]


def test_what_is_evicted_behind_the_last_step_is_told_beside_the_steps() -> None:
    program = Program()
    with dtr_alloc.rematerialize(budget()) as session:
        program.step(64)
        loss = program.model(torch.ones(1024, WIDTH)).sum()
        loss.backward()
        summary = session.summary()
    assert session.steps == 1
    assert re.search(r"none needed evictions; [\d.]+ MiB evicted since", summary)


def test_a_signals_handler_may_ask_for_the_summary_at_any_moment() -> None:
    steps = Steps()
    told = []

    def ask(number: int, frame: object) -> None:
        told.append((len(steps.rows(0)), len(steps.costliest())))

    before = signal.signal(signal.SIGALRM, ask)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            steps.ended(512, 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(told) > 100
