"""What each line of a trace means to a simulator, and what names and sums may get wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from linear_network import linear_schedule

from dtr_alloc.runtime.trace.schedule import Schedule
from tests.support.trace_lines import (
    Line,
    alias_of,
    annotate,
    args_of,
    call,
    constant,
    copy,
    copy_from,
    load,
    mutate,
    refused,
    release,
    steps,
)

Make = Callable[..., Schedule]
"""Of lines."""


@pytest.fixture
def schedule(log: Path) -> Make:
    return lambda *lines: load(log, *lines).schedule()


def test_a_constant_is_computed_for_nothing_and_pinned_at_once(schedule: Make) -> None:
    found = schedule(constant("a", 4096))
    assert steps(found) == "c0 p0 p0"
    assert found.op_cost.tolist() == [0]
    assert found.op_constant.tolist() == [True]
    assert found.op_name == ["constant"]
    assert args_of(found) == [[]]
    assert found.tensor_op.tolist() == [0]
    assert found.tensor_alias.tolist() == [-1]
    assert found.tensor_size.tolist() == [4096]


def test_a_call_makes_consecutive_tensors_with_sizes_of_their_own(schedule: Make) -> None:
    found = schedule(constant("a"), call("a", "b c", time=70, memory=16), call("c b", "d"))
    assert found.op_cost.tolist() == [0, 70, 1]
    assert found.op_name == ["constant", "op", "op"]
    assert found.op_constant.tolist() == [True, False, False]
    assert args_of(found) == [[], [0], [2, 1]]
    assert found.op_results_begin.tolist() == [0, 1, 3, 4]
    assert found.tensor_op.tolist() == [0, 1, 1, 2]
    assert found.tensor_size.tolist() == [8, 16, 16, 8]
    assert steps(found).startswith("c0 p0 c1 c2")


def test_an_argument_that_is_given_twice_stays_twice(schedule: Make) -> None:
    found = schedule(constant("a"), call("a a", "b"), call("b a b", "c"))
    assert args_of(found) == [[], [0, 0], [1, 0, 1]]


def test_the_bytes_of_a_view_are_passed_over_and_a_result_of_none_is_no_view(
    schedule: Make,
) -> None:
    found = schedule(constant("a"), call("a", "b", memory=999, alias=0), call("b", "c", memory=0))
    assert found.tensor_size.tolist() == [8, 0, 0]
    assert found.tensor_alias.tolist() == [-1, 0, -1]


def test_a_view_names_the_tensor_that_its_argument_is_now(schedule: Make) -> None:
    found = schedule(constant("a"), constant("b"), mutate("b a", 0), call("a b", "v", alias=1))
    assert found.tensor_alias.tolist() == [-1, -1, -1, 2]


def test_a_view_may_be_attached_after_the_base_was_released(schedule: Make) -> None:
    found = schedule(
        constant("c"),
        call("c", "a"),
        release("a"),
        call("c", "other"),
        call("a", "v", alias=0),
        release("v"),
    )
    assert steps(found) == "c0 p0 c1 r1 c2 c3 r3 p0 p2"
    assert found.tensor_alias.tolist() == [-1, -1, -1, 1]


def test_a_call_can_return_views_beside_tensors_of_its_own(schedule: Make) -> None:
    lines = call("a", "b c", memory=5)
    lines[2] = alias_of("b", 0)
    found = schedule(constant("a"), lines)
    assert found.tensor_alias.tolist() == [-1, 0, -1]
    assert found.tensor_size.tolist() == [8, 0, 5]


def test_mutation_moves_the_name_to_a_new_tensor_and_releases_the_old_one(schedule: Make) -> None:
    found = schedule(constant("a", 8), constant("b", 24), mutate("a b", 1, time=9), call("b", "c"))
    assert steps(found) == "c0 p0 c1 p1 c2 r1 c3 p0 p2 p3"
    assert found.op_name == ["constant", "constant", "op_", "op"]
    assert found.op_cost.tolist() == [0, 0, 9, 1]
    assert found.op_constant.tolist() == [True, True, False, False]
    assert args_of(found) == [[], [], [0, 1], [2]]
    assert found.tensor_size.tolist() == [8, 24, 24, 8]
    assert found.tensor_alias.tolist() == [-1, -1, -1, -1]


def test_mutation_of_a_view_makes_a_tensor_as_large_as_the_whole_storage(schedule: Make) -> None:
    found = schedule(
        constant("a", 4096),
        call("a", "v", alias=0),
        call("v", "w", alias=0),
        mutate("w", 0),
        call("a w", "r"),
    )
    assert found.tensor_size.tolist() == [4096, 0, 0, 4096, 8]
    assert found.tensor_alias.tolist() == [-1, 0, 1, -1, -1]
    assert args_of(found)[3:] == [[2], [0, 3]]  # a keeps the old storage.
    assert "r2" in steps(found)


def test_another_name_keeps_the_tensor_from_before_a_mutation(schedule: Make) -> None:
    found = schedule(
        constant("a"), copy("b", "a"), mutate("a", 0), call("b a", "c"), release("b", "a")
    )
    assert steps(found) == "c0 p0 g0 c1 r0 c2 r0 r1 p2"
    assert args_of(found) == [[], [0], [0, 1]]


def test_each_argument_that_is_mutated_becomes_a_result_in_the_order_of_positions(
    schedule: Make,
) -> None:
    found = schedule(constant("a", 1), constant("b", 2), mutate("a b", 1, 0))
    assert found.tensor_size.tolist() == [1, 2, 2, 1]
    assert found.op_results_begin.tolist() == [0, 1, 2, 4]
    assert steps(found) == "c0 p0 c1 p1 c2 r1 r0 p3 p2"


def test_a_mutation_may_read_what_it_writes_a_second_time(schedule: Make) -> None:
    found = schedule(constant("a"), mutate("a a", 0))
    assert args_of(found) == [[], [0, 0]]
    assert steps(found) == "c0 p0 c1 r0 p1"


def test_copy_takes_a_reference_and_release_gives_it_back(schedule: Make) -> None:
    found = schedule(constant("a"), copy("b", "a"), release("a", "b"))
    assert steps(found) == "c0 p0 g0 r0 r0"


def test_copy_from_releases_the_old_tensor_before_it_takes_the_new_one(schedule: Make) -> None:
    found = schedule(constant("a"), constant("b"), copy_from("a", "b"))
    assert steps(found) == "c0 p0 c1 p1 r0 g1 p1 p1"


def test_copy_from_moves_no_other_name(schedule: Make) -> None:
    found = schedule(
        constant("a"), constant("b"), copy("c", "a"), copy_from("a", "b"), call("a b c", "d")
    )
    assert args_of(found) == [[], [], [1, 1, 0]]
    assert steps(found).endswith("p1 p1 p0 p2")


def test_the_end_pins_what_is_referenced_in_the_order_in_which_names_appeared(
    schedule: Make,
) -> None:
    found = schedule(
        constant("a"),
        constant("b"),
        call("a", "c"),
        copy("d", "a"),
        mutate("a", 0),  # a stays first, and is a new tensor.
        release("b"),
    )
    assert steps(found).endswith("p3 p2 p0")


def test_the_end_pins_a_tensor_for_each_of_its_names_even_one_that_was_released(
    schedule: Make,
) -> None:
    found = schedule(constant("a"), copy("b", "a"), release("a"))
    assert steps(found).endswith("p0 p0")


def test_a_release_that_one_view_gives_for_another_is_counted_by_storage(schedule: Make) -> None:
    found = schedule(constant("a"), call("a", "v", alias=0), release("a", "a"))
    assert steps(found) == "c0 p0 c1 r0 r0 p1"


def test_a_release_of_a_name_that_nothing_defines_is_passed_over(schedule: Make) -> None:
    found = schedule(release("x"), constant("a"), release("y"))
    assert steps(found) == "c0 p0 p0"


def test_what_precedes_the_first_start_is_not_replayed(log: Path) -> None:
    trace = load(
        log,
        annotate("BACKWARD"),
        constant("a"),
        call("missing", "b"),
        annotate("START"),
        constant("a"),
        annotate("START"),
        annotate("BACKWARD"),
        call("a", "c"),
    )
    assert steps(trace.schedule()) == "c0 p0 c1 p0 p1"


def test_a_log_of_marks_alone_is_a_schedule_of_nothing(schedule: Make) -> None:
    found = schedule(annotate("START"))
    assert steps(found) == ""
    assert found.op_args_begin.tolist() == [0]
    assert found.op_results_begin.tolist() == [0]


def test_arrays_have_the_types_that_are_promised_and_cannot_be_written(schedule: Make) -> None:
    found = schedule(constant("a"), call("a", "b"))
    arrays = {name: array for name, array in vars(found).items() if isinstance(array, np.ndarray)}
    types = {name: str(array.dtype) for name, array in arrays.items()}
    assert types.pop("kind") == "int8"
    assert types.pop("op_constant") == "bool"
    assert set(types.values()) == {"int64"}
    with pytest.raises(ValueError, match="read-only"):
        found.tensor_size[0] = 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "1: the log is empty"),
        ([call("x9", "b")], "5: CALL op reads x9, which no earlier line defines"),
        ([mutate("a x9", 0)], "5: MUTATE op_ reads x9, which no earlier line defines"),
        ([copy("b", "x9")], "5: COPY reads x9, which no earlier line defines"),
        ([copy_from("a", "x9")], "5: COPY_FROM reads x9, which no earlier line defines"),
        ([copy_from("x9", "a")], "5: COPY_FROM reads x9, which no earlier line defines"),
        ([copy("z", "a")], "5: COPY defines z, which an earlier line defines"),
        ([constant("a")], "5: CONSTANT defines a, which an earlier line defines"),
        ([call("a", "z")], "5: CALL op defines z, which an earlier line defines"),
        ([call("a", "b b")], "5: CALL op defines b, which an earlier line defines"),
        ([release("a", "a")], "6: the last reference to a is gone, and none can be given back"),
        (
            [release("a"), copy("b", "a")],
            "6: the last reference to a is gone, and none can be taken from it",
        ),
        (
            [copy_from("a", "a")],
            "5: the last reference to a is gone, and none can be taken from it",
        ),
        (
            [release("a"), mutate("a", 0)],
            "6: the last reference to a is gone, and none can be given back",
        ),
        ([copy("b", "a"), mutate("a z", 0, 0)], "6: MUTATE op_ writes an argument twice"),
        ([mutate("a a", 0, 1)], "5: MUTATE op_ writes an argument twice"),
        ([call("a", "v", memory=1 << 60)], "5: bytes add up to more than 2^60"),
        (
            [call("", "v", memory=1 << 59), call("v v v", "w", memory=1)],
            "8: bytes add up to more than 2^60",
        ),
        (
            [call("", "v", time=1 << 60), call("", "w", time=1)],
            "8: times add up to more than 2^60 ns",
        ),
    ],
    ids=lambda value: value.split(": ", 1)[1] if isinstance(value, str) else "",
)
def test_what_the_names_and_sums_get_wrong_is_told(
    log: Path, parts: list[list[Line]], message: str
) -> None:
    before = [constant("a"), constant("z")] if parts else []
    assert refused(log, *before, *parts) == message


# The linear network.


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


@pytest.mark.parametrize("layers", [0, -4])
def test_a_network_without_layers_is_refused(layers: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 layer, not {layers}"):
        linear_schedule(layers)
