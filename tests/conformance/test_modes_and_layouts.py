"""Modes that see each call, tensors that are no plain dense tensors, compilers and profilers, in
and around a scope."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from dtr_alloc import _core
from tests.conformance.cases import database_module
from tests.support.exactness import MODES, alike, assert_exact, exact, grad_of, run, scope
from tests.support.threads import in_threads


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Tripling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 3 if func is torch.Tensor.exp else result


def trained() -> Iterator[Tensor]:
    layer = nn.Linear(32, 32)
    x = torch.randn(16, 32, requires_grad=True)
    hidden = layer(x).exp()
    (hidden + 1).add_(x).square().sum().backward()
    yield from (hidden, grad_of(x))


seen_inside = pytest.mark.skipif(
    not _core.sees_inside_handlers,
    reason="this torch hides what dispatch modes and tensor subclasses call",
)


@seen_inside
def test_a_dispatch_mode_inside_the_scope_sees_the_programs_calls_only() -> None:
    def program() -> tuple[list[tuple[Any, ...]], list[str]]:
        with Counting() as mode:
            results = run(trained)
        return results, mode.names

    expected, names = program()
    with scope(None, evict_always=True) as session:
        found, seen = program()
        assert session.stats().rematerializations > 0
    assert seen == names
    assert alike(found, expected)


@exact
def test_results_under_a_dispatch_mode_are_exact_whether_or_not_it_is_seen_inside() -> Iterator[
    Tensor
]:
    before = torch.randn(32, 32).exp()
    with Counting():
        yield from (before * 2, *trained())
    yield before.sin()


@seen_inside
def test_a_dispatch_mode_around_the_scope() -> None:
    expected = run(trained)
    with Counting() as mode, scope(None, evict_always=True) as session:
        found = run(trained)
        assert session.stats().evictions > 0
    assert alike(found, expected)
    assert any("exp" in name for name in mode.names)


@exact
def test_a_function_mode_that_changes_results() -> Iterator[Tensor]:
    with Tripling():
        yield from trained()


@seen_inside
def test_tensors_made_of_two_tensors() -> None:
    two = database_module("two_tensor").TwoTensor

    def program() -> Iterator[Tensor]:
        x = torch.randn(32, 32)
        pair = two(x.exp(), x.sin()).requires_grad_()
        result = (pair @ pair).tanh() * 2
        result.sum().backward()
        yield from (result.a, result.b, pair.grad.a, pair.grad.b)

    assert_exact(program)


@exact
def test_tensors_made_in_inference_mode_are_used_after_it() -> Iterator[Tensor]:
    with torch.inference_mode():
        x = torch.randn(32, 32).exp()
        view = x[3:].t()
        x.add_(1)
    y = x * 2
    copy = x.clone().requires_grad_()
    (copy * y).sum().backward()  # type: ignore[no-untyped-call]
    yield from (x, view, y, grad_of(copy))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "coo", "hybrid"])
def test_sparse_tensors_of_every_layout(layout: str) -> None:
    make: dict[str, Callable[[Tensor], Tensor]] = {
        "csr": Tensor.to_sparse_csr,
        "csc": Tensor.to_sparse_csc,
        "bsr": lambda t: t.to_sparse_bsr((4, 4)),
        "coo": Tensor.to_sparse,
        "hybrid": lambda t: t.to_sparse(1),
    }

    def program() -> Iterator[Tensor]:
        dense = torch.randn(32, 32).exp()
        sparse = make[layout](dense * (dense > 1.5))
        yield (sparse * 2).to_dense().sin()
        if layout in ("csr", "csc", "coo"):
            yield (sparse @ dense).exp()
        if layout in ("coo", "hybrid"):
            joined = (sparse + sparse).coalesce()
            yield from (joined.values().exp(), joined.to_dense())
            places = torch.arange(32).expand(2, 32)
            yield torch.sparse_coo_tensor(places, dense[0].exp(), (32, 32)).to_dense().exp()
        else:
            yield sparse.values().exp()

    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        assert_exact(program)


@exact
def test_sparse_gradients_of_an_embedding() -> Iterator[Tensor]:
    table = nn.Embedding(200, 32, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.randint(200, (8, 16))).exp().sum().backward()
        yield grad_of(table.weight).to_dense()
        optimizer.step()  # type: ignore[no-untyped-call]
    yield table.weight


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
def test_nested_tensors() -> None:
    def program() -> Iterator[Tensor]:
        parts = [torch.randn(n, 32).exp() for n in (8, 12, 20)]
        strided = torch.nested.nested_tensor(parts)
        jagged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        layer = nn.Linear(32, 32)
        for nested in (strided, jagged):
            yield from (t.clone() for t in layer(nested).relu().unbind())
        yield torch.nested.to_padded_tensor(strided, 0.0)

    # Before 2.13 torch hides what a subclass reads, which a swap may have taken (docs/limits.md).
    hides = torch.__version__.startswith(("2.11.", "2.12."))
    assert_exact(program, modes=[mode for mode in MODES if not (hides and mode == "swap_always")])


@pytest.mark.filterwarnings("ignore:.*quantiz.*")  # torch warns of its own plans for quantization.
@exact
def test_quantized_tensors() -> Iterator[Tensor]:
    x = torch.randn(64, 64).exp()
    whole = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
    rows = torch.quantize_per_channel(x, torch.rand(64) + 0.01, torch.zeros(64), 0, torch.qint8)
    yield from (whole.int_repr(), whole.dequantize().sin(), rows.dequantize(), x)


@exact
def test_meta_and_fake_tensors_beside_real_ones() -> Iterator[Tensor]:
    meta = torch.empty(1000, 1000, device="meta").exp()
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fake = torch.randn(64, 64).exp()
    x = torch.randn(64, 64).exp()
    assert (meta @ meta).shape == (1000, 1000)
    assert fake.shape == x.shape
    yield torch.empty_like(x, device="meta").to(torch.float64).new_zeros(64, 64, device="cpu")
    yield x


def test_scripted_and_traced_functions() -> None:
    layer = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.3))
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
        scripted, traced = torch.jit.script(layer), torch.jit.trace(layer[:2], torch.ones(4, 32))  # type: ignore[no-untyped-call]

    def program() -> Iterator[Tensor]:
        x = torch.randn(16, 32, requires_grad=True)
        for _ in range(4):
            out = scripted(x) + traced(x)
            out.exp().sum().backward()
            yield out
        yield grad_of(x)

    assert_exact(program)


class EvictsBetween(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.first(x)
        dtr_alloc.evict(first)
        second: Tensor = self.second(first)
        return second


def test_the_tracer_sees_no_recomputation() -> None:
    x, model = torch.randn(8, 3, 32, 32), EvictsBetween()
    with dtr_alloc.rematerialize(None) as session:
        with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
            traced = torch.jit.trace(model, x, check_trace=False)  # type: ignore[no-untyped-call]
        assert session.stats().rematerializations > 0
    assert torch.equal(traced(x), model(x))


# The compiler asks every input for its gradient, of which torch warns if it is no leaf, and warns
# of Python 3.13.0.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions(backend: str) -> None:
    layer = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    compiled = torch.compile(layer, backend=backend)

    def program() -> Iterator[Tensor]:
        x = torch.randn(16, 32, requires_grad=True)
        for _ in range(2):
            layer.zero_grad()
            out = compiled(x.sin()).exp()
            out.sum().backward()
            yield out
        yield from (grad_of(x), *(p.grad for p in layer.parameters() if p.grad is not None))

    assert_exact(program)


def test_a_profile_shows_each_recomputation_under_a_name_of_its_own() -> None:
    with (
        dtr_alloc.rematerialize("4MiB") as session,
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profile,
    ):
        x = torch.ones(64, 64)
        once, twice = x.exp(), x.exp().sin()
        dtr_alloc.evict(once)
        dtr_alloc.evict(twice)
        once + twice
    counts = {event.key: event.count for event in profile.key_averages()}
    names = {name for name in counts if name.startswith("dtr::rematerialize")}
    assert names == {"dtr::rematerialize(aten::exp)", "dtr::rematerialize(aten::sin)"}
    assert counts["dtr::rematerialize(aten::exp)"] == 2
    assert sum(counts[name] for name in names) == session.stats().rematerializations == 3
    assert counts["aten::exp"] == 2  # The program's own.


def test_a_thread_that_trains_on_its_own_beside_a_scope() -> None:
    expected = run(trained)
    found: list[tuple[Any, ...]] = []
    with scope(None, evict_always=True) as session:
        in_threads(lambda: found.extend(run(trained)), join=False)
        assert session.stats().recorded == 0
    assert alike(found, expected)


@exact
def test_worker_processes_load_what_evicted_tensors_hold() -> Iterator[Tensor]:
    data, labels = torch.randn(64, 200).exp(), torch.arange(64.0) * 1
    dataset = torch.utils.data.TensorDataset(data, labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=1, shuffle=True)
    for batch, label in loader:
        yield from (batch.log(), label)
