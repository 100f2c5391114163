"""Memory that the program takes from a tensor: what it costs, where it is told, and that results
stay eager's where the memory is then written. test_pointers.py has every way in."""

import copy
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_alloc
from tests.support.exactness import assert_exact, exact, grad_of, scope

MIB = 1 << 20
TAKES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "input numpy": lambda x, weight: x.numpy(),
    "input asarray": lambda x, weight: np.asarray(x),
    "input data_ptr": lambda x, weight: x.data_ptr() == x.data_ptr(),
    "weight numpy": lambda x, weight: weight.detach().numpy(),
    "weight data_ptr": lambda x, weight: weight.data_ptr(),
}
READS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "is_shared": lambda x, weight: x.is_shared(),  # type: ignore[no-untyped-call]
    "tolist": lambda x, weight: x[0].tolist(),
    "str": lambda x, weight: str(x),
    "deepcopy": lambda x, weight: copy.deepcopy(x),
    "save": lambda x, weight: torch.save({"x": x, "weight": weight}, io.BytesIO()),
    "histogram": lambda x, weight: torch.histogram(x, 10),
}


def deep() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))]
    return nn.Sequential(*layers), torch.randn(256, 256)


def first_weight(model: nn.Sequential) -> Tensor:
    return next(model.parameters())


def smallest(take: Callable[[Tensor, Tensor], object]) -> int:
    """The smallest budget in which two steps run, to 64 KiB, where each takes memory half-way."""
    model, x = deep()

    def steps() -> None:
        for _ in range(2):
            model.zero_grad()
            h = model(x)
            take(x, first_weight(model))
            h.square().mean().backward()

    low, high = MIB, 12 * MIB
    while high - low > MIB // 16:
        middle = (low + high) // 2
        try:
            with scope(middle):
                steps()
            high = middle
        except torch.OutOfMemoryError:
            low = middle
    return high


@pytest.mark.parametrize("name", TAKES)
def test_memory_that_is_taken_costs_a_copy_of_it_and_no_more(name: str) -> None:
    taken = 256 * 256 * 4
    assert smallest(TAKES[name]) <= 1.02 * (smallest(lambda x, weight: None) + taken)


@pytest.mark.parametrize("name", READS)
def test_what_only_reads_freezes_and_copies_nothing(name: str) -> None:
    model, x = deep()
    with dtr_alloc.rematerialize(None) as session:
        h = model(x)
        before = session.stats().evictable_bytes
        READS[name](x, first_weight(model))
        READS[name](h.detach(), first_weight(model))
        assert session.stats().evictable_bytes == before
        assert "handed" not in session.summary()
        assert dtr_alloc.evict(h.detach())


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("differentiated", [False, True])
def test_max_pool1d_whose_composite_kernel_takes_a_pointer_is_an_operator_like_others(
    mode: Callable[[], AbstractContextManager[None]], differentiated: bool
) -> None:
    plain = torch.randn(3, 7, 1000, requires_grad=differentiated)
    expected = nn.functional.max_pool1d(plain.sin(), 3)
    with dtr_alloc.rematerialize(None), mode():
        x = plain.sin()
        assert dtr_alloc.evict(x)
        pooled = nn.functional.max_pool1d(x, 3)
        assert dtr_alloc.evict(x)
        assert dtr_alloc.evict(pooled)
        assert torch.equal(pooled, expected)
        assert pooled.requires_grad == (differentiated and mode is torch.enable_grad)
        if pooled.requires_grad:
            (gradient,) = torch.autograd.grad(pooled.sum(), plain)
            assert torch.equal(gradient, *torch.autograd.grad(expected.sum(), plain))


@pytest.mark.parametrize("what", ["input", "weight", "activation"])
def test_a_write_through_numpy_between_forward_and_backward_is_seen_as_in_eager(what: str) -> None:
    def program() -> list[Tensor]:
        model, x = deep()
        shown = []
        for _ in range(2):
            model.zero_grad()
            h = model[:3](x)
            loss = model[3:](h).square().mean()
            taken = {"input": x, "weight": model[12].weight, "activation": h}[what].detach().numpy()
            taken *= 1.5
            loss.backward()
            shown += [loss, h, x, *(grad_of(p).clone() for p in model.parameters())]
        return shown

    assert_exact(program, modes=["recorded", "evict_always"])


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "map_": lambda t, other: t.map_(other, lambda x, y: x + y),
    "map_ by names": lambda t, other: t.map_(other=other, callable=lambda x, y: x + y),
    "map2_": lambda t, other: t.map2_(other, other, lambda x, y, z: x + y + z),
}


@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("what", ["input", "parameter", "activation", "evicted"])
def test_methods_that_write_by_calling_python_are_writes_like_others(way: str, what: str) -> None:
    def program() -> list[Tensor]:
        made = {"parameter": nn.Parameter(torch.arange(1000.0)), "input": torch.arange(1000.0)}
        with torch.no_grad():
            other = torch.arange(1000.0).cos()
            t = made.get(what, torch.arange(1000.0) + 1).detach()
            read = [t * 2, t * 3, t.sin()]
            dtr_alloc.evict(other)
            if what == "evicted":
                dtr_alloc.evict(t)
            WRITES[way](t, other)
            for one in read:
                dtr_alloc.evict(one)
        return [t, other, *read, t.cos()]

    assert_exact(program, modes=["recorded", "evict_always"])


