"""The five models, small, in the runtime's hardest modes and at budgets, against eager."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from dtr_alloc.demo import Job, Plan, compare
from dtr_alloc.demo.models import gpt, lstm, resnet, treelstm, unet
from tests.support.exactness import after_training, assert_exact, bits, scope

MODELS: dict[str, Callable[[], Job]] = {
    "resnet": partial(resnet, blocks=1, width=8, images=4, side=16),
    "gpt": partial(gpt, layers=2, width=32, heads=2, length=16, texts=4, vocabulary=32),
    "lstm": partial(lstm, hidden=32, length=8, texts=8, vocabulary=32),
    "treelstm": partial(treelstm, hidden=32, leaves=8, samples=8, vocabulary=50),
    "unet": partial(unet, levels=3, width=8, images=2, side=16),
}
each_model = pytest.mark.parametrize("model", list(MODELS))


def training(model: str) -> Iterator[Tensor]:
    job = MODELS[model]()
    optimizer = job.optimizer(job.model.parameters())
    draw = torch.Generator().manual_seed(0)
    return after_training(job.model, lambda m: job.loss(m, job.batch(draw)), optimizer)


@each_model
def test_a_model_trains_exactly_when_everything_is_evicted_or_verified(model: str) -> None:
    assert_exact(lambda: training(model))


@each_model
def test_a_model_trains_exactly_within_a_budget(model: str) -> None:
    plan = Plan(budgets=(0.85,), steps=2, rounds=1)
    told: list[str] = []
    result = compare(model, MODELS[model], plan, told.append)
    assert result.failures() == []
    assert len(told) == plan.trainings()
    free, tight = result.rows
    assert free.identical
    assert free.evictions == 0
    assert tight.identical
    assert tight.evictions > 0
    assert tight.budget_bytes is not None
    assert tight.peak_bytes <= tight.budget_bytes < result.peak_bytes


def test_two_threads_in_kernels_change_nothing() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_exact(lambda: training("gpt"))
    finally:
        torch.set_num_threads(threads)


def test_verify_mode_replays_what_it_records() -> None:
    with scope(None, verify=True) as session:
        for tensor in training("gpt"):
            bits(tensor)
        recorded = session.stats().recorded
        assert session._core.stats().verified > 0.7 * recorded > 50
