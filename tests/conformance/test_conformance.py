"""Torch's own databases of operators, modules and optimizers, compared with eager bit for bit.

`make test` takes one fixed tenth of the cases and few samples of each; `make test-all` takes every
case and writes what ran, was identical and was skipped to perf/results/conformance.json, part by
part: a part that runs again replaces its own figures only.
"""

import json
from pathlib import Path

import pytest
import torch
from measurement import code, provenance
from torch import Tensor

from dtr_alloc.runtime.scope import current
from tests.conformance import report
from tests.conformance.cases import DATABASES, PARTS, cases
from tests.conformance.comparison import Tally, compare
from tests.conformance.report import RESULTS, compare_with_progress, record
from tests.conformance.skips import SAMPLE_SKIPS, SKIPS, VERIFY_SKIPS, WITHOUT_ELEMENTS, table

FEW = {"operators": 1, "modules": 2, "optimizers": 3}
MANY = {"operators": 6, "modules": 12, "optimizers": 12}


@pytest.mark.parametrize("database", DATABASES)
def test_a_fixed_tenth_of_the_cases_is_exact(database: str) -> None:
    tally = Tally()
    for case in cases(database, part=0):
        compare(case, tally, FEW[database])
    assert tally.failures == []
    assert tally.identical == tally.checks > 0
    assert tally.samples_evicted > tally.samples // 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("database", DATABASES)
def test_every_case_is_exact(database: str, part: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        tally, seconds = compare_with_progress(database, part, MANY[database])
    record(database, part, MANY[database], tally, seconds)
    assert tally.failures == []


def test_the_parts_are_all_cases_and_share_none() -> None:
    for database in DATABASES:
        whole = [str(case) for case in cases(database)]
        assert len(set(whole)) == len(whole) > 40
        parts = [str(case) for part in range(PARTS) for case in cases(database, part)]
        assert sorted(parts) == sorted(whole)


def test_every_skip_names_a_case_that_exists() -> None:
    found = [case for database in DATABASES for case in cases(database)]
    entries = {case.entry for case in found}
    assert {case for case, _ in SAMPLE_SKIPS} <= {str(case) for case in found}
    assert {*SKIPS, *WITHOUT_ELEMENTS, *VERIFY_SKIPS} <= entries


def test_the_results_that_are_kept_are_of_every_case_and_skip_few() -> None:
    kept = json.loads(RESULTS.read_text())
    if kept["torch"].split("+")[0] != torch.__version__.split("+")[0]:
        pytest.skip(f"they are of torch {kept['torch']}, whose database has other cases")
    totals = kept["totals"]
    for database in DATABASES:
        assert totals[database]["cases"] == len(list(cases(database)))
        assert totals[database]["failures"] == 0
        assert totals[database]["identical"] == totals[database]["checks"] > 1000
    tried = sum(totals[database]["cases"] for database in DATABASES)
    skipped = sum(sum(totals[database]["skipped_cases"].values()) for database in DATABASES)
    assert skipped <= tried / 100


def test_a_part_that_runs_again_replaces_its_own_figures_and_tells_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "conformance.json"
    kept.write_text(json.dumps({"torch": torch.__version__, "parts": {"modules 1": {"checks": 5}}}))
    monkeypatch.setattr(report, "RESULTS", kept)
    record("modules", 0, 2, Tally(checks=3), 1.0)
    found = json.loads(kept.read_text())
    assert found["code"] == f"{code()} or unknown"
    assert found["parts"]["modules 0"]["code"] == code()
    assert found["totals"]["modules"]["checks"] == 8
    assert found["totals"]["modules"]["parts_run"] == f"2 of {PARTS}"
    record("modules", 1, 2, Tally(checks=4), 1.0)
    found = json.loads(kept.read_text())
    assert found["code"] == code()
    assert found["totals"]["modules"]["checks"] == 7
    assert provenance().keys() <= found.keys()


def test_the_documentation_shows_the_table_of_skips() -> None:
    text = Path(__file__).parents[2] / "docs" / "exactness.md"
    assert table() in text.read_text()


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases("operators") if str(case) == "operators/exp/float32")
    honest = case.info.op

    def wrong_inside_a_scope(x: Tensor) -> Tensor:
        return honest(x) + (current.session() is not None)  # type: ignore[no-any-return]

    monkeypatch.setattr(case.info, "op", wrong_inside_a_scope)
    tally = Tally()
    compare(case, tally, most=4)
    assert "result 1 differs" in tally.failures[0]
    assert tally.identical < tally.checks
