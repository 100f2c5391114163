"""A replay of another library's operator and the `TorchFunctionMode`s of its caller and its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import dtr_alloc
from tests.support.exactness import bits, same, scope


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
