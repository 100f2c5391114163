"""Memory that leaves PyTorch's hands: what is read there is right, and what was handed out stays
where it is. Evicted tensors are read in test_raw_access.py; here, tensors that are in memory
when they are exposed, code in between, and containers."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.support.exactness import assert_exact, bits, same, scope

EXPOSE: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "__array__": np.asarray,
    "dlpack": lambda t: torch.utils.dlpack.to_dlpack(t),  # type: ignore[attr-defined]
    "__dlpack__": np.from_dlpack,
    "untyped_storage": lambda t: t.untyped_storage(),
    "data_ptr": lambda t: t.data_ptr(),
    "const_data_ptr": lambda t: getattr(t, "const_data_ptr", t.data_ptr)(),  # Torch 2.13.
    "storage": lambda t: t.untyped_storage().data_ptr(),
    "view": lambda t: t[3:].t().numpy(),
}


@pytest.mark.parametrize("way", EXPOSE)
def test_what_was_exposed_while_in_memory_is_never_evicted(way: str) -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        exposed = EXPOSE[way](x)
        assert not dtr_alloc.evict(x)
        assert same(bits(x), bits(torch.ones(256, 64).exp()))
        del exposed


def test_numbers_taken_out_one_by_one_leave_the_tensor_evictable() -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        want = float(torch.ones(1).exp())
        dtr_alloc.evict(x)
        assert x[3, 4].item() == want
        assert float(x.max()) == want
        assert bool((x > 2).all())
        assert dtr_alloc.evict(x)


def test_a_tensor_that_is_printed_can_still_be_evicted() -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        assert "2.7183" in repr(x)
        assert dtr_alloc.evict(x)


def test_a_model_is_saved_loaded_and_copied_with_evicted_state() -> None:
    def program() -> Iterator[Tensor]:
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
        model.register_buffer("extra", torch.randn(64, 64).exp())
        model(torch.randn(16, 64)).sum().backward()
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        twin = copy.deepcopy(model)
        twin.load_state_dict(torch.load(buffer))
        assigned = copy.deepcopy(model)
        assigned.load_state_dict(twin.state_dict(), assign=True)
        for one in (twin, assigned, pickle.loads(pickle.dumps(model))):
            yield from (*one.parameters(), *one.buffers())
            yield one(torch.randn(4, 64))

    assert_exact(program)


def test_tensors_from_numpy_and_back_in_the_middle_of_a_graph() -> None:
    class Numpy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(np.exp(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.from_numpy(gradient.numpy() * np.exp(x.detach().numpy()))

    def program() -> Iterator[Tensor]:
        x = torch.randn(32, 32, requires_grad=True)
        hidden = (x * 0.5).sin()
        result = Numpy.apply(hidden)  # type: ignore[no-untyped-call]
        result.square().sum().backward()
        assert x.grad is not None
        yield from (hidden, result, x.grad)

    assert_exact(program)


@torch.library.custom_op("dtr_conformance::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() ** 3)


@torch.library.custom_op("dtr_conformance::halve_", mutates_args={"x"})
def halve_(x: Tensor) -> None:
    x.mul_(0.5)


@torch.library.custom_op("dtr_conformance::halve_raw_", mutates_args={"x"})
def halve_raw_(x: Tensor) -> None:
    array = x.numpy()
    array *= 0.5


def test_an_operator_of_a_library_that_reads_raw_memory() -> None:
    def program() -> Iterator[Tensor]:
        x = torch.randn(32, 32).exp()
        yield from (cube(x).cos(), cube(x.sin()), x)

    assert_exact(program)


@pytest.mark.parametrize("halve", [halve_, halve_raw_], ids=["with torch", "through numpy"])
def test_an_operator_of_a_library_that_writes_its_argument(halve: Callable[[Tensor], None]) -> None:
    def program() -> Iterator[Tensor]:
        x = torch.randn(32, 32).exp()
        early = x.sin()
        halve(x)
        yield from (x, early, x.cos())

    assert_exact(program)


def test_memory_shared_by_dlpack_shows_writes_from_both_sides() -> None:
    with scope(None, evict_always=True):
        x = torch.ones(64, 64).exp()
        twin = torch.utils.dlpack.from_dlpack(x)
        twin.mul_(2)
        assert same(bits(x), bits(torch.ones(64, 64).exp() * 2))
        x.zero_()
        assert not twin.any()


def test_the_storage_of_an_evicted_tensor_is_read_and_written_bytewise() -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = torch.arange(1000.0) * 1
        dtr_alloc.evict(x)
        storage = x.untyped_storage()
        assert storage.nbytes() == 4000
        assert torch.tensor(storage.tolist(), dtype=torch.uint8).view(torch.float32)[7] == 7  # type: ignore[no-untyped-call]
        storage[0:4] = 0
        assert not dtr_alloc.evict(x)
        assert x[0] == 0


def test_bytes_and_buffers_read_by_python() -> None:
    with dtr_alloc.rematerialize("4MiB"):
        x = (torch.arange(1000.0) * 1).to(torch.uint8)
        y = torch.arange(1000.0) * 1
        dtr_alloc.evict(y)
        assert bytes(x.tolist())[:3] == b"\x00\x01\x02"
        assert list(map(int, y[:3])) == [0, 1, 2]
        assert torch.frombuffer(bytearray(y.numpy().tobytes()), dtype=torch.float32)[9] == 9


def test_composite_kernels_fill_an_empty_tensor_through_a_pointer() -> None:
    def program() -> Iterator[Tensor]:
        scores = torch.randn(30, 130, 15).log_softmax(2)
        words = torch.randint(1, 15, (130, 10))
        lengths = torch.full((130,), 30), torch.full((130,), 10)
        yield nn.functional.ctc_loss(scores, words, *lengths, reduction="mean")

    assert_exact(program)
