"""What a guest on CUDA learns of a full device: a cap below what was in use. It rises slowly, and
is forgotten where the user says that there is more."""

from collections.abc import Callable

import pytest
import torch

from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.guests import Open, open_guest
from tests.native_stand_in.native import Native
from tests.support.exactness import bits, chain, same

MIB = 1 << 20


def test_a_program_larger_than_the_device_runs_and_seldom_fails_natively(native: Native) -> None:
    expected = [bits(tensor) for tensor in chain(160, rows=4096)]
    with open_guest(native) as opened:
        tensors = chain(160, rows=4096)  # 160 MiB, of 64.
        first = native.retries
        for tensor, want in zip(tensors, expected, strict=True):
            assert same(bits(tensor), want)
        assert opened.session.stats().evictions > 100
        assert first <= 4
        # A last one may fail when the cap has risen: a thousandth of what is allocated.
        assert native.retries - first <= 4
        assert native.num_ooms(opened.address) == 0
        opened.session.check()
        del tensors, tensor


def refusals(native: Native, tensors: list[torch.Tensor], rounds: int) -> int:
    """Of torch, while the program reads all tensors again and again."""
    before = native.retries
    for _ in range(rounds):
        for tensor in tensors:
            tensor[:1].clone()
    return native.retries - before


def test_the_longer_memory_is_short_the_seldomer_torch_refuses(native: Native) -> None:
    with open_guest(native) as opened:
        tensors = chain(96, rows=4096)  # 96 MiB, of 64.
        refused = refusals(native, tensors, 150)  # Some 26 where the cap rises evenly.
        opened.session.check()
        del tensors
    assert 2 <= refused <= 8


def test_memory_that_a_neighbour_gives_back_is_used_again(native: Native, cuda: FakeCuda) -> None:
    cuda.set_others(24 * MIB)  # By another process, so that it is not in torch's books.
    with open_guest(native) as opened:
        tensors = chain(48, rows=4096)  # 48 MiB, of 40.
        refusals(native, tensors, 60)
        cuda.set_others(0)
        refusals(native, tensors, 400)
        before = opened.session.stats().evictions
        refusals(native, tensors, 10)
        assert opened.session.stats().evictions == before
        del tensors


def test_a_cap_that_was_forgotten_is_learnt_anew(native: Native) -> None:
    with open_guest(native) as opened:
        tensors = chain(96, rows=4096)  # 96 MiB, of 64.
        opened.session.release()
        first = refusals(native, tensors, 100)
        assert first > 1
        opened.session.release()
        assert refusals(native, tensors, 100) == first
        del tensors


RESETS: dict[str, Callable[[Native, Open], object]] = {
    "empty_cache": lambda native, opened: native.empty_cache(opened.address),
    "set_per_process_memory_fraction": lambda native, opened: native.set_fraction(
        1.0, opened.address
    ),
    "Session.release": lambda native, opened: opened.session.release(),
}


@pytest.mark.parametrize("reset", RESETS)
def test_a_cap_is_forgotten_when_the_user_says_there_is_more(native: Native, reset: str) -> None:
    with open_guest(native) as opened:
        native.set_fraction(0.5, opened.address)
        tensors = chain(48, rows=4096)  # 48 MiB, of 32.
        assert native.retries > 0
        assert native.num_ooms(opened.address) == 0
        native.set_fraction(1.0)  # Torch knows, and the guest does not.
        before = opened.session.stats().evictions
        refusals(native, tensors, 4)
        assert opened.session.stats().evictions > before + 48
        RESETS[reset](native, opened)
        refusals(native, tensors, 1)
        before = opened.session.stats().evictions
        assert refusals(native, tensors, 4) == 0
        assert opened.session.stats().evictions == before
        del tensors
