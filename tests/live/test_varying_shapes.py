"""Training whose shapes change from step to step: exact, and feasible where bytes alone would be.
Holes that a step leaves suit the next one when shapes repeat; these never do. The bound is the
simulator, for which memory is a number, on a recording of the training, at a budget 3 % smaller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.demo.models import MODELS, Job, gpt
from dtr_alloc.demo.train import Plan, Training, train
from dtr_alloc.runtime.simulate.rules import Rules
from dtr_alloc.runtime.simulate.simulator import Simulator


def varied(make: Callable[[], Job]) -> Job:
    """The job on half of each batch's samples or more, and of texts also half of their length."""
    job = make()

    def batch(generator: torch.Generator) -> Any:
        def part(full: int) -> int:
            return int(torch.randint(-(-full // 2), full + 1, (), generator=generator))

        data = job.batch(generator)
        tensors = [data] if isinstance(data, Tensor) else [t for t in data if torch.is_tensor(t)]
        samples = part(len(tensors[0]))
        if isinstance(data, Tensor):
            return data[:samples, : part(data.shape[1] - 1) + 1]
        return tuple(t[:samples] if torch.is_tensor(t) else t for t in data)

    return replace(job, batch=batch)


def recorded(make: Callable[[], Job], plan: Plan) -> tuple[Training, Simulator]:
    """The training without a budget, and what computes it again in the simulator."""
    recordings: list[dtr_alloc.Recording] = []

    @contextmanager
    def scope() -> Iterator[Any]:
        with dtr_alloc.measure() as session, dtr_alloc.record_trace() as recording:
            recordings.append(recording)
            yield session

    training = train(make, plan, scope)
    trace = recordings[0].trace
    assert trace is not None
    return training, Simulator(trace)


def assert_holds(make: Callable[[], Job], budgets: tuple[float, ...], steps: int) -> None:
    plan = Plan(budgets=budgets, steps=steps)
    job = partial(varied, make)
    eager = train(job, plan, None)
    measured, simulator = recorded(job, plan)
    assert measured.digests == eager.digests
    fixed = measured.gradient_bytes + measured.optimizer_bytes
    for share in budgets:
        budget = int(share * (measured.stats[-1].peak_bytes - fixed)) + fixed
        counted = simulator.run(int(budget * 0.97), Rules("dtr", mode="bytes", pin_outputs=False))
        try:
            found = train(job, plan, partial(dtr_alloc.rematerialize, budget, device="cpu"))
        except torch.OutOfMemoryError:
            assert counted.status != "ok", f"{share}: bytes would suffice at a budget 3 % smaller"
            continue
        assert found.digests == eager.digests, f"{share}: differs from eager"
        assert found.stats[-1].peak_bytes <= budget
        assert found.stats[-1].evictions > 0


def test_texts_of_varying_number_and_length_train_exactly_within_half_of_the_memory() -> None:
    assert_holds(partial(gpt, texts=8, length=48), (0.5,), steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_train_exactly_on_varying_shapes(name: str) -> None:
    assert_holds(MODELS[name], (0.5, 0.3), steps=4)
