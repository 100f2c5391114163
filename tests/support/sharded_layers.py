"""A model of some layers under FSDP2, in one process, whose shards are whole: FSDP does all but the
collectives."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dtr_alloc
from dtr_alloc import _core
from tests.support.sharded_programs import WIDTH, Block

needs_torchs_word = pytest.mark.skipif(
    not _core.sees_raw_access, reason="torch before 2.13: more stays in memory"
)

ROWS, DEPTH, STEPS = 512, 4, 3
Step = Callable[[nn.Module, int], Tensor]


@contextmanager
def one_process() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()


def make_model(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return sharded([Block() for _ in range(DEPTH)], **options)


def sharded(blocks: list[Any], **options: Any) -> nn.Sequential:
    model = nn.Sequential(*blocks)
    mesh = init_device_mesh("cpu", (1,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh, **options)
    return model


def batch(step: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def plain_step(model: nn.Module, step: int) -> Tensor:
    loss: Tensor = model(batch(step)).square().mean()
    return loss


def train(
    model: nn.Module, loss_of: Step = plain_step, between: Callable[[], object] = lambda: None
) -> list[Tensor]:
    """The parameters after some steps. `between` is called before each backward pass."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        loss = loss_of(model, step)
        between()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]


def taken_from(
    model: nn.Module, part: str = "up", take: Callable[[Tensor], Tensor] = lambda made: made
) -> list[Tensor]:
    """What this part of the first layer returns, at each call from now on."""
    taken: list[Tensor] = []
    module: nn.Module = getattr(next(model.children()), part)
    module.register_forward_hook(lambda *call: taken.append(take(call[-1])))
    return taken


def releasing(session: dtr_alloc.Session) -> Callable[..., None]:
    """A hook that evicts all that may be."""

    def release(*_: object) -> None:
        session.release()

    return release


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.to_local() for parameter in model.parameters()]  # type: ignore[union-attr]


def peak_of(loss_of: Step, **options: Any) -> int:
    model = make_model(**options)
    with dtr_alloc.measure() as session:
        train(model, loss_of)
    return session.stats().peak_bytes


def assert_exact(share: float, loss_of: Step = plain_step, **options: Any) -> None:
    """Trains in that share of the peak, by recomputing, to the bits of plain FSDP."""
    expected = train(make_model(**options), loss_of)
    model = make_model(**options)
    with dtr_alloc.rematerialize(int(share * peak_of(loss_of, **options))) as session:
        found = train(model, loss_of)
    assert session.stats().rematerializations > 0
    assert all(map(torch.equal, found, expected))
