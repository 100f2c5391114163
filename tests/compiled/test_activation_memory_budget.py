"""Torch's `activation_memory_budget` in our backend: the gradients are those without it. Torch
alone draws a dropout anew in the backward graph (findings/memory_budget_redraws_dropout.sh)."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.nn import functional as F  # noqa: N812

import dtr_alloc
from dtr_alloc.demo.models import TransformerBlock
from dtr_alloc.runtime.adapters import compiled_code
from dtr_alloc.runtime.adapters.compile_backend import backend
from dtr_alloc.runtime.planning import script as profiling
from tests.compiled.test_compiled_programs import OPERATIONS
from tests.compiled.test_compiled_regions import of_torch
from tests.support.exactness import assert_exact_within, scope
from tests.support.fences import ROOT, fences
from tests.support.own_process import printed

pytestmark = of_torch
Block = Callable[[Tensor, Tensor], Tensor]
Options = dict[str, Any]
OPTION = "activation_memory_budget"


@pytest.fixture(autouse=True)
def _compiles_anew() -> None:
    torch.compiler.reset()


@pytest.fixture
def by_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The graphs run as they are, and draw as eager mode does."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor import compile_fx, config

    def run(graph: torch.fx.GraphModule, inputs: object, **options: object) -> object:
        return make_boxed_func(lambda *given: graph.forward(*given))

    monkeypatch.setattr(compile_fx, "compile_fx_inner", run)
    with config.patch(fallback_random=True):
        yield


def noise(x: Tensor) -> Tensor:
    made = torch.ops.dtr_alloc_budget.noise(x)
    assert isinstance(made, Tensor)
    return made


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    """An operator that draws and does not say so."""

    @torch.library.custom_op("dtr_alloc_budget::noise", mutates_args=())
    def made(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    made.register_fake(torch.empty_like)
    made.register_autograd(lambda _, gradient: gradient)


def attention(x: Tensor, dropout: float) -> Tensor:
    q = x.view(1, 2, 64, 32)
    made = F.scaled_dot_product_attention(q, q.sin(), q.cos(), dropout_p=dropout)
    return made.view(64, 64)


BLOCKS: dict[str, Block] = {
    "dropout": lambda x, w: F.dropout(x * w.sum(), 0.3).sin(),
    "perceptron": lambda x, w: (x + F.dropout(F.gelu(x @ w), 0.2)) @ w,
    "two draws": lambda x, w: (x @ w * torch.rand_like(x)).tanh() + torch.randn_like(x) * w.sin(),
    "an operator that does not say so": lambda x, w: (noise(x @ w).sin() @ w).cos(),
    "no draw": lambda x, w: (x @ w).sin() @ w.cos(),
    "attention": lambda x, w: attention(x @ w, 0.2) @ w,
}


def gradients(block: Block, around: contextlib.AbstractContextManager[Any]) -> list[Tensor]:
    torch.compiler.reset()
    torch.manual_seed(0)
    x, w = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    with around:
        made = block(x, w)
        return [made, *torch.autograd.grad(made.square().mean(), (x, w))]


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, some, others))


@pytest.mark.usefixtures("by_operators")
def test_attention_without_dropout_is_computed_again() -> None:
    """Torch's tags say that attention draws, whatever its dropout."""

    def block(x: Tensor, w: Tensor) -> Tensor:
        return attention(x @ w, 0.0).tanh() @ w.sin()

    def trained(options: Options | None) -> tuple[list[Tensor], int]:
        run = torch.compile(block, backend="dtr_alloc", options=options)
        with dtr_alloc.measure() as session:
            made = run(*(torch.randn(64, 64, requires_grad=True) for _ in range(2)))
            saved = session.stats().live_bytes
            del made
        return gradients(run, contextlib.nullcontext()), saved

    expected, all_of_it = trained(None)
    found, saved = trained({OPTION: 0.0})
    assert equal(found, expected)
    assert saved < 0.5 * all_of_it


WAYS = ("configuration", "option", "region")


