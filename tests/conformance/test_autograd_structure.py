"""Ways to differentiate: transforms of torch.func, hooks, saved-tensor hooks, functions written by
users, forward mode. What they keep and recompute is theirs; the runtime may only not be noticed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from tests.support.exactness import exact, grad_of


def deep() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16)
    )


def gradients(model: nn.Module) -> Iterator[Tensor]:
    yield from (p.grad for p in model.parameters() if p.grad is not None)


# Forward mode compiles its decompositions with torch.jit, which warns that it is deprecated.
forward_mode = pytest.mark.filterwarnings("ignore:.*torch.jit")


@forward_mode
@exact
def test_jacobians_hessians_and_products_of_torch_func() -> Iterator[Tensor]:
    def function(x: Tensor) -> Tensor:
        return (x.sin() @ x.t().exp()).tanh().sum(0)

    x, direction = torch.randn(12, 12), torch.randn(12, 12)
    yield jacrev(function)(x)
    yield jacfwd(function)(x)
    yield hessian(lambda t: function(t).sum())(x)
    yield from jvp(function, (x,), (direction,))
    value, pull = vjp(function, x)[:2]
    yield from (value, pull(torch.randn(12))[0])
    yield torch.autograd.functional.hessian(lambda t: function(t).sum(), x)  # type: ignore[no-untyped-call]


@exact
def test_gradients_of_each_sample_over_a_module() -> Iterator[Tensor]:
    model = deep()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, weights, (row[None],)).square().sum()  # type: ignore[no-any-return]

    rows = torch.randn(6, 32)
    yield from vmap(grad(loss), in_dims=(None, 0))(parameters, rows).values()
    yield vmap(lambda row: nn.functional.dropout(row), randomness="different")(rows)
    yield vmap(lambda row: row + torch.rand(32), randomness="same")(rows)


@forward_mode
@exact
def test_forward_mode_dual_numbers() -> Iterator[Tensor]:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(32, 32), torch.randn(32, 32))  # type: ignore[no-untyped-call]
        result = (dual.sin() @ dual).exp()
        yield from torch.autograd.forward_ad.unpack_dual(result)  # type: ignore[no-untyped-call]


@exact
def test_hooks_of_tensors_modules_and_parameters() -> Iterator[Tensor]:
    model, seen = deep(), []
    model[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda _, __, out: out.exp())
    model[2].register_full_backward_pre_hook(lambda _, grads: (grads[0] * 0.5,))  # type: ignore[index]
    model[2].register_full_backward_hook(lambda _, grads, __: (grads[0].sin(),))  # type: ignore[index]
    model[0].weight.register_hook(lambda g: g + 1)  # type: ignore[operator]
    model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))  # type: ignore[operator]
    x = torch.randn(16, 32, requires_grad=True)
    hidden = model(x)
    hidden.retain_grad()
    hidden.register_hook(lambda g: g.clamp(-0.5, 0.5))
    torch.autograd.graph.register_multi_grad_hook(
        (x, hidden), lambda grads: seen.extend(g.clone() for g in grads if g is not None)
    )
    hidden.square().sum().backward()
    yield from (hidden, grad_of(hidden), grad_of(x), *seen, *gradients(model))


@exact
def test_optimizers_that_step_inside_backward() -> Iterator[Tensor]:
    model = deep()
    for p in model.parameters():
        optimizer = torch.optim.AdamW([p], lr=0.01)

        def step(p: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
    for _ in range(3):
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
        yield loss
    yield from model.parameters()


PACKINGS: dict[str, Callable[[], Any]] = {
    "save_on_cpu": save_on_cpu,
    "half": lambda: saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()),
    "numpy": lambda: saved_tensors_hooks(
        lambda t: t.detach().numpy().copy(), lambda a: torch.from_numpy(a)
    ),
    "mutation": torch.autograd.graph.allow_mutation_on_saved_tensors,
}


@pytest.mark.parametrize("packing", list(PACKINGS))
@exact
def test_saved_tensors_that_are_packed(packing: str) -> Iterator[Tensor]:
    model = deep()
    x = torch.randn(64, 32, requires_grad=True)
    with PACKINGS[packing]():
        out = model(x).exp()
        if packing == "mutation":
            saved = out.sin()
            out.detach().mul_(2)
            out = out + saved
        out.sum().backward()
    yield from (out, grad_of(x), *gradients(model))


class Scaled(torch.autograd.Function):
    """Saves an input and a result, keeps a number, and can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        result = x.exp() * factor
        signs = x > 0
        ctx.save_for_backward(x, result)
        ctx.mark_non_differentiable(signs)
        return result, signs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None]:
        x, result = ctx.saved_tensors
        return gradient * result + 0 * x, None


