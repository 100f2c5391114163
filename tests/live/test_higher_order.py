"""Higher-order operators run in every kind of scope, and what flows through them is eager's."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import (
    alike,
    assert_exact,
    assert_exact_within,
    exact,
    grad_of,
    run,
    scope,
)
from tests.support.own_process import printed

Step = Callable[[Tensor], Tensor]


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))


def cond(x: Tensor) -> Tensor:
    return Branch()(x)  # type: ignore[no-any-return]


def loop(x: Tensor) -> Tensor:
    start = torch.tensor(0), x
    return while_loop(lambda i, _: i < 5, lambda i, a: (i + 1, a.sin()), start)[1]  # type: ignore


def sums(x: Tensor) -> Tensor:
    made = scan(lambda carry, row: (carry + row.sin(), carry * 1.5), torch.zeros(64), x, dim=0)
    return made[1]  # type: ignore[no-any-return]


def rows(x: Tensor) -> Tensor:
    return map_rows(lambda a, *_: a.sin().cos(), x)  # type: ignore[no-any-return]


def prefix(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def attention(x: Tensor) -> Tensor:
    q = x.reshape(1, 2, 128, 16)
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + i - j)


def batched(x: Tensor) -> Tensor:
    return torch.vmap(cond)(x)


DIFFERENTIABLE = {
    "cond": cond,
    "scan": sums,
    "map": rows,
    "associative_scan": prefix,
    "vmap of cond": batched,
}
OTHERS = {"while_loop": loop, "flex_attention": attention}
ALL = DIFFERENTIABLE | OTHERS


def modes(step: Step) -> list[str]:
    """A scan fills what `empty` made row by row. Bytes that nobody wrote yet differ in a replay."""
    return ["recorded", "evict_always", *([] if step is sums else ["verify"])]


@pytest.fixture(autouse=True)
def _of_its_own() -> Iterator[None]:
    """Compiles anew, and lets torch warn that flex_attention is slow."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trained(step: Step) -> Callable[[], Iterator[Tensor]]:
    """A layer, the operator and another layer, forward and backward."""

    def program() -> Iterator[Tensor]:
        first, second = nn.Linear(64, 64), nn.Linear(64, 64)
        x = torch.randn(64, 64)
        shown = second(step(first(x).tanh()).reshape(64, 64)).exp()
        shown.square().mean().backward()
        yield shown
        yield from map(grad_of, (*first.parameters(), *second.parameters()))

    return program


@pytest.mark.parametrize("step", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_gradients_through_it_are_eagers(step: Step) -> None:
    assert_exact(trained(step), modes=modes(step))


@pytest.mark.parametrize("step", ALL.values(), ids=ALL)
def test_without_gradients_and_in_a_measurement_too(step: Step) -> None:
    def program() -> Iterator[Tensor]:
        with torch.no_grad():
            yield step(torch.randn(64, 64).exp()).exp()

    assert_exact(program, modes=modes(step))
    expected = run(program)
    with dtr_alloc.measure():
        assert alike(run(program), expected)


def test_under_a_budget_what_it_saved_for_backward_comes_back() -> None:
    def program() -> Iterator[Tensor]:
        weight = torch.randn(64, 64).requires_grad_()
        x = torch.randn(256, 64)
        for _ in range(24):
            x = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x @ weight,))
        x.sum().backward()  # type: ignore[no-untyped-call]
        yield x
        yield grad_of(weight)

    assert_exact_within(0.5, program)


@exact
def test_integer_matrices_with_another_type_of_result() -> Iterator[Tensor]:
    a = torch.randint(-8, 8, (64, 64), dtype=torch.int8)
    yield out_dtype(torch.ops.aten.mm.default, torch.int32, a, a).float().exp()


def test_a_mask_of_blocks() -> None:
    def program() -> Iterator[Tensor]:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu")
        yield mask.to_dense()

    assert_exact(program, evictions=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.export.export(Branch(), (torch.randn(64, 64),)).module(),
        lambda: torch.compile(Branch(), backend="eager"),
    ],
    ids=["exported", "compiled"],
)
def test_code_that_branches_made_before_the_scope_and_in_it(make: Callable[[], Step]) -> None:
    before = make()

    def program() -> Iterator[Tensor]:
        x = torch.randn(64, 64).exp()
        yield from (before(x), make()(x))

    assert_exact(program)


def test_an_operator_made_inside_the_scope() -> None:
    class Twice(torch._ops.HigherOrderOperator):
        def __init__(self) -> None:
            super().__init__("dtr_alloc_test_twice")  # type: ignore[no-untyped-call]

        def __call__(self, step: Step, x: Tensor) -> Tensor:
            return super().__call__(step, x)  # type: ignore

    with scope(None, evict_always=True):
        twice = Twice()

        @twice.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
        def dense(step: Step, x: Tensor) -> Tensor:
            return step(step(x))

        twice.py_autograd_impl(dense)
        x = torch.ones(512)
        assert torch.equal(twice(torch.sin, x), x.sin().sin())


def test_outside_of_scopes_nothing_is_left_switched_on() -> None:
    with dtr_alloc.measure():
        pass
    key = torch._C.DispatchKey(_core.dispatch_key)
    assert not torch._C._dispatch_tls_local_include_set().has(key)
    assert not any(key in operator.py_kernels for operator in torch._ops._higher_order_ops.values())


def test_opening_scopes_again_adds_nothing() -> None:
    keys = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    with dtr_alloc.measure():
        before = len(keys)
    with dtr_alloc.measure():
        assert len(keys) == before


@pytest.mark.parametrize(
    "opened",
    [
        "import dtr_alloc; scope = dtr_alloc.rematerialize(None); scope.__enter__()",
        "from types import SimpleNamespace as S\n"
        "from dtr_alloc.runtime.scope.current import CudaScope, Steps\n"
        "from dtr_alloc.runtime.scope.serving import Service\n"
        "Service(CudaScope(S(session=lambda: None), Steps()))",
    ],
    ids=["scope", "allocator"],
)
def test_modules_of_torch_that_are_imported_later(opened: str) -> None:
    script = (
        f"import torch\n{opened}\n"
        "from torch._higher_order_ops.scan import scan\n"
        "total, _ = scan(lambda c, a: (c + a, c * 1), torch.zeros(8), torch.ones(8, 8))\n"
        "print(int(total[0]))\n"
    )
    assert printed(script) == "8\n"
