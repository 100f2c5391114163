"""Normal numbers come in pairs: a generator keeps the second for the next call, and so do recipes.

Torch draws one by one, and in pairs, where a tensor does not lie in the order of its numbers. Then
an odd count leaves a number behind, which is the first of the next tensor.
"""

import pytest
import torch

import dtr_alloc
from dtr_alloc import _core


def drawn(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(1, 3, 15, 15, dtype=dtype, memory_format=torch.channels_last).normal_()


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


def test_what_a_generator_kept_is_the_first_number_of_the_next_tensor() -> None:
    torch.manual_seed(0)
    drawn(torch.float32)
    state = torch.get_rng_state()
    after = drawn(torch.float32)
    torch.manual_seed(0)
    assert not torch.equal(drawn(torch.float32), after)
    torch.set_rng_state(state)
    assert torch.equal(drawn(torch.float32), after)
    # The kept number is at the end of the state: without it the next tensor is another.
    for place in range(len(state) - 24, len(state)):
        state[place] = 0
    torch.set_rng_state(state)
    assert not torch.equal(drawn(torch.float32), after)
