"""Surveys of torch's operators (perf/survey): a release that adds a row fails here and is named.

What an operator does besides its schema was tried out once for each operator, and is in
perf/results/survey. Here this torch's list of operators and of switches is held against these
tables, and a few entries of torch's databases are called again. The surveys themselves take an
hour.
"""

import json
import os
import signal
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
from calls import Source, digest, operators, tensors
from children import Lost, results
from repeats import takes_indices
from result import surveyed
from samples import Sample, overload, record
from schemas import is_composite, seen
from switch_list import DEFAULT_DTYPE, context_fields, switches, unknown

from tests.support.fences import ROOT

FOLDER = ROOT / "perf/results/survey"
# Entries of torch's databases whose operators write, share or draw: each way that there is.
ENTRIES = ("nn.LSTM", "nn.BatchNorm1d", "unsafe_split", "nn.functional.dropout", "put")


def tables(survey: str) -> list[dict[str, Any]]:
    """The committed results of a survey, one for each torch that was surveyed."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{survey}-*.json"))]
    assert found, f"{FOLDER} has no result of {survey}"
    return found


def whole(survey: str) -> list[dict[str, Any]]:
    """Those that called every operator of their torch."""
    found = [table for table in tables(survey) if not table.get("fresh alone")]
    assert found, f"{FOLDER} has no result of {survey} that called every operator"
    return found


def of_torch() -> list[str]:
    """Those that a program runs eagerly. What tests and torch's compilers define comes and goes."""
    return [name for name in operators()[0] if name.startswith("aten::")]


def assert_none(fresh: Iterable[str], what: str, then: str) -> None:
    """This torch has nothing of a kind that a survey has not seen; else what to do is told."""
    names = sorted(fresh)
    assert not names, f"torch {torch.__version__} {what}: {', '.join(names)}; {then}"


@cache
def calls_of_the_entries() -> list[Sample]:
    return record(ENTRIES)


def test_every_composite_operator_was_called_with_evicted_inputs_or_is_listed() -> None:
    assert_none(
        {name for name in of_torch() if is_composite(name)} - surveyed(FOLDER, "composites"),
        "has composite operators that no survey called with evicted inputs",
        "run perf/survey/composites.py --fresh and see whether their kernels read a pointer",
    )


def test_every_operator_that_takes_indices_was_tried_for_repeating_itself() -> None:
    assert_none(
        {name for name in of_torch() if takes_indices(name)} - surveyed(FOLDER, "repeats"),
        "has operators that take indices, and no survey ran them twice",
        "run perf/survey/repeats.py --fresh",
    )


def test_every_switch_of_torch_is_in_a_table() -> None:
    assert_none(
        unknown(),
        "has switches that no table of perf/survey/switch_list.py has",
        "does a kernel read them?",
    )


def test_every_field_of_the_context_was_there_when_the_switches_were_surveyed() -> None:
    known = {
        name for table in tables("switches") for name in table["fields of at::Context"].split()
    }
    assert_none(
        set(context_fields()) - known,
        "has fields of at::Context that no survey has seen",
        "run perf/survey/switches.py --fresh, and see what reads them",
    )


@pytest.mark.filterwarnings("ignore")
def test_no_operator_does_what_neither_its_schema_nor_the_survey_says() -> None:
    known = {
        (row["operator"], row["argument"], row["seen"])
        for table in tables("schemas")
        for row in table["rows"]
    }
    found = set()
    for call in Source(calls_of_the_entries()).all():
        try:
            found |= {(call.operator, argument, what) for what, argument, _ in seen(call)}
        except Exception:  # torch refuses the call without its surroundings.
            continue
    assert_none(
        (" ".join(filter(None, row)) for row in found - known),
        "does what its schemas do not say",
        "run perf/survey/schemas.py, and add rows to the tables of live/operators/operators.cpp",
    )
    assert ("aten::native_batch_norm", "running_mean", "is written") in found
    assert ("aten::unsafe_split.Tensor", "self", "shares its storage with a result") in found
    if torch._C._has_mkldnn:
        assert ("aten::mkldnn_rnn_layer_backward", "workspace", "is written") in found


def test_the_survey_found_what_does_not_repeat_itself() -> None:
    assert not any(table["unfinished"] for table in tables("repeats"))
    for table in whole("repeats"):
        found = set(table["differ with several threads alone"])
        assert {"aten::index_put_", "aten::put_", "aten::_index_put_impl_"} <= found


def test_the_survey_found_composite_operators_that_read_a_pointer() -> None:
    table = json.loads((FOLDER / "before/composites-2.13.0.json").read_text())
    assert set(table["go wrong"]) >= {
        "aten::tensor_split.tensor_indices_or_sections",
        "aten::_pad_packed_sequence",
        "aten::_pack_padded_sequence_backward",
        "aten::ctc_loss.Tensor",
        "aten::choose_qparams_optimized",
        "aten::fbgemm_pack_gemm_matrix_fp16",
        "aten::_saturate_weight_to_fp16",
    }


def test_with_their_inputs_brought_back_no_composite_operator_goes_wrong() -> None:
    for table in tables("composites"):
        assert table["go wrong"] == []


def test_the_survey_found_what_the_library_and_the_threads_change() -> None:
    for table in whole("switches"):
        settings = {name: row["operators"].split() for name, row in table["settings"].items()}
        assert "aten::convolution" in settings["_set_mkldnn_enabled=False"]
        assert "aten::gelu" in settings["_set_mkldnn_enabled=False"]
        assert "aten::mish" in settings["set_num_threads=1"]
        assert "aten::add.Tensor" in settings["set_flush_denormal=True"]


@pytest.mark.filterwarnings("ignore")
def test_a_call_grows_until_its_indices_keep_several_threads_busy() -> None:
    found = list(Source(calls_of_the_entries()).calls("aten::put_", 4))
    assert max(x.numel() for call in found for x in call.args if isinstance(x, torch.Tensor)
               and x.dtype == torch.int64) >= 100_000  # fmt: skip
    assert any(x.numel() >= 900_000 for call in found for x in tensors(call.args))


def test_a_digest_tells_bits_apart_and_not_objects() -> None:
    x = torch.tensor([0.0, 1.0])
    assert digest(x) == digest([x.clone()]) != digest(x * torch.tensor([-1.0, 1.0]))
    assert digest([x.view(2), object()]) == digest([x, object()])


def test_a_crash_loses_one_item_alone() -> None:
    def work(item: int) -> int:
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 2:
            raise ValueError("no two")
        return item

    found = dict(results(work, range(4), seconds=60))
    assert found == {0: 0, 1: Lost("crashed"), 2: Lost("ValueError: no two"), 3: 3}


def test_a_switch_is_put_back() -> None:
    for switch in (DEFAULT_DTYPE, *switches()):
        before = switch.now()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with switch.at(switch.others[-1]):
                    pass
            except RuntimeError:  # This machine has no such arithmetic.
                continue
        assert switch.now() == before, switch.name


def test_every_operator_is_named_as_torch_names_it() -> None:
    able, unable = operators()
    assert {*able, *unable} == set(torch._C._dispatch_get_all_op_names())
    assert overload("aten::add.Tensor") is torch.ops.aten.add.Tensor
