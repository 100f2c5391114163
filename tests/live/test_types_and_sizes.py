"""Types that are mixed, and sizes that no power of two divides: replays are eager's bit for bit."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

import dtr_alloc
from tests.support.exactness import assert_exact, scope


def test_integers_and_python_numbers() -> None:
    """A Python number does not decide the type of a result; a tensor of one element does."""

    def program() -> Iterator[Tensor]:
        n = torch.arange(20_000)
        yield from (n * 2.5, n / 7, n + True, n**2, 3.5 - n, n // 3, n % 2.5)
        small = torch.arange(20_000, dtype=torch.int32)
        yield from (small * 2, small * torch.tensor(2), small * torch.tensor([2]), small + 0.5)
        yield from (small.half() * 2.5, small.bfloat16() + n, (n > 5) * 1.5, (n > 5) + small)
        yield from (torch.where(n > 5, n, 0.5), torch.clamp(n, 2.5, 1000), n * (1 + 2j))

    assert_exact(program)


def test_sizes_that_eight_does_not_divide() -> None:
    def program() -> Iterator[Tensor]:
        for count in (513, 1001, 1027, 4099):
            x = torch.randn(count)
            yield from (x.half().exp(), x.double()[:-3].cumsum(0), x.bfloat16().sort()[0])
            octets = (x * 50).to(torch.uint8).repeat(67)[3:]
            yield from (octets + 1, octets[::3] ^ 7, octets.to(torch.int16)[1:] * 3)
            odd = torch.randn(3, 7, count)
            yield from (functional.softmax(odd[:, 1:], -1), odd.transpose(0, 2).contiguous().sin())
            yield functional.max_pool2d(odd, 3)

    assert_exact(program)


def test_a_long_chain_of_writes_keeps_few_recipes() -> None:
    """Of a large buffer, whose history weighs little beside it."""
    with scope(None) as session:
        total = torch.zeros(1 << 18).exp()
        for _ in range(200):
            total.mul_(0.99)
        assert session.stats().records < 60
        session.check()


def test_evaluation_reads_the_statistics_and_leaves_what_rests_on_them() -> None:
    """Training writes them, after which what was computed from them cannot be recomputed."""
    norm = torch.nn.BatchNorm1d(4096)
    for training in (False, True):
        norm.train(training)
        with scope(None) as session:
            assert norm.running_mean is not None
            derived = norm.running_mean[:128].exp()
            norm(torch.ones(4, 4096))
            assert dtr_alloc.evict(derived) == (not training)
            session.check()
