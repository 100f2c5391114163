"""The linear network's schedule, by hand for few layers and by its loop for many."""

import numpy as np
import pytest

from dtr_alloc.runtime.trace.linear import linear_schedule
from dtr_alloc.runtime.trace.schedule import COMPUTE, RELEASE
from tests.support.trace_lines import args_of, steps


def test_one_layer_forgets_its_output_and_goes_back_from_nothing() -> None:
    found = linear_schedule(1)
    assert args_of(found) == [[], []]
    assert steps(found) == [(COMPUTE, 0), (RELEASE, 0), (COMPUTE, 1)]


def test_two_layers() -> None:
    found = linear_schedule(2)
    assert args_of(found) == [[], [0], [], [2]]
    assert steps(found) == [
        (COMPUTE, 0),
        (COMPUTE, 1),
        (RELEASE, 1),
        (COMPUTE, 2),
        (RELEASE, 0),
        (COMPUTE, 3),
        (RELEASE, 2),
    ]


def test_four_layers() -> None:
    found = linear_schedule(4)
    assert args_of(found) == [[], [0], [1], [2], [], [1, 4], [0, 5], [6]]
    assert steps(found) == [
        *((COMPUTE, layer) for layer in range(4)),
        (RELEASE, 3),
        (COMPUTE, 4),
        (RELEASE, 2),
        (COMPUTE, 5),
        (RELEASE, 4),
        (RELEASE, 1),
        (COMPUTE, 6),
        (RELEASE, 5),
        (RELEASE, 0),
        (COMPUTE, 7),
        (RELEASE, 6),
    ]


def test_all_costs_and_sizes_are_one_and_nothing_is_shared_or_constant() -> None:
    found = linear_schedule(3)
    assert found.op_cost.tolist() == found.tensor_size.tolist() == [1] * 6
    assert found.tensor_op.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.op_results_begin.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.tensor_alias.tolist() == [-1] * 6
    assert not found.op_constant.any()
    assert found.op_name == ["forward"] * 3 + ["backward"] * 3


def test_many_layers_are_what_a_loop_makes() -> None:
    layers = 65_536
    args: list[list[int]] = [[], *([layer] for layer in range(layers - 1)), []]
    expected = [(COMPUTE, layer) for layer in range(layers)]
    expected += [(RELEASE, layers - 1), (COMPUTE, layers)]
    for tensor, layer in enumerate(range(layers - 2, -1, -1), layers + 1):
        args.append([layer - 1, tensor - 1] if layer > 0 else [tensor - 1])
        expected += [(RELEASE, layer), (COMPUTE, tensor), (RELEASE, tensor - 1)]
    found = linear_schedule(layers)
    assert args_of(found) == args
    assert steps(found) == expected
    types = [array.dtype for array in vars(found).values() if isinstance(array, np.ndarray)]
    assert sorted(map(str, types)) == ["bool", *["int64"] * 14, "int8"]


def test_without_releases_only_the_operators_are_left() -> None:
    found = linear_schedule(3).without_releases()
    assert steps(found) == [(COMPUTE, operator) for operator in range(6)]


@pytest.mark.parametrize("layers", [0, -4])
def test_a_network_without_layers_is_refused(layers: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 layer, not {layers}"):
        linear_schedule(layers)
