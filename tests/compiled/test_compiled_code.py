"""torch.compile's code between eager operators reads what was evicted, and comes to its bits."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from tests.compiled.test_compiled_regions import of_torch
from tests.support.exactness import assert_exact, assert_exact_within, exact, grad_of, scope
from tests.support.own_process import printed
from tests.support.threads import in_threads

MIB = 1 << 20
pytestmark = of_torch


@pytest.fixture(autouse=True)
def _compiles_anew() -> None:
    torch._dynamo.reset()


each_backend = pytest.mark.parametrize("backend", ["inductor", "dtr_alloc"])


def wave(x: Tensor) -> Tensor:
    return x.sin() * 2 + 1


def gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x) * x.cos()


class Block(nn.Module):
    """Eager, compiled and eager again; the compiled part saves what the eager one made."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(128, 128), nn.Linear(128, 128)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.last(self.middle(self.first(x).tanh())).tanh()
        return shown


def training(middle: Callable[[Tensor], Tensor], blocks: int = 6) -> Iterator[Tensor]:
    model = nn.Sequential(*[Block(middle) for _ in range(blocks)])
    x = torch.randn(256, 128)
    shown = model(x)
    shown.square().mean().backward()
    yield shown
    yield from map(grad_of, model.parameters())


def test_it_reads_what_was_evicted_and_its_backward_does() -> None:
    compiled = torch.compile(gelu)
    assert_exact(lambda: training(compiled))


@pytest.mark.parametrize("share", [0.7, 0.6])  # Weights made in a scope stay, on torch 2.11.
def test_training_under_budgets_is_that_without(share: float) -> None:
    compiled = torch.compile(gelu)
    assert_exact_within(share, lambda: training(compiled))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@exact
def test_without_gradients(mode: Callable[[], Any]) -> Iterator[Tensor]:
    compiled = torch.compile(wave)
    with mode():
        yield compiled(torch.randn(64, 64).exp()).exp().clone()


@exact
def test_shapes_that_vary() -> Iterator[Tensor]:
    compiled = torch.compile(lambda x: gelu(x) * x.shape[0], dynamic=True)
    for rows in (16, 24, 40):
        x = torch.randn(rows, 64).exp().requires_grad_()
        y = compiled(x.sin())
        y.sum().backward()
        yield from (y, grad_of(x))


@each_backend
def test_a_graph_break(backend: str) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin() * 2
        torch._dynamo.graph_break()
        return y.cos() * x

    compiled = torch.compile(broken, backend=backend)
    assert_exact(lambda: training(compiled, blocks=2))


@exact
def test_several_results_and_one_argument_that_comes_twice() -> Iterator[Tensor]:
    compiled = torch.compile(lambda a, b, c: (a + b * 2, (a * c).sum(0), a.view(-1)))
    x = torch.randn(64, 64).exp()
    yield from (one.sin() for one in compiled(x, x, x.sin()))
    yield from compiled(x[:32], x[32:], x[:32].exp())
    yield x


def test_an_operator_inside_it_may_read_a_buffer_that_is_written_later() -> None:
    # Sorting is no work for a generated kernel: torch's own does it, from and to buffers of the
    # compiled code, which uses them again. A recipe of it would read what is there by then.
    def sorts(x: Tensor) -> tuple[Tensor, Tensor]:
        sine = x.sin()
        values, _ = sine.sort(dim=1)
        return values, values.cos() + 1

    compiled = torch.compile(sorts)

    def program() -> Iterator[Tensor]:
        for one in compiled(torch.randn(256, 256).exp()):
            yield one
            yield one.exp()

    assert_exact(program)


@each_backend
def test_what_it_writes_is_seen_and_who_read_it_before_keeps_the_old_content(backend: str) -> None:
    def added(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(y)
        return x.sin(), y.cos()

    add = torch.compile(added, backend=backend)

    def program() -> Iterator[Tensor]:
        for size in (64, 256):  # Of which one is small enough to be copied, and one is not.
            made, given = torch.randn(size, size).exp(), torch.ones(size, size)
            before = made.cos(), given.cos() * made
            with torch.no_grad():
                yield from (*add(made, given), *add(given, made), *before, made, given)

    assert_exact(program)


@each_backend
def test_running_statistics_that_eager_operators_read(backend: str) -> None:
    norm = nn.BatchNorm1d(32)
    compiled = torch.compile(norm, backend=backend)

    def program() -> Iterator[Tensor]:
        norm.reset_running_stats()
        norm.weight.grad = None
        assert norm.running_mean is not None
        seen = (norm.running_mean + torch.ones(64, 32)).exp()
        for _ in range(3):
            compiled(torch.randn(64, 32).exp()).exp().sum().backward()
        yield from (seen, grad_of(norm.weight), *norm.buffers())

    assert_exact(program)


def test_constants_that_were_made_while_it_was_compiled() -> None:
    def program() -> Iterator[Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x.sin() + torch.tensor([float(i) for i in range(256)]))
        for _ in range(3):
            yield compiled(torch.randn(16, 256).exp()).exp()

    assert_exact(program)


def test_random_numbers() -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5) * x)
    assert_exact(lambda: training(compiled, blocks=2))


def test_what_was_held_can_be_evicted_again() -> None:
    compiled = torch.compile(wave)
    with scope(None) as session:
        x = torch.randn(256, 256).exp()
        before = session.stats().evictable_bytes
        assert before > 0
        for _ in range(2):
            assert dtr_alloc.evict(x)
            compiled(x)
            assert not dtr_alloc.is_evicted(x)
            assert session.stats().evictable_bytes >= before
        session.check()


