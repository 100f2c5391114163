"""`backend="dtr_alloc"`: a compiled forward graph is an operator, evicted, recomputed exactly."""

import functools
import gc
import json
import re
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.adapters.compile_backend import backend
from dtr_alloc.runtime.trace.format import Call
from tests.support.exactness import assert_exact, assert_exact_within, exact, grad_of, scope

of_torch = [  # Warnings of its own, as it is imported and as it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
]
pytestmark = of_torch
Function = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def _many_shapes() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


def compiled(function: Function, **options: Any) -> Function:
    return torch.compile(function, backend="dtr_alloc", **options)


@functools.cache
def block() -> Function:
    """A perceptron of its own arguments, with dropout: one graph for all its uses."""

    def run(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        return x + F.dropout(F.gelu(x @ first) @ last, 0.1)

    return compiled(run)


def training(blocks: int = 6, rows: int = 128) -> Iterator[Tensor]:
    weights = [torch.randn(2, 64, 64).div(8).requires_grad_() for _ in range(blocks)]
    x = torch.randn(rows, 64)
    for weight in weights:
        x = block()(x, *weight.unbind())
    x.square().mean().backward()  # type: ignore[no-untyped-call]
    yield x
    yield from map(grad_of, weights)


def gradients(run: Function, *inputs: Tensor) -> Iterator[Tensor]:
    """What `run` returns, and the inputs' gradients of the results' sum, twice."""
    for _ in range(2):
        leaves = [one.detach().exp().requires_grad_(one.is_floating_point()) for one in inputs]
        made = run(*leaves)
        made = [made] if isinstance(made, Tensor) else [m for m in made if isinstance(m, Tensor)]
        yield from made
        floats = [one for one in made if one.requires_grad]
        if floats:
            total = sum((one.exp() * 0.01).sum() for one in floats)
            assert isinstance(total, Tensor)
            yield from torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)


def test_training_is_exact() -> None:
    assert_exact(training)


def test_all_that_it_saves_can_be_evicted() -> None:
    list(training())  # Compiles.
    with scope(None) as session:
        x = torch.randn(1024, 64, requires_grad=True).exp()  # Smaller masks would be constants.
        weight = torch.randn(64, 64, requires_grad=True)
        before = session.stats()
        kept = block()(block()(x, weight, weight), weight, weight)
        stats = session.stats()
        more = stats.live_bytes - before.live_bytes
        assert stats.evictable_bytes - before.evictable_bytes == more
        assert more > 4 * kept.nbytes


def test_budgets_hold_and_change_no_bit() -> None:
    assert_exact_within(0.4, lambda: training(12, 512))


@pytest.mark.slow
def test_views_among_the_results_and_inputs_that_come_back() -> None:
    def several(a: Tensor, b: Tensor, n: int) -> tuple[Any, ...]:
        wide = a.sin() * b
        return wide, wide.t(), wide[1:], a, b.view(-1), None, n + 1, wide.sum(), (a > 1), a.long()

    run = compiled(several)
    for n in (3, 4):
        assert_exact(lambda n=n: gradients(lambda a, b: run(a, b, n), *two(96)))  # type: ignore


def two(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, size), torch.randn(size, size)


@pytest.mark.slow
def test_what_is_too_large_to_copy_is_told_in_the_summary() -> None:
    run = compiled(lambda x, y: (x.add_(y), x.sin())[1])
    with scope(None) as session:
        outside = torch.zeros(256, 256)
        run(outside, torch.ones(256, 256).exp())
    assert "writes a tensor of over 64 KiB" in session.summary()


