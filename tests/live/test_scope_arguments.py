"""What a scope is opened with: bad input is refused, and a scope is used once."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

import dtr_alloc
from tests.support.exactness import chain
from tests.support.own_process import own_process, printed


@pytest.mark.parametrize(
    ("budget", "text"),
    [("8 apples", "is not a size"), (0, "0"), (-5, "-5"), (float("nan"), "nan"), (True, "True")],
)
def test_a_budget_that_is_no_size_is_refused(budget: object, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        dtr_alloc.rematerialize(budget).__enter__()  # type: ignore[arg-type]
    assert not dtr_alloc.is_evicted(torch.ones(1))


@pytest.mark.parametrize("budget", ["512GiB", "16TiB"])
def test_a_budget_beyond_this_machine_works_and_costs_no_memory(budget: str) -> None:
    with dtr_alloc.rematerialize(budget) as session:
        x = torch.ones(256, 64).exp()
        dtr_alloc.evict(x)
        assert float(x[0, 0]) == float(torch.ones(1).exp())
        assert session._core.pool_stats().committed <= 4 << 20
        session.check()


def test_a_budget_above_the_largest_names_both() -> None:
    text = '^budget "17TiB" is above the largest possible, 16 TiB$'
    with pytest.raises(ValueError, match=text):
        dtr_alloc.rematerialize("17TiB").__enter__()


def test_a_process_with_few_addresses_says_so() -> None:
    program = """
import resource, torch, dtr_alloc
resource.setrlimit(resource.RLIMIT_AS, (1 << 38, 1 << 38))
with dtr_alloc.rematerialize("1TiB"):
    pass
"""
    last = own_process(program).stderr.splitlines()[-1]
    assert "MemoryError: this process cannot reserve 2050 GiB of addresses for another pool" in last


@pytest.mark.parametrize("limited", [False, True])
def test_a_scope_gives_its_addresses_back_also_where_it_could_not_open(limited: bool) -> None:
    """What may be written counts against a limit on data; what was only reserved does not."""
    program = f"""
