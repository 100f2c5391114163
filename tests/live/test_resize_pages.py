"""A smaller budget holds in pages too: small tensors that lie scattered keep few."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dtr_alloc

MIB = 1 << 20


def test_small_tensors_that_lie_scattered_keep_no_more_pages_than_a_smaller_budget_has() -> None:
    with dtr_alloc.rematerialize("300MiB") as session:  # Its pages have 2 MiB.
        held = [torch.ones(1 << 14) + n for n in range(1_200)]  # 75 MiB.
        session.release()
        for n in (7 * n % 1_200 for n in range(1_200)):
            assert held[n][0] == 1 + n
        assert session._core.pool_stats().committed > 64 * MIB
        session.resize("30MiB")
        assert session._core.pool_stats().committed <= 30 * MIB
        assert session.stats().evicted_bytes == 0  # Not for want of memory.
        session.resize("300MiB")
        assert [float(one[-1]) for one in held] == [1.0 + n for n in range(1_200)]
        session.check()


def test_a_small_tensor_alone_on_its_page_goes_with_it() -> None:
    with dtr_alloc.rematerialize("300MiB") as session:
        made = [torch.ones(1 << 14) + n for n in range(2_400)]
        held = made[::96]  # One on every third page.
        del made
        session.resize("10MiB")
        assert session._core.pool_stats().committed <= 10 * MIB
        assert session.stats().evictions == 20  # Of 25.
        session.resize("300MiB")
        assert [float(one[-1]) for one in held] == [1.0 + 96 * n for n in range(25)]


@pytest.mark.parametrize(("scope", "mib"), [("64MiB", 1), ("300MiB", 20)])
def test_no_large_tensor_goes_for_the_free_end_of_a_page(scope: str, mib: int) -> None:
    with dtr_alloc.rematerialize(scope) as session:
        held = [torch.ones(mib << 18) + n for n in range(10)]
        live = session.stats().live_bytes
        session.resize(live // 10 * 8)
        assert session.stats().evictions == 2
        assert session._core.pool_stats().committed > live // 10 * 8
        session.resize(scope)
        assert float(held[0][0]) == 1


def test_a_tensor_that_stays_on_each_page_does_not_cost_all_others() -> None:
    with dtr_alloc.rematerialize("300MiB") as session:
        held = [torch.ones(1 << 14) + n for n in range(1_200)]
        for one in held[::16]:  # Two on each page.
            dtr_alloc.pin(one)
        session.resize("60MiB")
        assert session._core.pool_stats().committed > 70 * MIB
        assert session.stats().live_bytes > 55 * MIB
        session.resize("300MiB")


@given(
    kib=st.lists(st.integers(1, 1024), min_size=20, max_size=300),
    share=st.floats(0.1, 0.9),
    pinned=st.sets(st.integers(0, 299), max_size=3),
)
def test_a_smaller_budget_holds_in_pages_but_for_those_with_something_pinned(
    kib: list[int], share: float, pinned: set[int]
) -> None:
    page = 2 * MIB
    with dtr_alloc.rematerialize("300MiB") as session:
        held = [torch.ones(size << 8) + n for n, size in enumerate(kib)]
        stay = [held[n] for n in pinned if n < len(held)]
        for one in stay:
            dtr_alloc.pin(one)
        budget = max(int(share * session.stats().live_bytes), sum(one.nbytes for one in stay))
        session.resize(budget + 2**16)
        numbers = {
            number
            for one in stay
            for number in range(
                one.data_ptr() // page, (one.data_ptr() + one.nbytes - 1) // page + 1
            )
        }
        pages = -(-session._core.pool_stats().committed // page)
        assert pages <= max(-(-(budget + 2**16) // page), len(numbers))
        session.check()
        session.resize("300MiB")
        assert [float(one[-1]) for one in held] == [1.0 + n for n in range(len(held))]