@pytest.mark.slow
def test_random_numbers_of_a_library_that_says_nothing_of_them() -> None:
    @torch.library.custom_op("dtr_alloc_test::noise", mutates_args=())
    def noise(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    noise.register_fake(torch.empty_like)
    run = compiled(lambda x: noise(x.sin()) * 2)
    assert_exact(lambda: gradients(lambda x: run(x.detach()), two(96)[0]))


def test_a_gradient_that_takes_the_memory_of_what_was_saved() -> None:
    run = compiled(lambda x: x * torch.rand_like(x))
    assert_exact(lambda: gradients(run, two(96)[0]))


def test_what_must_not_run_again_stays_and_is_named() -> None:
    library: Any = torch.library.Library("dtr_alloc_untagged", "DEF")  # type: ignore
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("twice", torch.empty_like, "Meta")
    run = compiled(lambda x: torch.ops.dtr_alloc_untagged.twice(x.sin()).cos())
    assert_exact(lambda: gradients(lambda x: run(x.detach()), two(96)[0]))
    with scope(None) as session:
        made = run(two(96)[0].exp())
        assert not dtr_alloc.evict(made)
    assert "dtr_alloc_untagged::twice has no pt2_compliant_tag" in session.summary()


TABLES: list[Tensor] = []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def table() -> Tensor:
    return TABLES[0]


@pytest.mark.slow
@exact
def test_constants_that_the_code_took_from_a_scope() -> Iterator[Tensor]:
    torch._dynamo.reset()
    TABLES[:] = [torch.randn(128, 128).exp()]
    run = compiled(lambda x: x + table() + torch.tensor([float(i) for i in range(128)]))
    for _ in range(3):
        yield run(torch.randn(128, 128).exp()).exp()


@functools.cache
def wave() -> Function:
    return compiled(lambda x: (x.sin() * x).cos())


def test_the_code_goes_with_the_graph_and_its_last_recipe() -> None:
    from torch._inductor.output_code import CompiledFxGraph

    def graphs() -> list[Any]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is CompiledFxGraph]

    torch._dynamo.reset()
    before = {id(one) for one in graphs()}
    run: Function | None = compiled(lambda x: x.tanh() * 3)
    with scope(None):
        assert run is not None
        x = torch.randn(64, 64)
        y = run(x.exp())
        made = [weakref.ref(one) for one in graphs() if id(one) not in before]
        assert len(made) == 1
        expected = y.clone()
        run = None
        torch._dynamo.reset()
        assert dtr_alloc.evict(y)
        graphs()
        assert torch.equal(y, expected)  # By code that only the recipe has.
        assert made[0]() is not None
        del y
    graphs()
    assert made[0]() is None


def test_each_region_has_its_own_name_in_traces_events_and_profiles(tmp_path: Path) -> None:
    runs = compiled(lambda x: x.sin() + 1), compiled(lambda x: x.cos() + 1)
    with dtr_alloc.rematerialize(None, events=True) as session:
        x = torch.randn(64, 64)
        with dtr_alloc.record_trace() as recording:
            made = [run(x) for run in runs for _ in range(2)]
        assert recording.trace is not None
        named = [one.name for one in recording.trace.instructions if hasattr(one, "name")]
        named = [name for name in named if name.startswith("compiled::")]
        assert len(named) == 4
        assert len(set(named)) == 2
        with torch.profiler.profile(acc_events=True) as profiler:
            for one in made:
                assert dtr_alloc.evict(one)
                dtr_alloc.materialize(one)
        seen = {event.name for event in profiler.events() or ()}
        assert {f"dtr::rematerialize({name})" for name in named} <= seen
    session.export_chrome_trace(tmp_path / "events.json")
    events = json.loads((tmp_path / "events.json").read_text())["traceEvents"]
    assert {f"evict {name}" for name in named} <= {event["name"] for event in events}


def test_outside_of_scopes_it_is_inductors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("called as an operator")

    with scope(None):
        wave()(torch.ones(64, 64))
    monkeypatch.setattr("dtr_alloc._core.CompiledRegion.__call__", never)
    wave()(torch.ones(64, 64))
    with scope(None), pytest.raises(AssertionError, match="as an operator"):
        wave()(torch.ones(64, 64))


