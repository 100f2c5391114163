"""What ordinary training does gives eager's bits, however much is evicted (DESIGN.md, rules)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.support.exactness import after_training, exact, grad_of

Optimizer = Callable[..., torch.optim.Optimizer]


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.Tanh(),
        nn.Linear(64, 8),
    )  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
    ],
    ids=["sgd", "sgd foreach", "adamw", "adamw foreach", "adamw fused", "adagrad"],
)
@exact
def test_every_optimizer_steps_as_in_eager(make: Optimizer) -> Iterator[Tensor]:
    model = mlp()
    yield from after_training(
        model, lambda m: m(torch.randn(16, 32)).square().mean(), make(model.parameters()), 3
    )


@exact
def test_batch_norm_updates_its_running_statistics_once_per_step() -> Iterator[Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU(inplace=True),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield from after_training(
        model, lambda m: m(torch.randn(4, 3, 8, 8)).square().mean(), optimizer, 3
    )


@exact
def test_batch_norm_whose_running_statistics_share_a_storage() -> Iterator[Tensor]:
    both = torch.zeros(2, 8)
    for _ in range(3):
        x = torch.randn(4, 8, 6, 6).exp()
        yield nn.functional.batch_norm(x, both[0], both[1], training=True)
    yield both


@exact
def test_in_place_operators_and_writes_through_views() -> Iterator[Tensor]:
    x = torch.randn(64, 64)
    y = x.exp()
    y.mul_(2).add_(x)
    y[3:7].zero_()
    y.t()[5].copy_(x[0])
    y[y > 3] = -1.0
    y.index_add_(0, torch.tensor([1, 1, 2]), x[:3])
    z = y.view(-1)[10:2000]
    z.sigmoid_()
    out = torch.empty(64, 64)
    torch.mm(x, y, out=out)
    y += y
    yield from (x, y, z, out)


@exact
def test_operators_with_several_results_and_hidden_views() -> Iterator[Tensor]:
    x = torch.randn(64, 64)
    values, indices = x.max(dim=1)
    yield from (values, indices)
    yield from x.topk(10, dim=0)
    yield from x.exp().chunk(4)
    yield from x.exp().unsafe_chunk(4)
    yield from torch.linalg.svd(x[:16, :16] + x[16:32, :16])
    yield from torch.native_layer_norm(x, [64], None, None, 1e-5)
    yield from torch.var_mean(x, dim=0)
    yield x.exp().sort(dim=1)[0]


@exact
def test_randomness_is_drawn_once() -> Iterator[Tensor]:
    x = torch.randn(64, 64)
    own = torch.Generator().manual_seed(7)
    yield F.dropout(x, 0.3)
    yield torch.randn_like(x).exp()
    yield torch.empty(64, 64).uniform_(generator=own).log()
    yield torch.bernoulli(torch.full((64, 64), 0.4)) * x
    yield F.rrelu(x, training=True)
    yield torch.multinomial(x.softmax(1), 20).float().exp()
    yield F.gumbel_softmax(x, hard=True)
    yield torch.rand(4)


@exact
def test_index_embedding_and_cross_entropy() -> Iterator[Tensor]:
    table = nn.Embedding(100, 32, max_norm=1.0)
    words = torch.randint(100, (16, 24))
    vectors = table(words)
    logits = vectors @ torch.randn(32, 50)
    loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(50, (16 * 24,)))
    loss.backward()  # type: ignore[no-untyped-call]
    yield from (loss, table.weight, grad_of(table.weight), logits[:, words[0] % 24])


@exact
def test_strides_of_dimensions_of_size_one_choose_the_memory_format() -> Iterator[Tensor]:
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(4, 1, 16, 16).to(memory_format=torch.channels_last) * 1
    loss = model(x).square().mean()
    loss.backward()
    yield loss
    yield from (p.grad for p in model.parameters() if p.grad is not None)
    wide = torch.randn(2, 64, 8, 8).to(memory_format=torch.channels_last)
    yield F.interpolate(F.adaptive_avg_pool2d(wide, 1), size=(8, 8), mode="bilinear")


@exact
def test_overloads_that_read_or_write_more_than_a_shape() -> Iterator[Tensor]:
    x = torch.randn(1000)
    out = x.exp()
    torch.ops.aten.full_like.out(x, 3.0, out=out)
    yield out
    yield torch.randint_like(x, torch.tensor(1000))


@exact
def test_a_subclass_over_an_evicted_storage_is_brought_back() -> Iterator[Tensor]:
    class Plain(Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Callable[..., object], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    y = torch.randn(1000).exp()
    wrapped = torch.Tensor._make_subclass(Plain, y)
    yield wrapped.sum().as_subclass(Tensor)


@exact
def test_integers_and_python_numbers() -> Iterator[Tensor]:
    """A Python number does not decide the type of a result; a tensor of one element does."""
    n = torch.arange(20_000)
    yield from (n * 2.5, n / 7, n + True, n**2, 3.5 - n, n // 3, n % 2.5)
    small = torch.arange(20_000, dtype=torch.int32)
    yield from (small * 2, small * torch.tensor(2), small * torch.tensor([2]), small + 0.5)
    yield from (small.half() * 2.5, small.bfloat16() + n, (n > 5) * 1.5, (n > 5) + small)
    yield from (torch.where(n > 5, n, 0.5), torch.clamp(n, 2.5, 1000), n * (1 + 2j))


@exact
def test_sizes_that_eight_does_not_divide() -> Iterator[Tensor]:
    for count in (513, 1001, 1027, 4099):
        x = torch.randn(count)
        yield from (x.half().exp(), x.double()[:-3].cumsum(0), x.bfloat16().sort()[0])
        octets = (x * 50).to(torch.uint8).repeat(67)[3:]
        yield from (octets + 1, octets[::3] ^ 7, octets.to(torch.int16)[1:] * 3)
        odd = torch.randn(3, 7, count)
        yield from (F.softmax(odd[:, 1:], -1), odd.transpose(0, 2).contiguous().sin())
        yield F.max_pool2d(odd, 3)
