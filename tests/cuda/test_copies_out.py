"""What a copy to the host's memory waits for, on the fake driver, with CPU tensors on its memory.
The tier alone is in test_host_tier.py."""

import torch

import dtr_alloc
from tests.fake_cuda.driver import FakeCuda
from tests.support.exactness import grad_of
from tests.swap.test_swap_on_device import on_device

OUT = 0x1000  # The first stream that is made is the swap's for copies out.


def operators_behind() -> None:
    small = torch.ones(1 << 14)
    for _ in range(5):
        small = small.exp()


def copies_after(cuda: FakeCuda, given: int) -> bool:
    """Whether the copies out run once the program's stream alone has run so many pieces of work."""
    for _ in range(given):
        cuda.step(0)
    before = cuda.queued(OUT)
    assert before > 0
    cuda.drain(OUT)
    return cuda.queued(OUT) < before


def test_a_copy_out_waits_for_what_made_its_tensor_and_not_for_what_came_after(
    cuda: FakeCuda,
) -> None:
    with on_device("4MiB", "logical"):
        weight = torch.ones(1 << 16).requires_grad_()
        cuda.manual()
        operators_behind()
        before = cuda.queued(0)
        (weight * 2).sum().backward()  # type: ignore[no-untyped-call]
        operators_behind()
        made = cuda.queued(0)
        operators_behind()
        assert dtr_alloc.evict(grad_of(weight))
        assert not copies_after(cuda, before)
        assert copies_after(cuda, made - before)
        assert cuda.queued(0) > 0
        cuda.manual(False)
        cuda.finish()
        assert torch.equal(grad_of(weight), torch.full((1 << 16,), 2.0))


def test_a_copy_out_of_what_was_recomputed_waits_for_all_that_was_given(cuda: FakeCuda) -> None:
    with on_device("4MiB", "logical"):
        x = torch.arange(1 << 16, dtype=torch.float32)
        cuda.manual()
        ordered, indices = x.sort(descending=True)
        assert dtr_alloc.evict(ordered)
        assert dtr_alloc.evict(indices)
        operators_behind()
        dtr_alloc.materialize(ordered)  # Its operator makes both.
        given = cuda.queued(0)
        wide = torch.zeros(13 << 16)
        assert dtr_alloc.is_evicted(indices)
        assert not copies_after(cuda, given)
        cuda.manual(False)
        cuda.finish()
        del wide
