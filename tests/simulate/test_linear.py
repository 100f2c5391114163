"""The linear network's schedule, by hand for few layers and by its loop for many."""

import numpy as np
import pytest

from dtr_alloc.runtime.trace.linear import linear_schedule
from tests.support.trace_lines import args_of, steps


def test_four_layers() -> None:
    found = linear_schedule(4)
    assert args_of(found) == [[], [0], [1], [2], [], [1, 4], [0, 5], [6]]
    assert steps(found) == "c0 c1 c2 c3 r3 c4 r2 c5 r4 r1 c6 r5 r0 c7 r6"


def test_all_costs_and_sizes_are_one_and_nothing_is_shared_or_constant() -> None:
    found = linear_schedule(3)
    assert found.op_cost.tolist() == found.tensor_size.tolist() == [1] * 6
    assert found.tensor_op.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.op_results_begin.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.tensor_alias.tolist() == [-1] * 6
    assert not found.op_constant.any()
    assert found.op_name == ["forward"] * 3 + ["backward"] * 3


@pytest.mark.parametrize("layers", [1, 2, 65_536])
def test_any_number_of_layers_is_what_a_loop_makes(layers: int) -> None:
    args: list[list[int]] = [[], *([layer] for layer in range(layers - 1)), []]
    expected = [f"c{layer}" for layer in range(layers)]
    expected += [f"r{layers - 1}", f"c{layers}"]
    for tensor, layer in enumerate(range(layers - 2, -1, -1), layers + 1):
        args.append([layer - 1, tensor - 1] if layer > 0 else [tensor - 1])
        expected += [f"r{layer}", f"c{tensor}", f"r{tensor - 1}"]
    found = linear_schedule(layers)
    assert args_of(found) == args
    assert steps(found).split() == expected
    types = [array.dtype for array in vars(found).values() if isinstance(array, np.ndarray)]
    assert sorted(map(str, types)) == ["bool", *["int64"] * 14, "int8"]


def test_without_releases_only_the_operators_are_left() -> None:
    found = linear_schedule(3).without_releases()
    assert steps(found) == "c0 c1 c2 c3 c4 c5"


@pytest.mark.parametrize("layers", [0, -4])
def test_a_network_without_layers_is_refused(layers: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 layer, not {layers}"):
        linear_schedule(layers)
