"""Compiled regions: where they are called, what is in them, whole models, random modules."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import dtr_alloc
from tests.compiled.test_compiled_regions import compiled, gradients, of_torch, two
from tests.support.exactness import MODES, assert_exact

pytestmark = [
    *of_torch,
    pytest.mark.filterwarnings("ignore:Torchinductor does not support:UserWarning"),
    pytest.mark.slow,
]
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _compiles_anew() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


MORE: dict[str, Function] = {
    "no_grad": lambda run: lambda x: torch.no_grad()(run)(x),
    "inference_mode": lambda run: lambda x: torch.inference_mode()(run)(x.detach()).clone(),
    "autocast": lambda run: lambda x: torch.autocast("cpu", torch.bfloat16)(run)(x),
    "checkpoint around it": lambda run: lambda x: checkpoint(run, x, use_reentrant=False),
}


@pytest.mark.parametrize("around", MORE)
def test_where_it_is_called(around: str) -> None:
    run = MORE[around](compiled(lambda x: F.dropout((x @ x).sin(), 0.3) * x, dynamic=False))
    assert_exact(lambda: gradients(run, two(96)[0]))


def inside(x: Tensor) -> Tensor:
    made = checkpoint(lambda t: (t.sin() @ t).cos(), x, use_reentrant=False)
    assert isinstance(made, Tensor)
    return made * x


def asks(x: Tensor) -> Tensor:
    return x * x.sum().item()


def chosen(x: Tensor) -> Tensor:
    made = torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos(), (x,))
    assert isinstance(made, Tensor)
    return made + 1


def spectrum(x: Tensor) -> Tensor:
    return torch.add(torch.fft.fft(x).abs(), x)


def attention(x: Tensor) -> Tensor:
    q = x.view(2, 2, -1, 32)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.2, is_causal=True)


def noisy(x: Tensor) -> Tensor:
    return x * torch.rand_like(x) + torch.randint(0, 9, x.shape) + torch.randn_like(x)


def many(x: Tensor) -> Tensor:
    total = x
    for one in x.unbind():
        total = torch.add(total, one.sin())
    return total


@pytest.mark.parametrize("function", [inside, asks, chosen, spectrum, attention, noisy, many])
def test_a_function(function: Function) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(function)
        assert_exact(lambda: gradients(run, two(128)[0]))


@pytest.mark.parametrize("dynamic", [True, None])
def test_eight_lengths(dynamic: bool | None) -> None:
    run = compiled(lambda x: (x @ x.t()).softmax(1) @ x * x.shape[0], dynamic=dynamic)

    def program() -> Iterator[Tensor]:
        for rows in (16, 24, 40, 64, 17, 99, 128, 24):
            yield from gradients(run, torch.randn(rows, 64))

    assert_exact(program)


def test_more_shapes_than_torch_compiles_for() -> None:
    run = compiled(lambda x: x.abs() * 2, dynamic=False)  # The same bits in eager mode.

    def program() -> Iterator[Tensor]:
        for rows in (16, 24, 40, 64, 17):
            yield from gradients(run, torch.randn(rows, 64))

    with torch._dynamo.config.patch(recompile_limit=2):
        assert_exact(program)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_a_model_compiled_block_by_block(name: str) -> None:
    from dtr_alloc.demo import MODELS, Plan
    from dtr_alloc.demo.models import BasicBlock, Job, TransformerBlock
    from dtr_alloc.demo.train import train

    def make() -> Job:
        job = MODELS[name]()
        for module in job.model.modules():
            if isinstance(module, BasicBlock | TransformerBlock):
                module.compile(backend="dtr_alloc")
        return job

    plan = Plan((), steps=3)
    base = train(make, plan, dtr_alloc.measure)
    fixed = base.gradient_bytes + base.optimizer_bytes
    for share in (0.7, 0.5, 0.3) if name == "gpt" else (0.7, 0.5):
        budget = int(share * (base.stats[-1].peak_bytes - fixed)) + fixed
        found = train(make, plan, lambda budget=budget: dtr_alloc.rematerialize(budget))  # type: ignore
        assert found.digests == base.digests
        assert found.stats[-1].peak_bytes <= budget
        assert found.stats[-1].rematerializations > 0


OPERATIONS: list[Function] = [
    lambda x, w: x @ w,
    lambda x, w: F.gelu(x) * w.sum(0),
    lambda x, w: F.layer_norm(x, x.shape[-1:]),
    lambda x, w: F.dropout(x, 0.2),
    lambda x, w: x.softmax(-1) + w.mean(),
    lambda x, w: x + x.flip(0).sin(),
    lambda x, w: torch.cat([x[:, ::2], x[:, 1::2]], 1),
    lambda x, w: x.clamp(-1, 1) * 3,
    lambda x, w: x.t().contiguous().view(x.shape) if x.shape[0] == x.shape[1] else x.exp(),
    lambda x, w: x * torch.rand_like(x),
    lambda x, w: x.clone().add_(1).mul_(w.sum(1)),
    lambda x, w: F.linear(x, w).relu(),
    lambda x, w: x.cumsum(0) * 0.01,
    lambda x, w: torch.where(x > 0, x, w.max() * 0.1),
]


@pytest.mark.parametrize("seed", range(100))
def test_a_random_module(seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=dice))

    def composed() -> Function:
        steps = [OPERATIONS[draw(len(OPERATIONS))] for _ in range(2 + draw(5))]

        def run(x: Tensor, w: Tensor) -> Tensor:
            for step in steps:
                x = step(x, w).tanh()
            return x

        return compiled(run)

    parts = [composed() for _ in range(2)]

    def program() -> Iterator[Tensor]:
        x = torch.randn(32, 32, requires_grad=True)
        w = torch.randn(32, 32, requires_grad=True)
        y = x * 1
        for part in (*parts, *parts):
            y = part(y, w)
            yield y
        total = y.exp().sum()
        yield from torch.autograd.grad(total, (x, w), allow_unused=True, materialize_grads=True)

    assert_exact(program, modes=[mode for mode in MODES if mode != "recorded"])
