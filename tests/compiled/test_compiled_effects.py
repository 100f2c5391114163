"""What compiled code does beside its results (`backend="dtr_alloc"`): it keeps tensors, writes over
what it was given, has effects. No recipe may rest on that."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.runtime.adapters import compile_backend
from tests.compiled.test_compiled_regions import Function, compiled, of_torch
from tests.support.exactness import assert_exact, bits, same, scope

pytestmark = of_torch


@pytest.mark.slow
def test_a_frozen_weight_that_comes_back() -> None:
    layer = nn.Linear(128, 128).eval()

    def program() -> Iterator[Tensor]:
        torch._dynamo.reset()
        run = compiled(lambda x: (layer(x), layer.weight, layer.weight.t()))
        with torch.no_grad():
            for _ in range(3):
                for one in run(torch.randn(128, 128).exp()):
                    yield one.exp()

    with torch._inductor.config.patch(freezing=True):
        assert_exact(program)


@pytest.mark.parametrize("folded", [False, True])
def test_what_used_a_frozen_weight_keeps_its_value_when_the_weight_changes(folded: bool) -> None:
    layer = nn.Linear(128, 128).eval()

    def block(x: Tensor) -> Tensor:
        return x * (layer.weight * 2 if folded else layer.weight)

    with torch._inductor.config.patch(freezing=True), torch.no_grad(), scope(None) as session:
        run, x = compiled(block), torch.randn(128, 128)
        expected = block(x).clone()
        y = run(x)
        layer.weight.mul_(2)
        dtr_alloc.evict(y)
        assert same(bits(y), bits(expected))
        session.release()
        run(x)
        assert "is frozen" in session.summary()


def test_an_operator_inside_a_graph_that_keeps_an_argument_of_a_replay_cannot_read_it() -> None:
    seen: list[Tensor] = []

    @torch.library.custom_op("dtr_alloc_test::keeps", mutates_args=())
    def keeps(x: Tensor) -> Tensor:
        seen.append(x)
        return x.cos()

    keeps.register_fake(torch.empty_like)
    run = compiled(lambda x: keeps(x) * 2)
    with scope(None):
        x = torch.ones(1 << 14).exp()
        y = run(x)
        dtr_alloc.evict(y)
        y.sum()
        assert len(seen) == 2
        with pytest.raises(RuntimeError, match="an operator that remembers an argument must keep"):
            seen[1].sum()


def test_what_a_backward_graph_overwrites_is_nothing_that_a_recipe_reads() -> None:
    """A saved tensor that nobody else has is written over, and dropped, by the backward graph."""

    def program(run: Function) -> Tensor:
        torch.manual_seed(0)
        kept: list[Tensor] = []

        def pack(saved: Tensor) -> Tensor:
            if saved is not weight:
                kept.append(saved.repeat(4, 1))
            return saved

        x, weight = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            y = run(x, weight)
        y.sum().backward()
        for one in kept:
            dtr_alloc.evict(one)
        return torch.cat([one * 1 for one in kept])

    run = compiled(lambda x, weight: (x @ weight).sigmoid() * 2)
    expected = program(run)
    with dtr_alloc.rematerialize("64MiB"):
        assert torch.equal(program(run), expected)


def test_operators_with_effects_beside_their_results_are_not_run_again() -> None:
    effects = [
        call
        for call in torch.fx.node._side_effectful_functions
        if isinstance(call, torch._ops.OpOverload) and call.namespace == "streams"
    ]
    assert effects
    assert all(map(compile_backend._obstacle, effects))


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_that_compiled_code_makes_in_any_order_stay(threads: int) -> None:
    """Inductor adds by several threads where torch itself has one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    index = torch.zeros(1 << 16, dtype=torch.long)
    try:
        with dtr_alloc.rematerialize("64MiB"):
            run = compiled(lambda x, y: (x.sin().index_add(0, index, y), x.cos()))
            with torch.no_grad():
                summed, _ = run(torch.ones(1 << 14), torch.ones(1 << 16))
            assert dtr_alloc.evict(summed) == (threads == 1 and not torch.cuda.is_available())
    finally:
        torch.set_num_threads(before)