def test_what_stays_of_an_evicted_block_is_needed_when_it_was() -> None:
    """As a tape foretells: its result, which the next block reads, when that runs again."""
    weights = [torch.randn(2, 64, 64).div(8).requires_grad_() for _ in range(6)]
    optimizer = torch.optim.SGD(weights, lr=0.1)

    def train(session: dtr_alloc.Session) -> None:
        for _ in range(3):
            x = torch.randn(128, 64)
            for weight in weights:
                x = block()(x, *weight.unbind())
                session.check()
            x.square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

    with dtr_alloc.measure() as session:
        train(session)
    with dtr_alloc.rematerialize(session.stats().peak_bytes // 2) as session:
        train(session)
    assert session.stats().evictions > 0


def test_an_options_name_may_have_dashes_as_torchs_may(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        compile_fx, "compile_fx", lambda *_, config_patches, **__: given.append(config_patches)
    )
    graph = torch.fx.symbolic_trace(nn.Identity())
    backend(graph, [torch.ones(1)], options={"max-autotune": True, "shape_padding": False})
    assert given[0].items() >= {"max_autotune": True, "shape_padding": False}.items()


def test_cuda_graphs_are_refused() -> None:
    graph = torch.fx.symbolic_trace(nn.Identity())
    for named, asked in (
        ('mode "reduce-overhead"', {"mode": "reduce-overhead"}),
        ('mode "max-autotune"', {"mode": "max-autotune"}),
        ("the option triton.cudagraphs", {"options": {"triton.cudagraphs": True}}),
    ):
        with pytest.raises(ValueError, match=f"makes no CUDA graphs, for which {named} asks"):
            backend(graph, [torch.ones(1)], **asked)
    everywhere = torch._inductor.config.patch("triton.cudagraphs", True)
    named = re.escape("torch._inductor.config.triton.cudagraphs")
    with everywhere, pytest.raises(ValueError, match=f"for which {named} asks"):
        backend(graph, [torch.ones(1)])


def test_the_first_call_is_no_price() -> None:
    calls = []

    @torch.library.custom_op("dtr_alloc_test::slow_at_first", mutates_args=())
    def slow_at_first(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) == 1:
            time.sleep(0.1)
        return x + 1

    slow_at_first.register_fake(torch.empty_like)
    run = compiled(lambda x: slow_at_first(x))
    with dtr_alloc.rematerialize(None), dtr_alloc.record_trace() as recording:
        x = torch.ones(64, 64)
        for _ in range(50):
            x = x.exp().sin()
        for _ in range(2):
            run(x)
    assert recording.trace is not None
    calls_of = [one for one in recording.trace.instructions if isinstance(one, Call)]
    first, second = (one.time for one in calls_of if one.name.startswith("compiled::"))
    assert 0 < first < 1e6  # Nanoseconds. By its time it would be a hundred milliseconds.
    assert second > 0


def test_the_summary_tells_where_one_call_holds_much_of_the_budget() -> None:
    def deep(x: Tensor) -> Tensor:
        for _ in range(6):
            x = (x @ x.t()).softmax(1) @ x
        return x

    run = compiled(deep)
    with dtr_alloc.rematerialize("16MiB") as session:
        run(torch.randn(512, 64, requires_grad=True)).sum().backward()
    assert "compile smaller blocks" in session.summary()
    with dtr_alloc.rematerialize("1GiB") as session:
        run(torch.randn(512, 64, requires_grad=True)).sum().backward()
    assert "compile smaller blocks" not in session.summary()


def test_only_results_that_a_mark_tells_of_are_the_runtimes() -> None:
    region = _core.CompiledRegion("more_than_told", results=1, written=[], random=False)
    x = torch.ones(1000)
    with scope(None) as session:
        first, second = region([x], lambda given: [given[0] * 2, given[0] * 3])
        session.check()
        assert dtr_alloc.evict(first)
        assert not dtr_alloc.evict(second)
        assert torch.equal(first, x * 2)
        assert torch.equal(second, x * 3)
