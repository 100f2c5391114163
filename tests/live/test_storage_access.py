"""Extensions in C++ that take a tensor's address past the dispatcher, compiled here: from torch
2.13 on a mutable one is seen, of parameters and inputs too."""

import ctypes
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.cpp_extension import load

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import alike, bits, grad_of, scope
from tests.support.threads import in_threads

MUTABLE = ("data_ptr", "data_ptr<float>", "mutable_data_ptr", "storage().mutable_data")

seen = pytest.mark.skipif(
    not _core.sees_raw_access, reason="torch before 2.13 tells of no pointer that leaves it"
)


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(
        "storage_access",
        [str(Path(__file__).with_name("storage_access.cpp"))],
        extra_cflags=["-O0", "-g0", "-fvisibility=hidden"],
        build_directory=str(tmp_path_factory.mktemp("extension")),
    )


def at(address: int, numbers: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * numbers).from_address(address))


def assert_exact_with(
    inputs: Callable[[], tuple[Any, ...]], program: Callable[..., list[Tensor]]
) -> None:
    """As the usual one, for inputs from outside of the scope."""
    expected = [bits(tensor) for tensor in program(*inputs())]
    for instruments in ({}, {"evict_always": True}):
        given = inputs()
        with scope(None, **instruments) as session:
            shown = program(*given)
            session.release()
            assert alike(map(bits, shown), expected)
            del shown


@seen
@pytest.mark.parametrize("way", MUTABLE)
@pytest.mark.parametrize("what", ["parameter", "input", "activation"])
@pytest.mark.parametrize("before", ["nothing", "kernels", "tolist", "an array"])
def test_recipes_keep_what_an_extension_writes_over(
    extension: Any, way: str, what: str, before: str
) -> None:
    def program(layer: nn.Module, x: Tensor) -> list[Tensor]:
        h = (x * 2).sin()
        t = {"parameter": next(layer.parameters()), "input": x, "activation": h}[what].detach()
        read = [t * 2, t * 3, t.cos()]
        if before == "kernels":
            (layer(h).mean() + x.sum()).backward()
        elif before == "tolist":
            t.tolist()
        elif before == "an array":
            t.numpy()
            read += [t * 4, t.tan(), t.exp()]
        dtr_alloc.materialize(t)
        at(getattr(extension, way)(t), t.numel())[:] = 7
        for one in read:
            dtr_alloc.evict(one)
        return [t, *read, layer(h), x, h]

    def inputs() -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        return nn.Conv1d(8, 8, 9), torch.randn(4, 8, 100)

    assert_exact_with(inputs, program)


@seen
@pytest.mark.parametrize("reader", ["a library's operator", "torch.save"])
def test_who_reads_the_address_of_a_constant_hides_no_later_write(
    extension: Any, reader: str
) -> None:
    """Torch tells of an address once, and both take it, where nothing is recorded."""
    with torch.library._scoped_library("taker", "FRAGMENT") as library:
        library.define("total(Tensor x) -> Tensor")
        library.impl("total", lambda x: torch.ones(3) * at(extension.data_ptr(x), 6).sum(), "CPU")

        def program(t: Tensor) -> list[Tensor]:
            read = [t * 2, t * 3]
            if reader == "torch.save":
                torch.save(t, io.BytesIO())
            else:
                read.append(torch.ops.taker.total(t))
            at(extension.data_ptr(t), 2 * t.numel())[:] = 7
            for one in read:
                dtr_alloc.evict(one)
            return [t, *read]

        assert_exact_with(lambda: (torch.arange(0, 36000, 4),), program)


@seen
def test_an_optimizer_in_cpp_writes_parameters_as_in_eager(extension: Any) -> None:
    def program(model: nn.Module, x: Tensor) -> list[Tensor]:
        shown = []
        for _ in range(4):
            out = model(x)
            shown.append(out.sin())  # Rests on what the step writes over.
            out.square().mean().backward()
            for parameter in model.parameters():
                extension.descend(parameter, grad_of(parameter))
                parameter.grad = None
        return [*shown, *model.parameters()]

    def inputs() -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.randn(32, 64)

    assert_exact_with(inputs, program)


def test_an_address_to_read_from_costs_nothing(extension: Any) -> None:
    with dtr_alloc.rematerialize(None) as session:
        x, weight = torch.randn(1000).exp(), torch.ones(1000)
        y = x * weight
        before = session.stats()
        for tensor in (x, weight, y):
            assert extension.const_data_ptr(tensor)
        assert session.stats().evictable_bytes == before.evictable_bytes
        assert session.stats().live_bytes == before.live_bytes
        assert dtr_alloc.evict(x)
        assert dtr_alloc.evict(y)


@pytest.mark.parametrize("way", [*MUTABLE, "const_data_ptr"])
def test_an_evicted_tensor_tells_an_extension_what_to_do(extension: Any, way: str) -> None:
    with dtr_alloc.rematerialize(None):
        x = torch.ones(1000).exp()
        assert dtr_alloc.evict(x)
        with pytest.raises(RuntimeError, match=r"dtr_alloc.materialize\(tensor\) brings it back"):
            getattr(extension, way)(x)
        dtr_alloc.materialize(x)
        assert at(getattr(extension, way)(x), 1000)[9] == x[9]
        unseen = way == "const_data_ptr" or not _core.sees_raw_access
        assert dtr_alloc.evict(x) == unseen


@seen
def test_an_extension_in_a_thread_that_has_not_joined_is_seen(extension: Any) -> None:
    with dtr_alloc.rematerialize(None):
        weight = torch.ones(1000)
        read = [weight * i for i in range(3)]
        in_threads(lambda: at(extension.data_ptr(weight), 1000).fill(9), join=False)
        assert dtr_alloc.evict(read[2])
        assert bool((read[2] == 2).all())
        assert bool((weight == 9).all())


@seen
def test_an_address_that_cannot_be_paid_for_is_an_error(extension: Any) -> None:
    weight = torch.ones(1 << 18)
    with dtr_alloc.rematerialize("3MiB") as session:
        read = [weight * i for i in range(3)]
        session.release()
        fixed = [torch.ones(5 << 16).numpy() for _ in range(2)]  # 2.5 MiB.
        with pytest.raises(torch.OutOfMemoryError, match="budget"):
            extension.data_ptr(weight)
        del fixed
        at(extension.data_ptr(weight), weight.numel())[:] = 9
        for i, one in enumerate(read):
            assert bool((one == i).all())
            dtr_alloc.evict(one)
        del read, one


def test_a_lazy_clone_of_a_constant_that_recipes_read(extension: Any) -> None:
    weight = torch.ones(1000)
    with dtr_alloc.rematerialize(None):
        read = [weight * i for i in range(3)]
        twin = torch._lazy_clone(weight)
        twin.mul_(5)
        assert dtr_alloc.evict(read[2])
        assert bool((read[2] == 2).all())
        other = torch.ones(1000)
        read.append(other + 1)
    for one in (weight, other):  # Torch has one hook for each storage.
        assert bool((torch._lazy_clone(one) == 1).all())
