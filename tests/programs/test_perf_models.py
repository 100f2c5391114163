"""The paper's eight workloads train, repeatably, and within a budget as without."""

import pytest
import torch
from models import MODELS, Workload
from torch import Tensor

import dtr_alloc
from tests.support.exactness import alike, bits, scope

SCALE = 0.25
each_model = pytest.mark.parametrize("model", list(MODELS))


def test_there_are_eight() -> None:
    names = "densenet inception lstm resnet32 transformer treelstm unet unrolled_gan"
    assert sorted(MODELS) == names.split()


@each_model
def test_a_step_gives_every_parameter_a_finite_gradient_and_changes_it(model: str) -> None:
    workload = MODELS[model](SCALE)
    before = {p: p.detach().clone() for module in workload.modules for p in module.parameters()}
    loss = workload.step()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    for module in workload.modules:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.any(), name
            assert not torch.equal(before[parameter], parameter), name


@each_model
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(model: str) -> None:
    def losses(seed: int) -> list[float]:
        workload = MODELS[model](SCALE, seed)
        return [workload.step().item() for _ in range(2)]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


@each_model
def test_the_scale_is_that_of_the_batch_alone(model: str) -> None:
    def peak_bytes(scale: float) -> tuple[int, int]:
        workload = MODELS[model](scale)
        with dtr_alloc.measure() as session:
            workload.step()
        weights = sum(p.numel() for module in workload.modules for p in module.parameters())
        return session.stats().peak_bytes, weights

    (small, weights), (large, same_weights) = peak_bytes(SCALE), peak_bytes(2 * SCALE)
    assert small < large
    assert weights == same_weights


@each_model
@pytest.mark.parametrize("share", [1.5, 0.6])
def test_a_budget_changes_no_bit(model: str, share: float) -> None:
    """`share` is of the activation peak: what eager needs beyond the state that stays."""
    with dtr_alloc.measure() as session:
        expected, workload = trained(model)
    kept = sum(tensor.nbytes for tensor in workload.state())
    budget = kept + int(share * (session.stats().peak_bytes - kept))
    with scope(budget) as session:
        found, same_workload = trained(model)
    shown, same_shown = [*expected, *workload.state()], [*found, *same_workload.state()]
    assert alike(map(bits, same_shown), map(bits, shown))
    stats = session.stats()
    assert stats.peak_bytes <= budget
    assert (stats.evictions > 0) is (share < 1)


def trained(model: str) -> tuple[list[Tensor], Workload]:
    """The losses of two steps, and the workload after them."""
    workload = MODELS[model](SCALE)
    return [workload.step() for _ in range(2)], workload
