"""The paper's own runs, decision by decision: its four published logs and its linear network."""

import pytest
from reference_parity import compare_linear, compare_logs

from tests.support.reference_data import reference


def test_every_run_of_the_reference_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    logs, results = reference("dtr-logs"), reference("simrd-results.csv")
    assert compare_logs(logs, results), capsys.readouterr().out
    assert "4 logs: 240 of 240 rows equal" in capsys.readouterr().out


def test_every_linear_network_of_the_reference_is_reproduced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare_linear(reference("simrd-linear.csv"), most_layers=1024), capsys.readouterr().out
    assert "linear network: 54 of 54 rows equal" in capsys.readouterr().out
