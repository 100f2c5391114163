"""What ordinary training does gives eager's bits, however much is evicted (DESIGN.md, rules)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from tests.support.exactness import assert_exact

Optimizer = Callable[..., torch.optim.Optimizer]


def after_training(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int = 2,
) -> Iterator[Tensor]:
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield value
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter
        yield parameter.grad
    yield from model.buffers()
    for state in optimizer.state.values():
        yield from (item for item in state.values() if isinstance(item, Tensor))


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(32, 64),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 8),
    )


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
def test_every_optimizer_steps_as_in_eager(make: Optimizer) -> None:
    def program() -> Iterator[Tensor]:
        model = mlp()
        yield from after_training(
            model, lambda m: m(torch.randn(16, 32)).square().mean(), make(model.parameters()), 3
        )

    assert_exact(program)


def test_lbfgs_with_its_closure_steps_as_in_eager() -> None:
    def program() -> Iterator[Tensor]:
        model, data = mlp(), torch.randn(16, 32)
        model.eval()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(data).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        for _ in range(2):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        yield from model.parameters()

    assert_exact(program)


def test_batch_norm_updates_its_running_statistics_once_per_step() -> None:
    def program() -> Iterator[Tensor]:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU(inplace=True),
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        yield from after_training(
            model, lambda m: m(torch.randn(4, 3, 8, 8)).square().mean(), optimizer, 3
        )

    assert_exact(program)


def test_batch_norm_whose_running_statistics_share_a_storage() -> None:
    def program() -> Iterator[Tensor]:
        both = torch.zeros(2, 8)
        for _ in range(3):
            x = torch.randn(4, 8, 6, 6).exp()
            yield nn.functional.batch_norm(x, both[0], both[1], training=True)
        yield both

    assert_exact(program)


def test_in_place_operators_and_writes_through_views() -> None:
    def program() -> Iterator[Tensor]:
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

    assert_exact(program)


def test_in_place_operators_under_autograd() -> None:
    def program() -> Iterator[Tensor]:
        x = torch.randn(64, 64, requires_grad=True)
        hidden = x * 2
        hidden.relu_()
        hidden = hidden + 1
        hidden += x
        hidden[0] = hidden[1] * 3
        hidden.tanh_().sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        yield from (hidden, x.grad)

    assert_exact(program)


def test_a_buffer_written_in_place_a_thousand_times_does_not_keep_a_thousand_recipes() -> None:
    def program() -> Iterator[Tensor]:
        total = torch.zeros(256)
        for step in range(1000):
            total.mul_(0.99).add_(torch.full((256,), float(step)))
        yield total

    assert_exact(program)


def test_operators_with_several_results_and_hidden_views() -> None:
    def program() -> Iterator[Tensor]:
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

    assert_exact(program)


def test_conjugates_negatives_complex_numbers_and_wrapped_numbers() -> None:
    def program() -> Iterator[Tensor]:
        z = torch.randn(32, 32, dtype=torch.complex64)
        w = z.exp().conj() @ z
        yield from (w, w.imag.neg(), torch.view_as_real(w).exp(), w.conj().imag)
        half = torch.randn(64, 64).bfloat16()
        yield from (half * 3.1, half + torch.tensor(2.0), torch.where(half > 0, half, 0.0))
        yield torch.fft.fft2(z.exp()).abs()

    assert_exact(program)


def test_randomness_is_drawn_once() -> None:
    def program() -> Iterator[Tensor]:
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

    assert_exact(program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_inside_the_scope(reentrant: bool) -> None:
    def program() -> Iterator[Tensor]:
        first, second = mlp(), nn.Linear(8, 64)
        x = torch.randn(16, 32, requires_grad=True)
        hidden = checkpoint(first, x, use_reentrant=reentrant)
        assert isinstance(hidden, Tensor)
        loss = second(hidden).square().sum()
        loss.backward()
        assert x.grad is not None
        yield from (loss, x.grad, *(p.grad for p in first.parameters() if p.grad is not None))

    assert_exact(program)


def test_gradients_accumulate_over_micro_batches() -> None:
    def program() -> Iterator[Tensor]:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(3):
                model(torch.randn(8, 32)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        yield from model.parameters()

    assert_exact(program)


def test_double_backward_and_retained_graphs() -> None:
    def program() -> Iterator[Tensor]:
        model = mlp()
        x = torch.randn(16, 32, requires_grad=True)
        out = model(x).square().sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        (out + slope.square().sum()).backward(retain_graph=True)
        out.backward()
        assert x.grad is not None
        yield from (slope, x.grad, *(p.grad for p in model.parameters() if p.grad is not None))

    assert_exact(program)


def test_recurrent_layers_packed_sequences_and_attention() -> None:
    def program() -> Iterator[Tensor]:
        lstm = nn.LSTM(16, 32, num_layers=2, dropout=0.1)
        gru = nn.GRU(16, 32)
        attention = nn.MultiheadAttention(32, 4, dropout=0.1)
        x = torch.randn(12, 4, 16, requires_grad=True)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([12, 9, 5, 2]))
        hidden, _ = lstm(x)
        gated, _ = nn.utils.rnn.pad_packed_sequence(gru(packed)[0])
        mixed, weights = attention(hidden, gated, gated)
        F.scaled_dot_product_attention(mixed, hidden, gated).square().sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        yield from (hidden, gated, mixed, weights, x.grad)
        yield from (p.grad for p in (*lstm.parameters(), *gru.parameters()) if p.grad is not None)

    assert_exact(program)


def test_parameters_written_while_recipes_read_them() -> None:
    """A recipe must see the content from before the write, small (copied) or large (retired)."""

    def program() -> Iterator[Tensor]:
        small, large = torch.randn(8, 64), torch.randn(256, 256)
        from_small, from_large = (small * 2).exp(), (large * 2).exp()
        derived = from_large.sin()
        with torch.no_grad():
            small.add_(1)
            large.data.mul_(0.5)
        yield from (from_small, from_large, derived, small * 2, large * 2)

    assert_exact(program)


def test_parameters_made_inside_the_scope_and_ema_of_weights() -> None:
    def program() -> Iterator[Tensor]:
        model = mlp()
        average = [p.detach().clone() for p in model.parameters()]
        for _ in range(4):
            model(torch.randn(16, 32)).square().mean().backward()
            with torch.no_grad():
                for parameter, mean in zip(model.parameters(), average, strict=True):
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
                    mean.mul_(0.9).add_(parameter, alpha=0.1)
        yield from average

    assert_exact(program)


def test_no_grad_and_inference_mode() -> None:
    def program() -> Iterator[Tensor]:
        model = mlp().eval()
        with torch.no_grad():
            yield model(torch.randn(16, 32))
        with torch.inference_mode():
            out = model(torch.randn(16, 32)).reshape(8, 16).contiguous().exp()
            out.mul_(2)
            yield out.clone()

    assert_exact(program)


def test_autocast_functional_transforms_and_hooks() -> None:
    def program() -> Iterator[Tensor]:
        model = mlp().eval()
        x = torch.randn(16, 32, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model(x)
        hidden.register_hook(lambda gradient: gradient * 2)
        hidden.float().square().sum().backward()
        assert x.grad is not None
        yield from (hidden, x.grad)
        weights = torch.randn(32, 32)

        def loss(w: Tensor, row: Tensor) -> Tensor:
            return (w @ row).sin().sum()

        yield torch.func.grad(loss)(weights, torch.randn(32))
        rows = torch.randn(8, 32)
        yield torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, rows)

    assert_exact(program)


def test_sparse_and_quantized_tensors_keep_what_they_hold() -> None:
    def program() -> Iterator[Tensor]:
        dense = torch.randn(64, 64).exp()
        sparse = (dense * (dense > 2)).to_sparse()
        yield (sparse @ dense).exp()
        coordinates = torch.stack([torch.arange(64), torch.arange(64)])
        held = torch.sparse_coo_tensor(coordinates, dense[0].exp(), (64, 64))
        yield held.to_dense().exp()

    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        assert_exact(program)


def test_index_embedding_and_cross_entropy() -> None:
    def program() -> Iterator[Tensor]:
        table = nn.Embedding(100, 32, max_norm=1.0)
        words = torch.randint(100, (16, 24))
        vectors = table(words)
        logits = vectors @ torch.randn(32, 50)
        loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(50, (16 * 24,)))
        loss.backward()  # type: ignore[no-untyped-call]
        assert table.weight.grad is not None
        yield from (loss, table.weight, table.weight.grad, logits[:, words[0] % 24])

    assert_exact(program)


def test_strides_of_dimensions_of_size_one_choose_the_memory_format() -> None:
    def program() -> Iterator[Tensor]:
        model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = torch.rand(4, 1, 16, 16).to(memory_format=torch.channels_last) * 1
        loss = model(x).square().mean()
        loss.backward()
        yield loss
        yield from (p.grad for p in model.parameters() if p.grad is not None)
        wide = torch.randn(2, 64, 8, 8).to(memory_format=torch.channels_last)
        yield F.interpolate(F.adaptive_avg_pool2d(wide, 1), size=(8, 8), mode="bilinear")

    assert_exact(program)


def test_overloads_that_read_or_write_more_than_a_shape() -> None:
    def program() -> Iterator[Tensor]:
        x = torch.randn(1000)
        out = x.exp()
        torch.ops.aten.full_like.out(x, 3.0, out=out)
        yield out
        yield torch.randint_like(x, torch.tensor(1000))

    assert_exact(program)


def test_a_subclass_over_an_evicted_storage_is_brought_back() -> None:
    class Plain(Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls,
            func: Callable[..., object],
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    def program() -> Iterator[Tensor]:
        y = torch.randn(1000).exp()
        wrapped = torch.Tensor._make_subclass(Plain, y)
        yield wrapped.sum().as_subclass(Tensor)

    assert_exact(program)
