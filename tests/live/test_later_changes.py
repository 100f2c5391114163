"""What the program changes after an operator ran reaches no recipe of it: lists that a script goes
on to change, the types of autocast, memory written through another kind of tensor."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import assert_exact, comes_back, exact, scope
from tests.support.own_process import printed

SCRIPTS = torch.jit.CompilationUnit("""
def two_of_a_shape(rows: int):
    shape = [rows, 64]
    first = torch.full(shape, 1.5)
    shape[0] = 2 * rows
    return first, torch.full(shape, 2.5)

def rolled_twice(x: Tensor):
    shifts = [1]
    first = torch.roll(x, shifts, [0])
    shifts[0] = 2
    return first, torch.roll(x, shifts, [0])
""")


@exact
def test_a_list_that_a_script_changes_is_for_a_recipe_what_it_was() -> Iterator[Tensor]:
    yield from SCRIPTS.two_of_a_shape(16)
    with torch.inference_mode():
        yield from SCRIPTS.rolled_twice(torch.randn(1000))


def half_bilinear() -> Iterator[Tensor]:
    layer = torch.nn.Bilinear(32, 32, 64)
    with torch.autocast("cpu", dtype=torch.float16):
        made = layer(torch.randn(64, 32), torch.randn(64, 32))
        inverse = torch.linalg.pinv(torch.randn(64, 64))
    yield made.detach()
    yield inverse
    made.float().square().sum().backward()
    assert layer.weight.grad is not None
    yield layer.weight.grad


def test_autocast_reaches_into_some_of_torchs_operators_and_their_replays() -> None:
    def program() -> list[Tensor]:
        made = [*half_bilinear()]
        for tensor in made:
            dtr_alloc.evict(tensor)
        return made

    assert_exact(program)
    assert torch.is_autocast_cache_enabled()


@exact
def test_running_statistics_that_a_batch_norm_writes_beside_given_results() -> Iterator[Tensor]:
    x = torch.randn(8, 256, 4, 4)
    mean, variance = torch.zeros(256).add(0.5), torch.ones(256).add(0.25)
    results = torch.empty(8, 256, 4, 4), torch.empty(256), torch.empty(256)
    torch.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5, out=results)
    yield from (*results, mean, variance)


class Passing(torch.Tensor):
    """Does what a tensor does, in Python."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore
        return super().__torch_dispatch__(func, types, args, kwargs or {})


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_a_write_through_a_nested_tensor_or_a_subclass() -> None:
    def nested() -> list[Tensor]:
        whole = torch.nested.nested_tensor([torch.arange(1000.0), torch.arange(500.0)])
        made = whole.unbind()[0].expand(4, 1000).cos()
        whole.mul_(2)
        return [made]

    def subclass() -> list[Tensor]:
        x = torch.arange(1000.0)
        made = x.expand(4, 1000).cos()
        x.as_subclass(Passing).add_(1)
        return [made, x]

    for program in nested, subclass:
        assert_exact(program, evictions=False)
        want = program()[0]
        with scope(None):
            made = program()[0]
            dtr_alloc.evict(made)
            assert torch.equal(made, want)


def in_a_thread(x: Tensor) -> None:
    """One that has not joined the scope."""
    thread = threading.Thread(target=lambda: x.mul_(2))
    thread.start()
    thread.join()


def as_indices(x: Tensor) -> None:
    torch.sparse_coo_tensor(torch.arange(1000)[None], x, (1000,))


@pytest.mark.skipif(not _core.sees_raw_access, reason="torch before 2.13 tells of no access")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("freeze", [dtr_alloc.pin, as_indices])
def test_a_write_unseen_by_operators_of_what_has_become_constant(
    freeze: Callable[[Tensor], object],
) -> None:
    base = torch.arange(1000.0)
    want = (base * 3).expand(4, 1000).cos()
    with scope(None):
        x = base * 3
        made = x.expand(4, 1000).cos()
        freeze(x)
        in_a_thread(x)
        dtr_alloc.evict(made)
        assert torch.equal(made, want)
        assert torch.equal(x, base * 6)


SHED = '''
import threading, torch, dtr_alloc
chain = torch.jit.CompilationUnit("""
def chain(n: int):
    out = []
    for i in range(n):
        out.append(torch.sin(torch.arange(1000 + i)))
    out.append(torch.cos(torch.arange(1000 + n)))
    return out
""").chain
def member():
    with dtr_alloc.join_scope():
        pass
with torch.inference_mode():
    want = chain(15)
    with dtr_alloc.rematerialize("64MiB", debug=True) as session:
        thread = threading.Thread(target=member)
        thread.start()
        thread.join()
        got = chain(15)
        session.check()
        print(session.stats().records >= 0, all(map(torch.equal, got, want)))
'''


def test_debug_mode_repeats_no_operator_whose_recipe_has_just_gone() -> None:
    assert printed(SHED) == "True True\n"


def test_a_list_of_arguments_comes_back_for_an_eager_call() -> None:
    with scope(None):
        assert comes_back(torch.ones(16, 64).roll([1, 2], [0, 1]))
