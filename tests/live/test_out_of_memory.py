"""What our OutOfMemoryError tells a program: the least budget, the one to try, and the operator."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dtr_alloc
from dtr_alloc.runtime.scope import advice
from tests.support.exactness import scope
from tests.support.own_process import own_process
from tests.support.threads import in_threads

KIB, MIB = 1 << 10, 1 << 20
Told = tuple[int | None, int | None, str | None]


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_before", {})


def told(error: Any) -> Told:
    return error.needed, error.suggested_budget, error.operator


def refused(run: Callable[[], object]) -> torch.OutOfMemoryError:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run()
    assert len(caught.value.args) == 1
    return caught.value


def test_a_refused_request_tells_inside_the_scope_and_after_it() -> None:
    with scope("1MiB"):
        error = refused(lambda: torch.ones(MIB // 2))
        assert told(error) == (2 * MIB, 2 * MIB, "aten::ones")
    assert told(error) == (2 * MIB, 2 * MIB, "aten::ones")


def test_a_backward_pass_tells() -> None:
    weight = nn.Parameter(torch.ones(MIB))
    with scope("3MiB"):
        loss = torch.dot(weight, weight)
        error: Any = refused(lambda: torch.autograd.backward(loss))
    assert error.needed > 3 * MIB
    assert error.operator == "aten::mul.Tensor"


def test_a_thread_that_joined_tells() -> None:
    with scope("1MiB"):
        error = refused(lambda: in_threads(lambda: torch.ones(MIB)))
    assert told(error) == (4 * MIB, 4 * MIB, "aten::ones")


def test_a_recomputation_tells() -> None:
    with scope("2304KiB"):
        x = torch.ones(MIB // 4).exp()
        assert dtr_alloc.evict(x)
        kept = torch.zeros(MIB // 8)
        kept.numpy()
        error: Any = refused(x.sum)
        del x, kept
    assert error.needed == error.suggested_budget > 2304 * KIB
    assert error.operator is not None


def test_a_budget_that_cannot_shrink_tells_how_far_it_can() -> None:
    with scope("4MiB") as session:
        kept = torch.zeros(MIB // 2)
        kept.numpy()
        error = refused(lambda: session.resize("1MiB"))
        assert told(error) == (2 * MIB, 2 * MIB, None)
        session.resize(error.needed)  # type: ignore[attr-defined]


# As texts come to be: of the CUDA pool that evicts nothing; of the one that does; as another
# process gets one; and what others say.
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "dtr_alloc is out of memory. Raise the budget to at least 12582912 bytes, or let",
            (12 * MIB, 12 * MIB, None),
        ),
        (
            "dtr_alloc is out of memory. Raise the budget to at least 1.50 KiB; by a simulation of "
            "3 optimizer steps seen so far and of this one until here, 2.00 KiB do; a later "
            "request may need more\n  operator: aten::add.out\n  asked: 1 KiB",
            (3 * 512, 2 * KIB, "aten::add.out"),
        ),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", (None, None, None)),
        (
            "dtr_alloc is out of memory. Ask for less, as with a smaller batch; no budget helps",
            (None, None, None),
        ),
    ],
)
def test_texts_are_read(text: str, wanted: Told) -> None:
    error = torch.OutOfMemoryError(text)
    assert told(pickle.loads(pickle.dumps(error))) == wanted


def test_torch_has_the_attributes_as_soon_as_we_are_imported() -> None:
    program = "import torch, dtr_alloc; print(torch.OutOfMemoryError('no').suggested_budget)"
    assert own_process(program).stdout == "None\n"


@pytest.mark.parametrize("size", [2**50, 2**62, 2**63 - 1025, 2**63 - 1])
def test_what_no_budget_serves_says_so(size: int) -> None:
    with scope("8MiB"):
        kept = torch.ones(MIB).exp()
        error = refused(lambda: torch.empty(size, dtype=torch.uint8))
        assert "no budget helps" in str(error)
        assert told(error)[:2] == (None, None)
        assert dtr_alloc.evict(kept)  # Nothing was evicted in vain.


def test_what_is_told_is_what_the_text_says() -> None:
    with scope("1MiB"):
        error: Any = refused(lambda: torch.ones(300_001))
    found = re.search(r"at least ([\d.]+) MiB", str(error))
    assert found is not None
    assert error.needed == int(float(found[1]) * MIB)
    with scope(error.needed):
        torch.ones(300_001)