class Doubled(torch.autograd.Function):
    """Writes its input in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@exact
def test_a_backward_that_writes_what_recipes_read() -> Iterator[Tensor]:
    class Adding(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, total: Tensor) -> Tensor:
            ctx.twice, ctx.total = x * 2, total
            return x.exp()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            ctx.twice.add_(gradient)
            ctx.total.add_(gradient)
            return ctx.twice * gradient, None

    total = torch.zeros(64, 64)
    before = total.cos()
    x = torch.randn(64, 64, requires_grad=True)
    out = Adding.apply(x.sin(), total)  # type: ignore[no-untyped-call]
    between = total.sin()
    out.square().sum().backward()
    yield from (out, before, between, total, total * 2, grad_of(x))


@exact
def test_gradients_read_before_more_is_accumulated_in_them() -> Iterator[Tensor]:
    large = torch.randn(200, 200, requires_grad=True)
    small = torch.randn(20, 20, requires_grad=True)
    ((large * 2).exp().sum() + (small * small).sum()).backward()  # type: ignore[no-untyped-call]
    read = [grad_of(large).exp(), grad_of(small).sin()]
    read.append(read[0].cos())
    ((large * 3).sin().sum() + small.exp().sum()).backward()  # type: ignore[no-untyped-call]
    grad_of(large).mul_(0.5)
    grad_of(small).zero_()
    yield from (*read, grad_of(large), grad_of(small))


@exact
def test_functions_made_functional_and_mapped_over_writes() -> Iterator[Tensor]:
    def written(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].mul_(2)
        y.t().add_(x.sin())
        return y.exp()

    yield torch.func.functionalize(written)(torch.randn(32, 32))
    yield vmap(written)(torch.randn(4, 16, 16))
    yield vmap(grad(lambda t: written(t).sum()), chunk_size=2)(torch.randn(5, 8, 8))
    yield vmap(lambda row: row.clone().normal_(), randomness="different")(torch.ones(16, 16))


@exact
def test_functions_with_their_own_backward() -> Iterator[Tensor]:
    x = torch.randn(32, 32, requires_grad=True)
    result, signs = Scaled.apply(x.sin(), 1.5)  # type: ignore[no-untyped-call]
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    doubled = Doubled.apply(x.cos())  # type: ignore[no-untyped-call]
    (slope.square().sum() + doubled.square().sum()).backward()
    yield from (result, signs, slope, doubled, grad_of(x))


@exact
def test_anomaly_detection_sees_no_anomaly() -> Iterator[Tensor]:
    model = deep()
    with torch.autograd.set_detect_anomaly(True):
        model(torch.randn(16, 32)).square().sum().backward()
    yield from gradients(model)


@exact
def test_gradients_of_gradients_of_gradients_with_retained_graphs() -> Iterator[Tensor]:
    x = torch.randn(16, 16, requires_grad=True)
    value = (x.sin() @ x).exp().mean()
    for _ in range(3):
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        value = slope.square().mean()
        yield slope
    value.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    value.backward()  # type: ignore[no-untyped-call]
    yield grad_of(x)


@exact
def test_mixed_precision_with_a_scaler() -> Iterator[Tensor]:
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(16, 32)).float().square().mean()
        scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss
    yield from model.parameters()
    yield torch.tensor(scaler.get_scale())


@exact
def test_parametrized_weights_and_averaged_models() -> Iterator[Tensor]:
    model = deep()
    nn.utils.parametrizations.spectral_norm(model[0])
    nn.utils.parametrizations.weight_norm(model[2])
    nn.utils.parametrizations.orthogonal(model[4])
    averaged = torch.optim.swa_utils.AveragedModel(
        model,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9),  # type: ignore[no-untyped-call]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        averaged.update_parameters(model)
    yield from (*model.parameters(), *model.buffers(), *averaged.parameters())
