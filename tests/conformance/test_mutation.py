"""Tensors written in place, resized, swapped and aliased give eager's bits, and torch's version
counters stand where eager leaves them: autograd refuses what it refuses in eager, no more."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.exactness import assert_exact, bits, exact, grad_of, same, scope


def test_version_counters_count_the_programs_writes_only() -> None:
    def versions() -> list[int]:
        x = torch.randn(64, 64).exp()
        view = x[3:9]
        x.mul_(2)
        view.add_(1)
        y = x.sin()
        torch.mm(x, y, out=y)
        y.detach().zero_()
        x.data.zero_()
        return [x._version, view._version, y._version]

    expected = versions()
    with scope(None, evict_always=True) as session:
        assert versions() == expected
        assert session.stats().rematerializations > 0


def test_a_saved_tensor_written_before_backward_is_refused_as_in_eager() -> None:
    def loss() -> Tensor:
        x = torch.randn(64, 64, requires_grad=True)
        y = x.exp()
        total = y.sum()
        y.mul_(2)
        return total

    for opened in (nullcontext(), scope(None, evict_always=True)):
        with opened, pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss().backward()  # type: ignore[no-untyped-call]


@exact
def test_a_write_is_seen_through_every_view_made_before_it() -> Iterator[Tensor]:
    x = torch.randn(32, 64).exp()
    rows, columns, strided = x[4:20], x.t()[8:40], x.as_strided((16, 16), (3, 5), 7)
    pieces = [*x.unbind(0)[:2], *x.split(8, dim=1), *x.chunk(3)]  # type: ignore[no-untyped-call]
    x.mul_(1.5)
    rows.add_(columns[0, :16, None])
    strided[1::2].sigmoid_()
    pieces[0].copy_(pieces[1])
    columns.transpose(0, 1).select(1, 3).fill_(0.25)
    yield from (x, rows, columns, strided, *pieces)


@exact
def test_views_of_an_evicted_tensor_are_written_under_autograd() -> Iterator[Tensor]:
    leaf = torch.randn(32, 64, requires_grad=True)
    x = leaf * 2
    left, right = x[:, :32], x[:, 32:]
    left.mul_(right.detach().clone())
    right[3].zero_()
    x.view(64, 32).t()[5].mul_(3)
    (x * x.detach().cos()).sum().backward()  # type: ignore[no-untyped-call]
    yield from (x, left, grad_of(leaf))


@exact
def test_indexed_and_masked_writes() -> Iterator[Tensor]:
    x = torch.randn(64, 64).exp()
    rows = torch.randperm(64)
    x.index_put_((rows[:8], rows[8:16]), x[0, :8].clone(), accumulate=True)
    x.masked_fill_(x > 3, -1.0)
    x.masked_scatter_(x < 0, x.cos())
    x.scatter_(1, rows[None, :32].expand(64, 32), 0.5, reduce="multiply")
    x.scatter_reduce_(0, rows[None].expand(3, 64), x[:3].sin(), "amax")
    x.index_copy_(0, rows[:4], x[10:14].clone())
    x.fill_diagonal_(2.0)
    x.tril_()
    x.clamp_(max=torch.tensor(2.5))
    yield x


@exact
def test_indices_written_after_a_recipe_read_them() -> Iterator[Tensor]:
    x = torch.randn(200, 64)
    small, large = torch.arange(100), torch.arange(20_000) % 200
    picked, many = x[small], x.exp()[large]
    small.add_(50)
    large.sub_(199).abs_()
    mask = picked > 0
    chosen = torch.where(mask, picked, 0.0)
    mask.logical_not_()
    yield from (picked, many, chosen, small, large, x[small], mask)


@exact
def test_shape_changes_in_place_of_evicted_tensors() -> Iterator[Tensor]:
    x = torch.randn(1, 32, 64).exp()
    x.squeeze_(0).t_().unsqueeze_(1).swapaxes_(0, 2)
    y = x.sin()
    y.transpose_(0, 2).detach_()
    y.as_strided_((16, 32), (64, 1), 5)
    yield from (x, y, y + 1)


@exact
def test_storages_that_grow_shrink_and_change_hands() -> Iterator[Tensor]:
    x, y = torch.randn(64, 64).exp(), torch.randn(64, 64).exp()
    held = x.sin()
    x.resize_(100, 64)[64:].fill_(1.0)
    doubled = x * 2
    x.resize_(10, 10)
    y.set_(x.exp())  # type: ignore[call-overload]
    x.data = held.cos()
    x.data, held.data = held.data, x.data
    z = torch.empty(0)
    z.resize_as_(x).copy_(x)
    yield from (x, y, z, held, doubled)


@exact
def test_out_arguments_that_alias_are_strided_or_resized() -> Iterator[Tensor]:
    x = torch.randn(64, 64).exp()
    torch.sin(x, out=x)
    torch.add(x[:32], x[32:], out=x[:32])
    wide = torch.zeros(64, 128)
    torch.mul(x, 3, out=wide[:, ::2])
    empty, values, indices = torch.empty(0), torch.empty(64), torch.empty(64, dtype=torch.long)
    torch.cat([x, wide], dim=1, out=empty)
    torch.max(x, dim=1, out=(values, indices))
    torch.cumsum(x, 0, out=x)
    yield from (x, wide, empty, values, indices)


@exact
def test_batch_norm_into_a_given_tensor_in_eval_mode() -> Iterator[Tensor]:
    x, mean, variance = torch.randn(8, 16, 4, 4), torch.randn(16), torch.rand(16)
    out = torch.ones(8, 16, 4, 4)
    saved = torch.empty(0), torch.empty(0)
    torch.native_batch_norm(x, None, None, mean, variance, False, 0.1, 1e-5, out=(out, *saved))
    yield out


@exact
def test_operators_that_write_an_argument_they_also_read() -> Iterator[Tensor]:
    x = torch.randn(64, 64).exp()
    y = x.sin()
    x.add_(x)
    y.addcmul_(y, y, value=0.1)
    torch.addmm(y, x, x, out=y)
    y.copy_(y.flip(0))
    y.copy_(x.to(torch.float64))
    torch._foreach_add_([x, y], [y.clone(), x.clone()])
    torch._foreach_mul_([x, x], 2.0)
    yield from (x, y)


@exact
def test_lists_of_tensors_are_written_outside_optimizers() -> Iterator[Tensor]:
    first = [torch.randn(32, 32 + i).exp() for i in range(4)]
    second = [t.sin() for t in first]
    torch._foreach_mul_(first, 2.0)
    torch._foreach_add_(first, second, alpha=0.5)
    torch._foreach_lerp_(first, second, 0.25)
    torch._foreach_copy_(second, [t.flip(0) for t in first])
    torch._foreach_sqrt_(torch._foreach_abs(second))
    torch._foreach_zero_(second[:1])
    yield from (*first, *second, *torch._foreach_norm(first))


@exact
def test_a_parameter_replaced_while_its_old_content_is_still_read() -> Iterator[Tensor]:
    layer = nn.Linear(64, 64)
    x = torch.randn(16, 64)
    before = layer(x).exp()
    layer.weight.data = torch.randn(64, 64)
    between = layer(x).exp()
    layer.weight = nn.Parameter(layer.weight.detach() * 2)
    with torch.no_grad():
        layer.bias.copy_(torch.randn(64))
    yield from (before, between, layer(x))


def test_parameters_written_between_two_scopes() -> None:
    weight = torch.randn(64, 64)
    first, old = weight.exp(), weight.clone()
    with scope(None, evict_always=True):
        kept = weight.exp()
    weight.add_(1)
    assert torch.equal(kept, first)
    with scope(None, evict_always=True) as session:
        later = (weight - old).exp()
        assert dtr_alloc.is_evicted(later)
        assert torch.equal(later, ((old + 1) - old).exp())
        session.check()


def test_a_tensor_of_an_earlier_scope_is_written_in_a_later_one() -> None:
    with scope(None, evict_always=True):
        state = torch.ones(64, 64).exp()
    want = (torch.ones(64, 64).exp() * 2).cos()
    with scope(None, evict_always=True):
        state.mul_(2)
        result = state.cos()
        state.zero_()
        assert same(bits(result), bits(want))
    assert same(bits(result), bits(want))
    assert not state.any()


def test_collectives_write_what_their_schemas_say_they_read() -> None:
    library = torch.library.Library("c10d", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("dtr_alloc_test_(Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]

    def reduce(tensors: list[Tensor]) -> list[Tensor]:
        for tensor in tensors:
            tensor.add_(1)
        return tensors

    library.impl("dtr_alloc_test_", reduce, "CPU")  # type: ignore[no-untyped-call]

    def program() -> Iterator[Tensor]:
        given = torch.randn(64, 64)
        made = given.exp()
        before = (made * 2, given.sin())
        torch.ops.c10d.dtr_alloc_test_([made, given])
        yield from (made, given, *before, made.cos())

    assert_exact(program)