@each_backend
def test_what_does_not_fit_together_is_an_error_that_leaves_all_as_it_was(backend: str) -> None:
    compiled = torch.compile(lambda *all: sum(all), backend=backend)
    with scope(int(3.5 * MIB)) as session:
        tensors = [torch.full((512, 512), i / 7).exp() for i in range(6)]
        with pytest.raises(torch.OutOfMemoryError, match="Raise the budget"):
            compiled(*tensors)
        session.check()
        assert torch.equal(compiled(tensors[0]), torch.full((512, 512), 0.0).exp())
        del tensors


@each_backend
def test_an_exception_inside_lets_go_of_what_was_held(backend: str) -> None:
    @torch.library.custom_op("dtr_alloc_test::fail", mutates_args=())
    def fail(x: Tensor) -> Tensor:
        raise LookupError("by the test")

    fail.register_fake(torch.empty_like)
    compiled = torch.compile(lambda x: fail(x.sin()) + x, backend=backend)
    with scope(None) as session:
        x = torch.randn(64, 64).exp()
        before = session.stats().evictable_bytes
        assert dtr_alloc.evict(x)
        for _ in range(2):
            with pytest.raises(LookupError, match="by the test"):
                compiled(x)
        assert session.stats().evictable_bytes >= before
        assert dtr_alloc.evict(x)
        session.check()


def test_what_another_thread_lets_go_meanwhile_is_free_when_it_ends() -> None:
    with scope(None) as session:
        weight = torch.ones(256, 64)
        dtr_alloc.pin(weight)
        held = [weight.exp()]
        del weight
        session._core.holding(held, [], False, 0, lambda: in_threads(held.clear, join=False))
        assert session.stats().live_bytes == 0


def test_arguments_that_it_lets_go_are_free_while_it_still_runs() -> None:
    # Each product's backward takes memory for a gradient and lets the other factor go, which the
    # compiled code alone still has.
    @torch.compile
    def products(weights: list[Tensor], factors: list[Tensor]) -> Tensor:
        return sum(w @ factor for w, factor in zip(weights, factors, strict=True))  # type: ignore

    weights = [torch.randn(256, 256, requires_grad=True) for _ in range(8)]

    def peak(opened: Any) -> int:
        with opened as session:
            total = products(weights, [torch.full((256, 256), i / 9).sin() for i in range(8)]).sum()
            torch.autograd.grad(total, weights)
        return int(session.stats().peak_bytes)

    peak(dtr_alloc.measure())  # Compiles.
    assert peak(scope(None)) <= peak(dtr_alloc.measure())


@each_backend
def test_threads_that_join(backend: str) -> None:
    compiled = torch.compile(wave, backend=backend)
    x = torch.randn(64, 64)
    expected = compiled(x.exp())
    with scope(None, evict_always=True):
        made = x.exp()

        def work() -> None:
            assert torch.equal(compiled(made), expected)

        in_threads(work, work)


def test_afterwards_torch_is_as_it_was() -> None:
    from torch._inductor.output_code import CompiledFxGraph

    before, finders = CompiledFxGraph.__call__, list(sys.meta_path)
    with dtr_alloc.measure():
        assert CompiledFxGraph.__call__ is not before
    assert CompiledFxGraph.__call__ is before
    assert sys.meta_path == finders


SCRIPT = """
import sys
import torch
import dtr_alloc
from types import SimpleNamespace
x = torch.randn(64, 64)
finders = list(sys.meta_path)
{opened}
assert "torch._inductor.output_code" not in sys.modules, "a scope imports Inductor"
assert "torch._dynamo" not in sys.modules, "a scope imports Dynamo"
compiled = torch.compile(lambda x: x.sin() * 2 + 1)
{used}
output_code = sys.modules["torch._inductor.output_code"]
assert not hasattr(output_code.CompiledFxGraph.__call__, "__wrapped__")
assert all("dtr_alloc" not in str(type(finder)) for finder in sys.meta_path)
print("done")
"""


@pytest.mark.parametrize(
    ("opened", "used"),
    [
        (
            "from dtr_alloc.runtime.scope import current\n"
            "current.instruments['evict_always'] = True\n"
            "scope = dtr_alloc.rematerialize(None)\n"
            "scope.__enter__()",
            "assert torch.equal(compiled(x.exp()), compiled(x.exp().clone()))\n"
            "scope.__exit__(None, None, None)",
        ),
        ("with dtr_alloc.measure():\n    x.exp()\nassert sys.meta_path == finders", "compiled(x)"),
        (
            "from dtr_alloc.runtime.scope.current import CudaScope\n"
            "from dtr_alloc.runtime.scope.serving import Service\n"
            "from dtr_alloc.runtime.scope.steps import Steps\n"
            "seen = []\n"
            "class Session:\n"
            "    def holding(self, tensors, written, backward, code, run):\n"
            "        seen.extend(tensors)\n"
            "        return run()\n"
            "    def reading(self, tensor):\n"
            "        pass\n"
            "service = Service(CudaScope(SimpleNamespace(session=Session), Steps()))",
            "compiled(x)\nassert seen and seen[0] is x, seen\nservice.end(lambda: None)",
        ),
    ],
    ids=["imported in the scope", "imported after it", "allocator"],
)
def test_inductor_is_imported_by_those_who_use_it(opened: str, used: str) -> None:
    assert printed(SCRIPT.format(opened=opened, used=used)) == "done\n"
