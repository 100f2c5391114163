"""Memory that leaves by torch's table of C functions for DLPack, of which no method of a tensor
hears: called as dlpack.h says, and by tvm_ffi."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import _core
from tests.support.exactness import alike, bits, run, scope
from tests.support.exchange_table import TABLE, take, view
from tests.support.own_process import printed
from tests.support.threads import in_threads

pytestmark = pytest.mark.skipif(
    TABLE is None, reason="this torch has no __dlpack_c_exchange_api__: nothing to watch"
)

WAYS: dict[str, Callable[[Tensor], Any]] = {
    "view": view,
    "managed": lambda t: take(t.detach()).numpy(),
}


def by_tvm_ffi(tensor: Tensor) -> Any:
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="needs apache-tvm-ffi")
    return np.from_dlpack(tvm_ffi.from_dlpack(tensor.detach()))


def test_the_table_that_torch_has_can_be_written() -> None:
    assert _core.watches_exchange_table, (
        f"torch {torch.__version__} has its table where it cannot be written: "
        "see bind_exchange_table.cpp"
    )


@pytest.fixture(params=[*WAYS, "tvm_ffi"])
def way(request: pytest.FixtureRequest) -> Callable[[Tensor], Any]:
    return WAYS.get(request.param, by_tvm_ffi)


@pytest.mark.parametrize("what", ["input", "parameter", "activation"])
def test_recipes_keep_what_they_read_before_the_memory_left(
    way: Callable[[Tensor], Any], what: str
) -> None:
    def program() -> list[Tensor]:
        layer, x = nn.Linear(64, 64), torch.randn(512, 64)
        h = (x * 2).sin()
        loss = sum((layer(h * k).sin()).square().mean() for k in range(1, 9))
        assert isinstance(loss, Tensor)
        way({"input": x, "parameter": layer.weight, "activation": h}[what].detach())[:] = -7
        if what == "input":
            loss.backward()  # type: ignore[no-untyped-call]
        return [loss, h, x, layer.weight, layer(h)] + ([layer.weight.grad] * (what == "input"))

    expected = run(program)
    for instruments in ({}, {"evict_always": True}):
        with scope(None, **instruments) as session:
            torch.manual_seed(0)
            shown = program()
            session.release()
            assert alike(map(bits, shown), expected)


def test_the_line_that_took_the_memory_is_named_once(way: Callable[[Tensor], Any]) -> None:
    x = torch.ones(40_000)
    with dtr_alloc.rematerialize("64MiB") as session:
        made = [(x + i).sin() for i in range(4)]
        for _ in range(3):
            way(x)
        text = session.summary()
        assert text.count("__dlpack_c_exchange_api__ at ") == 1, text
        assert re.search(r"__dlpack_c_exchange_api__ at \S+exchange_table.py:\d+ ", text), text
        assert "156.25 KiB copied" in text
        del made


def test_a_thread_that_did_not_join_gets_it_as_by_a_method(way: Callable[[Tensor], Any]) -> None:
    expected = torch.arange(100_000.0).sin().numpy()
    found = []
    with dtr_alloc.rematerialize("64MiB"):
        x = torch.arange(100_000.0).sin()
        assert dtr_alloc.evict(x)
        in_threads(lambda: found.append(way(x).copy()), join=False)
        assert not dtr_alloc.evict(x)
    assert np.array_equal(found[0], expected)


def test_after_the_scope_tensors_are_ordinary_ones(way: Callable[[Tensor], Any]) -> None:
    with dtr_alloc.rematerialize("64MiB"):
        x = torch.arange(100_000.0).sin()
        assert dtr_alloc.evict(x)
    way(x)[:] = 5
    assert bool((x == 5).all())


def test_an_error_of_ours_is_raised_by_the_call(way: Callable[[Tensor], Any]) -> None:
    with dtr_alloc.rematerialize("2MiB"):
        x = torch.ones(200_000).exp()
        assert dtr_alloc.evict(x)
        fixed = [torch.ones(200_000).numpy() for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError, match="budget"):
            way(x)
        del fixed
        assert way(x)[0] == pytest.approx(np.e)


def test_what_is_no_tensor_is_refused_by_torch() -> None:
    texts = []
    for opened in (contextlib.nullcontext(), dtr_alloc.rematerialize("64MiB")):
        with opened, pytest.raises(Exception) as refused:  # noqa: PT011 (torch chooses which)
            view(3)  # type: ignore[arg-type]
        texts.append(str(refused.value))
    assert texts[0] == texts[1]


def test_a_library_that_knew_the_table_before_our_import_is_seen() -> None:
    program = """
import torch, numpy as np, sys
sys.path.insert(0, sys.argv[1])
from tests.support.exchange_table import TABLE, take, view
x = torch.ones(1000)
assert view(x)[0] == 1 == take(x)[0]
import dtr_alloc
assert view(x)[0] == 1 == take(x)[0]  # Before the first scope.
with dtr_alloc.rematerialize("64MiB"):
    made = [x + i for i in range(3)]  # More than a copy of what they read.
    view(x)[:] = 9
    assert dtr_alloc.evict(made[2])
    assert take(made[2])[0] == 3
    assert not dtr_alloc.evict(made[2])
print("seen")
"""
    root = __file__.rsplit("/tests/", 1)[0]
    assert printed(program, root) == "seen\n"
