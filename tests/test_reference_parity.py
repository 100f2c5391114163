"""The paper's own runs, decision by decision: its four published logs and its linear network."""

import os
from pathlib import Path

import pytest
from reference_parity import compare_linear, compare_logs

ROOT = Path(__file__).parent.parent
REFERENCE = Path(os.environ.get("DTR_REFERENCE", ROOT.parent / "shared" / "reference"))
LOGS, RESULTS, LINEAR = (
    REFERENCE / "dtr-logs",
    REFERENCE / "simrd-results.csv",
    REFERENCE / "simrd-linear.csv",
)


def require(path: Path) -> Path:
    if not path.exists():
        if "DTR_REFERENCE" in os.environ:
            pytest.fail(f"DTR_REFERENCE names {REFERENCE}, which lacks {path.name}")
        pytest.skip(f"{path} is absent; DTR_REFERENCE names the folder that has it")
    return path


def test_every_run_of_the_reference_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_logs(require(LOGS), require(RESULTS)), capsys.readouterr().out
    assert "4 logs: 240 of 240 rows equal" in capsys.readouterr().out


def test_every_linear_network_of_the_reference_is_reproduced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare_linear(require(LINEAR), most_layers=1024), capsys.readouterr().out
    assert "linear network: 54 of 54 rows equal" in capsys.readouterr().out
