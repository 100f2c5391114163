"""Operators of two libraries, as other people's code defines them: `dtr_lib` by custom_op, which
gives a tag, and `dtr_lib_plain` without any word about itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("dtr_lib::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1)
    return weights @ v, weights


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(*q.shape[:-1], k.shape[-2])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _attention_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    q, k, v, weights = ctx.saved_tensors
    of_weights = grad @ v.transpose(-2, -1)
    inner = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    inner = inner / q.shape[-1] ** 0.5
    return inner @ k, inner.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ grad


attention.register_autograd(_attention_backward, setup_context=_keep)


@torch.library.custom_op("dtr_lib::double_", mutates_args={"x"})
def double_(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("dtr_lib::halves", mutates_args=())
def halves(x: Tensor) -> list[Tensor]:
    return [half.clone() for half in x.chunk(2)]


@torch.library.custom_op("dtr_lib::squared", mutates_args=())
def squared(x: Tensor) -> Tensor:  # It has no backward.
    return x * x


@torch.library.custom_op("dtr_lib::product", mutates_args=())
def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y)


# Without any word about itself, as C++ extensions have it: m.def("dropout(Tensor x) -> Tensor").
PLAIN: Any = torch.library.Library("dtr_lib_plain", "DEF")  # type: ignore
PLAIN.define("dropout(Tensor x, float p) -> Tensor")
PLAIN.define("view(Tensor(a) x) -> Tensor(a)")
PLAIN.define("secret_view(Tensor x) -> Tensor")
PLAIN.define("sin(Tensor x) -> Tensor")
PLAIN.define("noisy(Tensor x, Generator? generator) -> Tensor")
PLAIN.define("cached(Tensor x) -> Tensor")
PLAIN.define("all_reduce(Tensor x) -> Tensor")
PLAIN.define("keeps(Tensor x) -> Tensor")
PLAIN.define("counts(Tensor x) -> Tensor")
PLAIN.define("shrinks(Tensor x) -> Tensor")
CACHE: dict[str, Tensor] = {}  # A workspace of `cached`.
KEPT: list[Tensor] = []  # What `keeps`, `counts` and `shrinks` remember.


def implement(name: str, kernel: Callable[..., Tensor]) -> None:
    def below_autograd(*args: Any) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*args)

    PLAIN.impl(name, below_autograd, "CPU")


def _cached(x: Tensor) -> Tensor:
    """A workspace that is filled anew by each call, and returned."""
    CACHE.setdefault("x", torch.empty_like(x)).copy_(x.sin())
    return CACHE["x"]


def _keeps(x: Tensor) -> Tensor:
    KEPT.append(x)
    return x.cos()


def _counts(x: Tensor) -> Tensor:
    KEPT.append(torch.ones(()))
    return x + len(KEPT)


def _shrinks(x: Tensor) -> Tensor:
    KEPT.append(torch.ones(()))
    return x[len(KEPT) :].sin()


implement("dropout", lambda x, p: x * (torch.rand_like(x) >= p) if p else x.clone())
implement("view", lambda x: x[1:])
implement("secret_view", lambda x: x[1:])
implement("sin", torch.sin)
implement("noisy", lambda x, generator: x + torch.rand(x.shape, generator=generator))
implement("cached", _cached)
implement("all_reduce", torch.clone)
implement("keeps", _keeps)
implement("counts", _counts)
implement("shrinks", _shrinks)
plain = torch.ops.dtr_lib_plain