LISTS: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda t: torch.tensor([t[3], t[5]]),
    "as_tensor": lambda t: torch.as_tensor([[t[3]], [t[5]]]),
    "asarray": lambda t: torch.asarray([t[3], 1]),
    "new_tensor": lambda t: torch.ones(1).new_tensor([t[3], t[5]]),
    "Tensor": lambda t: torch.Tensor([t[3].real, t[5].real]),
}


@pytest.mark.parametrize("way", LISTS)
@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_items_of_an_evicted_tensor_in_a_list(way: str, kind: torch.dtype) -> None:
    plain = torch.arange(100_000).remainder(7).to(kind)
    expected = LISTS[way](plain)
    with dtr_alloc.rematerialize(None):
        t = plain.roll(0)
        assert dtr_alloc.evict(t)
        assert torch.equal(LISTS[way](t), expected)
        assert dtr_alloc.evict(t)


def test_memory_whose_content_recipes_have_a_copy_of_goes_with_its_last_tensor() -> None:
    array = np.ones(100_000, np.float32)
    gone = weakref.ref(array)
    with scope(None):
        x = torch.from_numpy(array)
        made = [x + 1, x * 2, x * 3]  # More than a copy.
        x.numpy()
        del x, array
        assert gone() is None
        assert dtr_alloc.evict(made[1])
        assert made[1].sum() == 200_000


def test_a_graph_of_any_size_is_traced_beside_an_array_that_recipes_read() -> None:
    """Its tensors have storages of a symbol's size, in no memory."""
    with scope(None):
        made = torch.from_numpy(np.ones((64, 64), np.float32)).exp()
        graph = make_fx(torch.sin, tracing_mode="symbolic")(torch.ones(8))
        assert torch.equal(graph(torch.ones(9)), torch.ones(9).sin())
        del made


def test_the_summary_and_the_error_name_the_line_that_took_memory_once() -> None:
    x = torch.ones(40_000)
    with dtr_alloc.rematerialize("3MiB") as session:
        held = [(x + i).sin() for i in range(4)]
        for _ in range(3):
            x.numpy()
            held.append(x.cos())
        text = session.summary()
        assert text.count("numpy at ") == 1, text
        assert f"numpy at {__file__}:" in text
        assert "156.25 KiB copied" in text
        told = r"memory was handed out by: numpy at .*:\d+"
        with pytest.raises(torch.OutOfMemoryError, match=told):
            torch.ones(1 << 20)


def test_the_line_is_the_programs_where_a_library_takes_the_memory() -> None:
    with dtr_alloc.rematerialize("1MiB") as session:
        x = torch.ones(1024).exp()
        y = x.exp()
        copy.copy(x)
        assert f"__reduce_ex__ at {__file__}" in session.summary()
        del y


def test_what_an_operator_does_with_its_arguments_freezes_nothing() -> None:
    seen = []

    @torch.library.custom_op("dtr_test::doubled", mutates_args=())
    def doubled(x: Tensor, y: Tensor) -> Tensor:
        seen.append((x.data_ptr(), x.untyped_storage().nbytes(), y.is_shared()))  # type: ignore[no-untyped-call]
        return torch.from_numpy(x.numpy() * 2) + y

    weight = torch.ones(1000)
    with dtr_alloc.rematerialize(None) as session:
        x = torch.randn(1000).exp()
        kept, y = x.clone(), x + weight
        before = session.stats().evictable_bytes
        made = doubled(x, weight)
        assert session.stats().evictable_bytes == before + made.nbytes
        assert dtr_alloc.evict(x)
        assert dtr_alloc.evict(y)
        assert torch.equal(made, kept * 2 + 1)
        assert torch.equal(y, kept + 1)
    assert seen


class _Keeper:
    """Takes an array of its tensor when it is pickled, and keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array: np.ndarray[Any, Any] | None = None

    def __getstate__(self) -> dict[str, object]:
        self.array = self.tensor.numpy()
        return {}


def test_memory_that_is_taken_while_something_is_saved_stays() -> None:
    with dtr_alloc.rematerialize(None):
        keeper = _Keeper(torch.ones(1000) * 3)
        torch.save(keeper, io.BytesIO())
        assert not dtr_alloc.evict(keeper.tensor)
        others = [torch.ones(1000) * 7 for _ in range(10)]
        assert keeper.array is not None
        assert (keeper.array == 3).all()
        del others


def test_memory_filled_through_a_pointer_is_not_recomputed_from_nothing() -> None:
    with scope(None, evict_always=True):
        x = torch.empty(256, 64)
        np.copyto(x.numpy(), 3.0)
        y = torch.tensor(np.full(1000, 7.0, dtype=np.float32).tolist())
        assert bool((x * 2 == 6).all())
        assert bool((y == 7).all())


@exact
def test_a_model_is_saved_loaded_and_copied_with_evicted_state() -> Iterator[Tensor]:
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


@torch.library.custom_op("dtr_conformance::halve_raw_", mutates_args={"x"})
def halve_raw_(x: Tensor) -> None:
    array = x.numpy()
    array *= 0.5


@exact
def test_an_operator_of_a_library_that_writes_its_argument_through_numpy() -> Iterator[Tensor]:
    x = torch.randn(32, 32).exp()
    early = x.sin()
    halve_raw_(x)
    yield from (x, early, x.cos())
