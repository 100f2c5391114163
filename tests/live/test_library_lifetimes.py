"""Operators of other libraries that are undefined, defined anew, or hide that they draw, and the
`TorchFunctionMode`s of their callers and their own."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import dtr_alloc
from tests.support.exactness import bits, same, scope


def defined(factor: float) -> Any:
    """`dtr_lives::scaled`, in place of the one before."""

    @torch.library.custom_op("dtr_lives::scaled", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    return scaled


@torch.library.custom_op("dtr_lives::hidden_noise", mutates_args=())
def hidden_noise(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return x + torch.rand_like(x)


def wide() -> Tensor:
    return torch.arange(1 << 14, dtype=torch.float32)


def test_calls_between_which_nothing_was_drawn_share_a_state() -> None:
    with scope(None):
        first, second = hidden_noise(wide()), hidden_noise(wide())
        torch.rand(5)
        third = hidden_noise(wide())
        kept = [made.clone() for made in (first, second, third)]
        for made, expected in zip((third, first, second), (kept[2], kept[0], kept[1]), strict=True):
            assert dtr_alloc.evict(made)
            assert torch.equal(made, expected)


def test_an_operator_that_is_defined_anew_is_not_run_in_place_of_the_old_one() -> None:
    x = wide()
    with scope(None):
        old = defined(2.0)(x)
        assert dtr_alloc.evict(old)
        new = defined(3.0)(x)
        gc.collect()
        assert torch.equal(new, x * 3)
        with pytest.raises(RuntimeError, match="lives::scaled was undefined since it made this"):
            old.sum()
        assert dtr_alloc.evict(new)
        assert torch.equal(new, x * 3)
        del old


def test_an_operator_that_is_gone_says_so() -> None:
    library: Any = torch.library.Library("dtr_lives_once", "DEF")  # type: ignore[no-untyped-call]
    library.define("twice(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("twice", lambda x: x * 2, "CPU")
    x = wide()
    with scope(None):
        made = torch.ops.dtr_lives_once.twice(x)
        assert dtr_alloc.evict(made)
        library._destroy()
        with pytest.raises(RuntimeError, match="define an operator once"):
            made.sum()
        del made


def test_what_an_operator_keeps_of_its_second_run_has_no_memory_of_the_value() -> None:
    runs, kept = 0, []

    @torch.library.custom_op("dtr_lives::remembered", mutates_args=())
    def remembered(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        made = x * 2
        if runs > 1:  # The result of a call that keeps it is a constant.
            kept.append(made)
        return made

    with scope(None):
        made = remembered(wide())
        assert dtr_alloc.evict(made)
        assert torch.equal(made, wide() * 2)
        assert kept[0].data_ptr() != made.data_ptr()


class Doubles(TorchFunctionMode):
    """Whoever asks for a cosine gets twice as much."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is torch.cos else made


@torch.library.custom_op("dtr_alloc_test::cosine", mutates_args=())
def cosine(x: Tensor) -> Tensor:
    return torch.cos(x)


@torch.library.custom_op("dtr_alloc_test::twice_cosine", mutates_args=())
def twice_cosine(x: Tensor) -> Tensor:
    with Doubles():
        return torch.cos(x)


@pytest.mark.parametrize("operator", [cosine, twice_cosine])
def test_a_replay_has_the_modes_that_the_operator_enters_and_not_those_of_the_reader(
    operator: Callable[[Tensor], Tensor],
) -> None:
    with scope(None):
        y = operator(torch.ones(1 << 14).exp())
        expected = bits(y.clone())
        dtr_alloc.evict(y)
        with Doubles():
            y.tolist()
        assert same(bits(y), expected)
