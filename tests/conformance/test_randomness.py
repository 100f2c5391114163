"""Random numbers are drawn once: a recomputation gets the state its operator saw, and leaves the
generator, the program's own generators included, where the program left it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import exact, grad_of


@exact
def test_generators_saved_restored_and_seeded_between_draws() -> Iterator[Tensor]:
    first = torch.randn(64, 64)
    state = torch.get_rng_state()
    second = torch.randn(64, 64)
    torch.set_rng_state(state)
    again = torch.rand(64, 64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        inner = F.dropout(first.exp())
    yield from (first, second, again, inner, torch.randn(200), state)


@exact
def test_generators_of_the_program_shared_cloned_and_restored() -> Iterator[Tensor]:
    own = torch.Generator().manual_seed(3)
    twin = own.clone_state()
    first = torch.randn(64, 64, generator=own)
    state = own.get_state()
    second = torch.empty(64, 64).normal_(generator=own)
    third = torch.bernoulli(first.sigmoid(), generator=twin)
    own.set_state(state)
    order = torch.randperm(20_000, generator=own)
    picks = torch.multinomial(first.softmax(1), 8, generator=own)
    yield from (first, second, third, order, picks, own.get_state(), twin.get_state())


@exact
def test_every_distribution_written_in_place() -> Iterator[Tensor]:
    own = torch.Generator().manual_seed(3)
    for generator in (None, own):
        x = torch.empty(64, 64)
        yield x.normal_(2, 3, generator=generator).sin()
        yield x.exponential_(generator=generator).sin()
        yield x.geometric_(0.3, generator=generator).sin()
        yield x.log_normal_(generator=generator).sin()
        yield x.cauchy_(generator=generator).sin()
        yield x.random_(5, generator=generator).sin()
        yield x.bernoulli_(0.3, generator=generator).sin()
        yield x.uniform_(generator=generator)


@exact
def test_random_layers_of_every_kind() -> Iterator[Tensor]:
    x = torch.randn(8, 16, 6, 6, requires_grad=True)
    results = [
        F.dropout2d(x, 0.4), F.alpha_dropout(x, 0.4, training=True),
        F.feature_alpha_dropout(x, 0.4, training=True), F.dropout(x, 0.4, inplace=False),
        F.fractional_max_pool2d(x, 2, output_size=3), F.rrelu(x, training=True),
    ]  # fmt: skip
    sum(r.square().sum() for r in results).backward()  # type: ignore[union-attr]
    yield from (*results, grad_of(x))


@pytest.mark.parametrize("preserve", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@exact
def test_dropout_under_nested_checkpoints(preserve: bool, reentrant: bool) -> Iterator[Tensor]:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.3)) for _ in range(4)]
    model = nn.Sequential(*layers)
    x = torch.randn(16, 64, requires_grad=True)

    def both(inner: Tensor) -> Tensor:
        hidden = checkpoint(layers[0], inner, use_reentrant=reentrant, preserve_rng_state=preserve)
        assert isinstance(hidden, Tensor)
        return layers[1](hidden).tanh()  # type: ignore[no-any-return]

    hidden = checkpoint(both, x, use_reentrant=reentrant, preserve_rng_state=preserve)
    assert isinstance(hidden, Tensor)
    out = checkpoint_sequential(model[2:], 2, hidden, use_reentrant=reentrant)  # type: ignore[no-untyped-call]
    out.square().sum().backward()
    yield from (hidden, out, grad_of(x))
    yield from (p.grad for p in model.parameters() if p.grad is not None)


def drawn(dtype: torch.dtype) -> Tensor:
    """By pairs of numbers, which torch draws where a tensor does not lie in their order: an odd
    count leaves the second one of a pair for the next tensor, and the generator keeps it."""
    return torch.empty(1, 3, 25, 25, dtype=dtype, memory_format=torch.channels_last).normal_()


@pytest.mark.skipif(not _core.sees_raw_access, reason="torch before 2.13: empty is not recorded")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_that_a_generator_kept_comes_again_and_stays_with_the_program(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    expected = [drawn(dtype).clone() for _ in range(4)]
    torch.manual_seed(0)
    with dtr_alloc.rematerialize("4MiB", device="cpu"):
        found = []
        for _ in range(4):
            found.append(drawn(dtype))
            for one in found:
                dtr_alloc.evict(one)
                assert dtr_alloc.is_evicted(one)
            for one in found[::-1]:
                dtr_alloc.materialize(one)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
