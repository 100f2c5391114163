"""One memory under several names: complex and bit views, overlapping strides, storages that are
resized or shared by libraries, and integers large enough to be evicted."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.support.exactness import assert_exact, exact, scope
from tests.support.own_process import printed


@exact
def test_writes_through_views_of_another_type() -> Iterator[Tensor]:
    z = torch.randn(32, 32, dtype=torch.complex64).exp()
    before = z.sin()
    z.imag.add_(1)
    z.real.copy_(z.imag.abs())
    z.conj().mul_(1j)
    torch.view_as_real(z)[3].zero_()
    torch._neg_view(z[4]).add_(2)
    x = torch.randn(64, 64).exp()
    x.view(torch.int32).bitwise_and_(-256)
    yield from (before, z, z.conj().t() @ z, x)


@exact
def test_random_writes_through_strided_views() -> Iterator[Tensor]:
    x = torch.zeros(64, 64) + 1
    x[::2].normal_()
    x.t()[5].uniform_()
    x[:, 1::3].exponential_()
    x[3, :5].bernoulli_(0.4)
    yield from (x, F.dropout(x.t(), 0.3), torch.randn_like(x.t()), torch.rand_like(x[::2]))


@exact
def test_overlapping_and_expanded_arguments() -> Iterator[Tensor]:
    x = torch.randn(400).exp()
    windows = x.unfold(0, 16, 3)
    sliding = x.as_strided((20, 20), (1, 2), 5)
    wide = x[:40].expand(30, 40)
    yield from (windows.sin(), sliding @ sliding.t(), wide.exp(), wide.t().contiguous())
    yield torch.einsum("ij,kj->ik", windows, windows[:5])


@exact
def test_integers_and_masks_large_enough_to_be_evicted() -> Iterator[Tensor]:
    x = torch.randn(300, 300)
    mask, order = x > 0.5, torch.randperm(90_000)
    flat = x.flatten()[order] * 2
    counts = torch.bincount(order % 50)
    yield from (x[mask], flat, counts, torch.where(mask, x, -x), mask.nonzero())
    yield from torch.unique(order % 97, return_counts=True)
    yield torch.searchsorted(flat.sort().values, flat)
    yield F.embedding(order % 300, x)[:100].sum(1)
    yield torch.repeat_interleave(flat, order % 3)
    yield F.one_hot(order % 7).float().mean(0)
    yield from (mask.logical_not_(), order.add_(1), order.bitwise_xor_(order // 2))


@pytest.mark.parametrize("rows", [1, 64, 512], ids=["small", "copied", "retired"])
def test_a_lazy_clone_of_a_constant_is_no_part_of_it(rows: int) -> None:
    def program() -> Iterator[Tensor]:
        x = torch.ones(rows, 64)
        early = x.exp()
        twin = torch._lazy_clone(x)
        late = twin.sin()
        twin.mul_(2)
        yield from (x * 1, twin * 1)
        x.add_(1)
        yield from (x * 1, twin * 1, early, late)

    assert_exact(program, evictions=rows > 1)


def test_a_lazy_clone_made_before_the_scope_is_written_in_it() -> None:
    x = torch.ones(64, 64)
    twin = torch._lazy_clone(x)
    with scope(None, evict_always=True):
        early = x.exp()
        twin.mul_(2)
        assert torch.equal(x, torch.ones(64, 64))
        assert torch.equal(early, torch.ones(64, 64).exp())
    assert torch.equal(twin, 2 * x)


@pytest.mark.parametrize("rows", [64, 512], ids=["copied", "retired"])
@exact
def test_storages_over_parts_of_one_array(rows: int) -> Iterator[Tensor]:
    array = np.ones((rows, 64), dtype=np.float32)
    whole = torch.from_numpy(array)
    part, other = torch.from_numpy(array[10:20]), torch.from_numpy(array[20:30])
    early, early_part, apart = whole.exp(), part.repeat(9, 1).sin(), other.repeat(9, 1).cos()
    part.add_(1)
    yield from (early, early_part, apart, whole * 1)
    late = part.repeat(9, 1).sin()
    whole.mul_(3)
    yield from (early, late, whole * 1, part * 1)


@exact
def test_a_tensor_of_torch_and_a_library_s_name_for_it() -> Iterator[Tensor]:
    ours = torch.ones(64, 64)
    theirs = torch.from_numpy(ours.numpy())
    early, their_early = ours.exp(), theirs.sin()
    ours.add_(1)
    yield from (early, their_early)
    late, their_late = ours.exp(), theirs.sin()
    theirs.add_(1)
    yield from (early, their_early, late, their_late, ours * 1)


@exact
def test_running_statistics_that_an_operator_has_two_names_for() -> Iterator[Tensor]:
    array = np.zeros(16, dtype=np.float32)
    mean, twin = torch.from_numpy(array), torch.from_numpy(array)
    x = torch.randn(64, 16)
    shifted = twin.expand(64, 16) + x
    for _ in range(3):
        x = nn.functional.batch_norm(x, mean, torch.ones(16), twin, None, training=True)
    yield from (x, shifted, mean * 1, twin * 1)


_COMPLEX_NUMBER = """
import torch, dtr_alloc
with dtr_alloc.rematerialize("4MiB"):
    x = torch.ones(8, 64, dtype=torch.complex128) * 2
    number = torch.tensor(3 + 4j, dtype=torch.complex128)
    for positive in (x.real > 0, (x.real > 0)[0]):
        chosen = torch.where(positive, x, number)
        dtr_alloc.evict(chosen)
        print(complex(chosen[0, 0]))
"""


def test_a_complex_number_kept_inside_a_recipe() -> None:
    assert printed(_COMPLEX_NUMBER) == "(2+0j)\n(2+0j)\n"