@pytest.mark.usefixtures("by_operators")
@pytest.mark.parametrize("budget", [0.5, 0.0])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_gradients_are_those_without_it(block: Block, way: str, budget: float) -> None:
    expected = gradients(torch.compile(block, backend="dtr_alloc"), contextlib.nullcontext())
    around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    options: Options | None = None
    if way == "configuration":
        around = functorch.patch({OPTION: budget})
    elif way == "option":
        options = {OPTION: budget}
    else:
        region = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
        if region is None:
            pytest.skip("this torch has no such regions")
        plain, block = block, lambda x, w: region(budget)(plain)(x, w)
    run = torch.compile(block, backend="dtr_alloc", options=options)
    assert equal(gradients(run, around), expected)


def random_block(seed: int) -> tuple[Block, Options]:
    dice = torch.Generator().manual_seed(seed)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=dice))

    steps = [OPERATIONS[draw(len(OPERATIONS))] for _ in range(2 + draw(8))]

    def block(x: Tensor, w: Tensor) -> Tensor:
        for step in steps:
            x = step(x, w).tanh() + w * 0
        return x

    return block, {OPTION: draw(10) / 10}


def by_both_ways(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients without a budget, and with torch's: the same in a scope of ours that evicts."""
    block, options = random_block(seed)
    without = gradients(torch.compile(block, backend="dtr_alloc"), contextlib.nullcontext())
    run = torch.compile(block, backend="dtr_alloc", options=options)
    found = gradients(run, contextlib.nullcontext())
    with scope(None, evict_always=True) as session:
        assert equal(gradients(run, contextlib.nullcontext()), found)
        assert session.stats().evictions > 0
    return without, found


@pytest.mark.usefixtures("by_operators")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_gradients_of_a_random_block(seed: int) -> None:
    assert equal(*by_both_ways(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_gradients_of_a_random_block_by_inductor(seed: int) -> None:
    """At another cut Inductor may differ from itself (inductor_softmax_of_transposed.sh)."""
    by_both_ways(seed)


@pytest.mark.slow  # Inductor compiles for a minute. Above, the same graphs are cut without it.
@pytest.mark.parametrize("budget", [0.5, 0.0])
def test_inductors_masks_are_drawn_once_and_not_saved(budget: float) -> None:
    def trained(options: Options | None) -> tuple[list[Tensor], int]:
        torch.compiler.reset()
        torch.manual_seed(0)
        block = TransformerBlock(64, 2, 0.1)
        run = torch.compile(block, backend="dtr_alloc", options=options)
        x = torch.randn(2, 64, 64)
        with dtr_alloc.measure() as session:
            made = run(x)
            saved = session.stats().live_bytes
            made.square().mean().backward()
        return [made, *(p.grad for p in block.parameters() if p.grad is not None)], saved

    expected, all_of_it = trained(None)
    found, saved = trained({OPTION: budget})
    assert equal(found, expected)
    assert saved < 0.7 * all_of_it


def test_our_budget_holds_over_blocks_that_have_torchs() -> None:
    options: Options = {OPTION: 0.5}
    run = torch.compile(BLOCKS["perceptron"], backend="dtr_alloc", options=options)

    def training() -> Iterator[Tensor]:
        weights = [torch.randn(64, 64).div(8).requires_grad_() for _ in range(6)]
        x = torch.randn(256, 64)
        for weight in weights:
            x = run(x, weight)
        yield x
        yield from torch.autograd.grad(x.square().mean(), weights)

    assert_exact_within(0.6, training)


def test_what_it_cannot_take_is_refused() -> None:
    graph = torch.fx.symbolic_trace(nn.Identity())
    for share in (-0.1, 1.5, "half", float("nan")):
        with pytest.raises(ValueError, match=f"{OPTION} is {share!r}: it must be a number from 0"):
            backend(graph, [torch.ones(1)], options={OPTION: share})
    with functorch.patch({OPTION: 2.0}), pytest.raises(ValueError, match=f"{OPTION} is 2.0"):
        backend(graph, [torch.ones(1)])
    with pytest.raises(ValueError, match=r"has no options \['activation_budget'\]: it has"):
        backend(graph, [torch.ones(1)], options={"activation_budget": 0.5})


@pytest.mark.usefixtures("by_operators")
def test_the_programs_own_way_to_cut_graphs_stays() -> None:
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Own(CustomPartitionerFn):
        calls = 0

        def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
            Own.calls += 1
            return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

        def uuid(self) -> str:
            return "own"

    options: Options = {"custom_partitioner_fn": Own(), OPTION: 0.5}
    run = torch.compile(BLOCKS["dropout"], backend="dtr_alloc", options=options)
    found = gradients(run, contextlib.nullcontext())
    assert Own.calls > 1  # Once more, since it had a draw repeated.
    plain = torch.compile(BLOCKS["dropout"], backend="dtr_alloc")
    assert equal(found, gradients(plain, contextlib.nullcontext()))


@pytest.mark.usefixtures("by_operators")
@pytest.mark.parametrize(
    ("given", "tried"),
    [({}, True), ({OPTION: 0.9}, False), ({OPTION: 1.0}, False), (None, False)],
)
def test_a_plan_tries_it_where_the_program_does_not(given: Options | None, tried: bool) -> None:
    block = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
    run = block if given is None else torch.compile(block, backend="dtr_alloc", options=given)

    def step() -> None:
        block.zero_grad()
        run(torch.ones(256, 64)).sum().backward()

    for context in (contextlib.nullcontext(), dtr_alloc.measure()):
        with context:
            step()  # Each compiles; for the plan it is compiled anew.
    with functorch.patch({OPTION: 0.9}):
        assert dtr_alloc.plan(lambda: step, ["90%"], steps=2, rounds=1).saving_less is None
    made = dtr_alloc.plan(lambda: step, ["90%"], steps=2, rounds=1)
    assert made.activation_memory_budget is None
    assert (made.saving_less is not None) == tried
    if made.saving_less is not None:
        assert made.saving_less.activation_memory_budget == 0.5
        assert made.saving_less.measured_peak_bytes < made.measured_peak_bytes
        assert made.too_noisy == made.saving_less.too_noisy
    assert compiled_code.tried_share is None


@pytest.mark.usefixtures("by_operators")
def test_a_plan_goes_on_without_a_trial_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    run = torch.compile(nn.Linear(64, 64), backend="dtr_alloc")

    def step() -> None:
        if compiled_code.tried_share is not None:
            raise torch.OutOfMemoryError("no memory")
        run(torch.ones(256, 64)).sum().backward()

    with pytest.warns(UserWarning, match=r"activation_memory_budget=0.5: no memory"):
        made = dtr_alloc.plan(lambda: step, ["90%"], steps=2, rounds=1)
    assert (made.saving_less, compiled_code.tried_share) == (None, None)


COMPILING = """
import torch
from torch import nn
block = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
run = torch.compile(block, backend="dtr_alloc")
optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
while True:
    run(torch.ones(256, 64)).sum().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("by_operators")
def test_a_plan_runs_a_script_with_less_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_code, "tried_share", None)
    script = tmp_path / "train.py"
    script.write_text(COMPILING)
    rows = {}
    for share in (None, 0.5):
        monkeypatch.setattr(compiled_code, "saves_all", False)
        options = {"steps": 2, "log": str(tmp_path / "log"), "within": None, "own_scope": False}
        row = profiling._train(str(script), [], {**options, "share": share})
        assert row is not None
        assert row["saves_all"] == (share is None)
        rows[share] = row["peak_bytes"]
        torch.compiler.reset()
    assert rows[0.5] < rows[None]


ASKED = """
import torch
import dtr_alloc
def summary(block):
    with dtr_alloc.rematerialize("64MiB") as session:
        block(torch.ones(64, 64)).sum().backward()
    return session.summary()
block = torch.nn.Linear(64, 64)
words = "asked for, and has compiled nothing"
assert words not in summary(block)
compiled = torch.compile(block, backend="dtr_alloc")
with torch.compiler.set_stance("force_eager"):
    told = summary(compiled)
assert words in told and "torch.compile(module)" in told
assert words not in summary(compiled)
assert words not in summary(block)
print("done")
"""


def test_the_summary_tells_where_the_backend_compiled_nothing() -> None:
    assert printed(ASKED) == "done\n"


def test_the_example_of_the_page_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs/ecosystem.md"
    (example,) = (one.text for one in fences(page) if 'backend="dtr_alloc"' in one.text)
    monkeypatch.setattr(compiled_code, "backend_has_compiled", False)
    exec(example, {})
    assert compiled_code.backend_has_compiled
