"""A session that is closed without the end of a `with`, and the session that is open."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import _core
from tests.support.own_process import forked, printed
from tests.support.threads import in_threads


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    if session := dtr_alloc.current_session():
        session.close()


def begun(budget: str = "8MiB") -> dtr_alloc.Session:
    return dtr_alloc.rematerialize(budget).__enter__()


def test_closing_makes_what_the_program_holds_ordinary() -> None:
    session = begun()
    x = torch.ones(1 << 16).exp()
    assert dtr_alloc.evict(x)
    session.close()
    assert not dtr_alloc.is_evicted(x)
    assert float(x[0]) == float(torch.ones(1).exp())
    assert not _core.records_this_thread()
    with dtr_alloc.rematerialize("1MiB"):
        pass


def test_a_second_close_and_the_end_of_the_with_are_nothing() -> None:
    with dtr_alloc.rematerialize("8MiB") as session:
        session.close()
        session.close()
        with dtr_alloc.rematerialize("8MiB") as other:
            session.close()
            assert dtr_alloc.current_session() is other
    session.close()


def test_a_cell_that_opens_a_scope_runs_twice() -> None:
    cell = """
if session := dtr_alloc.current_session():
    session.close()
session = dtr_alloc.rematerialize(budget).__enter__()
"""
    names = {"dtr_alloc": dtr_alloc, "budget": "4MiB"}
    exec(cell, names)
    exec(cell, names | {"budget": "8MiB"})
    session = dtr_alloc.current_session()
    assert session is not None
    assert session.stats().budget_bytes == 8 << 20


def test_another_thread_does_not_close() -> None:
    session = begun()
    with pytest.raises(RuntimeError, match="in the thread that opened it"):
        in_threads(session.close, join=False)
    with pytest.raises(RuntimeError, match="in the thread that opened it"):
        in_threads(session.close)
    assert dtr_alloc.current_session() is session


@torch.library.custom_op("dtr_closing::closes", mutates_args=())
def closes(x: Tensor) -> Tensor:
    session = dtr_alloc.current_session()
    assert session is not None
    with pytest.raises(RuntimeError, match="inside an operator or a backward pass"):
        session.close()
    return x * 2


def test_an_operator_does_not_close() -> None:
    session = begun()
    assert float(closes(torch.ones(1 << 16))[0]) == 2
    operators = session.stats().operators
    session.close()
    assert session.stats().operators == operators


def test_an_operator_does_not_leave_the_scope_it_runs_in() -> None:
    program = """
import torch, dtr_alloc
scope = dtr_alloc.rematerialize("64MiB")
@torch.library.custom_op("closing::leaves", mutates_args=())
def leaves(x: torch.Tensor) -> torch.Tensor:
    try:
        scope.__exit__(None, None, None)
    except RuntimeError as error:
        print(error)
    return x * 2
with scope:
    print(float(leaves(torch.ones(1 << 16))[0]))
"""
    said, made = printed(program).splitlines()
    assert said.startswith("this scope is left inside an operator")
    assert made == "2.0"


def test_a_backward_pass_does_not_close() -> None:
    session = begun()
    layer = nn.Linear(64, 64)
    told = []

    def hook(_: Tensor) -> None:
        with pytest.raises(RuntimeError, match="inside an operator or a backward pass") as caught:
            session.close()
        told.append(caught)

    made = layer(torch.ones(64, 64))
    made.register_hook(hook)
    made.sum().backward()
    assert len(told) == 1
    session.close()
    assert not _core.records_this_thread()


def test_a_forked_child_closes_nothing() -> None:
    session = begun()

    def child() -> str:
        session.close()
        return repr(session)

    assert forked(child).endswith("closed>")
    assert dtr_alloc.current_session() is session


def test_what_is_warned_of_is_told_at_the_line_that_closes() -> None:
    session = begun("1MiB")
    kept = [torch.full((1 << 16,), float(n)).exp() for n in range(8)]
    with pytest.warns(UserWarning, match="do not fit its budget together") as told:
        session.close()
    assert told[0].filename == __file__
    assert len(kept) == 8


def test_the_current_session_is_known_where_nobody_keeps_it() -> None:
    assert dtr_alloc.current_session() is None

    @dtr_alloc.rematerialize("4MiB")
    def work() -> dtr_alloc.Session | None:
        return dtr_alloc.current_session()

    session = work()
    assert session is not None
    assert session.stats().budget_bytes == 4 << 20
    with dtr_alloc.measure():
        session = dtr_alloc.current_session()
    assert session is not None
    assert session.stats().budget_bytes is None
    assert dtr_alloc.current_session() is None


def test_a_session_shows_its_budget_its_peak_and_whether_it_is_open() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        torch.ones(1 << 18)
        assert repr(session) == "<dtr_alloc.Session: budget 4 MiB, peak 1 MiB, open>"
    assert repr(session) == "<dtr_alloc.Session: budget 4 MiB, peak 1 MiB, closed>"
    with dtr_alloc.measure() as session:
        assert repr(session) == "<dtr_alloc.Session: no budget, peak 0 B, open>"


def test_a_notebook_shows_the_summary_as_a_table() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.ones(1000)
        x.numpy()
        html = session._repr_html_()
    assert html.startswith("<p>&lt;dtr_alloc.Session: budget 4 MiB")
    assert "<tr><td>peak</td><td>4 KiB</td><td>budget 4 MiB</td></tr>" in html
    assert html.count("<tr>") == len(session.summary().splitlines())