import contextlib, resource, torch, dtr_alloc
from pathlib import Path
def figure(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
def scope():
    with contextlib.suppress(MemoryError), dtr_alloc.rematerialize("64GiB"):
        torch.ones(1000)
        print("opened")
if not {limited}:
    scope()
else:
    resource.setrlimit(resource.RLIMIT_DATA, (figure("VmData") + (1 << 30),) * 2)
before = figure("VmSize")
for _ in range(3):
    scope()
assert figure("VmSize") - before < 64 << 30
"""
    assert ("opened" in printed(program)) != limited


def test_a_process_without_addresses_to_measure_pages_with_evicts_all_the_same() -> None:
    program = """
import resource, torch, dtr_alloc
torch.set_num_threads(1)
with dtr_alloc.rematerialize("8MiB", device="cpu") as session:
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
    held = [torch.ones(1 << 18) * n for n in range(16)]
    assert session.stats().evictions > 0
    print([float(one[0]) for one in held] == list(range(16)))
"""
    assert printed(program) == "True\n"


@pytest.mark.parametrize(
    ("option", "error", "text"),
    [
        ({"thrash_limit": float("nan")}, ValueError, "^thrash_limit is nan; it must be 0 or more$"),
        ({"thrash_limit": -1}, ValueError, "^thrash_limit is -1; it must be 0 or more$"),
        ({"thrash_limit": "a"}, TypeError, "^thrash_limit 'a' is not a number$"),
        ({"thrash_limit": None}, TypeError, "^thrash_limit None is not a number$"),
        ({"thrash_limit": True}, TypeError, "^thrash_limit True is not a number$"),
        (
            {"thrash_limit": 10**400},
            ValueError,
            "^thrash_limit is above the largest float: give a smaller number$",
        ),
        ({"heuristic": "magic"}, ValueError, "there are dtr, dtr_full, dtr_local, e_star, foresig"),
        ({"heuristic": "auto"}, ValueError, "heuristic 'auto' is not known; there are dtr, dtr_f"),
        (
            {"heuristic": "eqclass_stale"},
            ValueError,
            "heuristic 'eqclass_stale' is for simulations only, as megengine_publ",
        ),
        (
            {"heuristic": "megengine_published"},
            ValueError,
            "is for simulations only, .* a scope takes dtr, dtr_full, ",
        ),
        (
            {"heuristic": dtr_alloc.Heuristic("megengine")},
            ValueError,
            "neighbourhood 'megengine' is for simulations only; a ",
        ),
        ({"policy": "banish"}, TypeError, "unexpected keyword argument"),  # Of simulations.
        ({"leave_by": "swap"}, TypeError, "unexpected keyword argument"),
        ({"placement": "two_ended"}, TypeError, "unexpected keyword argument"),
    ],
)
def test_an_option_that_is_none_is_refused_by_a_scope_and_by_the_allocator(
    option: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        dtr_alloc.rematerialize("1MiB", **option).__enter__()
    with pytest.raises(error, match=text):
        dtr_alloc.allocator("1MiB", **option)


@pytest.mark.parametrize("limit", [0, float("inf"), np.float32(2.5)])
def test_no_thrash_limit_may_be_written_as_none_at_all(limit: float) -> None:
    with dtr_alloc.rematerialize("256KiB", thrash_limit=limit) as session:
        total = sum(float(x.sum()) for x in chain(16))
    assert total > 0
    assert session.stats().evictions > 0


@pytest.mark.parametrize("device", ["gpu", "", None, 0, "meta", torch.device("meta")])
def test_a_device_without_a_scope_is_refused(device: Any) -> None:
    for make in (dtr_alloc.measure, lambda device: dtr_alloc.rematerialize("1MiB", device=device)):
        with pytest.raises(ValueError, match='has no scope; only "cpu" has'):
            make(device=device).__enter__()


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_may_be_given_as_torch_gives_it(device: str | torch.device) -> None:
    with dtr_alloc.rematerialize("1MiB", device=device), pytest.raises(RuntimeError):
        dtr_alloc.measure(device=device).__enter__()


def test_an_unknown_clock_and_another_device_are_refused() -> None:
    with pytest.raises(ValueError, match="clock"):
        dtr_alloc.rematerialize("1MiB", clock="sun").__enter__()
    with pytest.raises(ValueError, match='only "cpu"'):
        dtr_alloc.rematerialize("1MiB", device="cuda").__enter__()


def test_nested_and_reentered_scopes_are_refused_and_the_outer_one_goes_on() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(256, 64).exp()
        with pytest.raises(RuntimeError, match="do not nest"):
            dtr_alloc.rematerialize("1MiB").__enter__()
        with pytest.raises(RuntimeError, match="do not nest"):
            dtr_alloc.measure().__enter__()
        assert dtr_alloc.evict(x)
        assert float(x[0, 0]) > 2
        session.check()
    with dtr_alloc.rematerialize("1MiB"):
        pass


@pytest.mark.parametrize("make", [dtr_alloc.measure, lambda: dtr_alloc.rematerialize("1MiB")])
def test_a_scope_is_used_once(make: Callable[[], Any]) -> None:
    scope = make()
    for _ in range(2):
        with ExitStack() as stack:
            stack.enter_context(make())
            with pytest.raises(RuntimeError, match="do not nest"):
                scope.__enter__()
    with scope, pytest.raises(RuntimeError, match="a scope is used once"):
        scope.__enter__()
    with pytest.raises(RuntimeError, match=r"call rematerialize\(\) or measure\(\) again"):
        scope.__enter__()
    with pytest.raises(RuntimeError, match="was not entered"):
        make().__exit__(None, None, None)


def test_a_scope_decorates_a_function_that_is_called_repeatedly() -> None:
    scope = dtr_alloc.rematerialize("1MiB")

    @scope
    def evicts(power: int) -> bool:
        """Whether."""
        return dtr_alloc.evict(torch.ones(256, 64).pow(power))

    assert [evicts(1), evicts(power=2)] == [True, True]
    assert (evicts.__name__, evicts.__doc__) == ("evicts", "Whether.")
    with scope:
        pass
    assert evicts(3)


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


async def both() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generator, coroutine, both])
def test_a_body_that_runs_after_its_call_is_not_decorated(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"^{function.__name__} is a generator or a coroutine"):
        dtr_alloc.rematerialize("1MiB")(function)
