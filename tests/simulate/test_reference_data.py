"""When missing data of the paper fails a test, and when it skips one (reference_data.py)."""

from pathlib import Path

import pytest

from tests.support import reference_data
from tests.support.reference_data import reference


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual folder, which does not exist, and no variable."""
    monkeypatch.setattr(reference_data, "USUAL", tmp_path / "usual")
    monkeypatch.delenv("DTR_REFERENCE", raising=False)
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "usual"


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("ci", [True, False])
def test_what_a_named_folder_lacks_is_a_failure(
    folder: bool, ci: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named"
    if folder:
        named.mkdir()
    monkeypatch.setenv("DTR_REFERENCE", str(named))
    if ci:
        monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception) as caught:
        reference("dtr-logs/lstm.log.gz")
    assert f"DTR_REFERENCE is '{named}'" in str(caught.value)
    assert f"{named / 'dtr-logs/lstm.log.gz'} does not exist" in str(caught.value)


def test_a_name_that_is_empty_is_no_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTR_REFERENCE", "")
    with pytest.raises(pytest.fail.Exception, match="DTR_REFERENCE is ''"):
        reference("no such file")


@pytest.mark.parametrize("ci", [None, "true", "false"])
def test_without_a_folder_a_test_is_skipped_and_told_what_to_set(
    ci: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="set DTR_REFERENCE to the folder that has a"):
        reference("a.csv")


def test_in_continuous_integration_the_usual_folder_must_be_whole(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual.mkdir()
    with pytest.raises(pytest.skip.Exception):
        reference("a.csv")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception) as caught:
        reference("a.csv")
    assert "CI is set and DTR_REFERENCE is not" in str(caught.value)
    assert str(usual / "a.csv") in str(caught.value)


def test_what_is_there_is_found_in_the_named_folder_before_the_usual(
    usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (usual, tmp_path / "named"):
        folder.mkdir()
        (folder / "a.csv").touch()
    assert reference("a.csv") == usual / "a.csv"
    monkeypatch.setenv("DTR_REFERENCE", str(tmp_path / "named"))
    assert reference("a.csv") == tmp_path / "named" / "a.csv"
