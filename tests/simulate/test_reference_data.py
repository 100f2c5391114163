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


FAILS, SKIPS = pytest.fail.Exception, pytest.skip.Exception
USUAL = "CI is set and DTR_REFERENCE is not"


@pytest.mark.parametrize(
    ("variables", "folder", "outcome", "told"),
    [
        # What a named folder lacks is a failure. An empty name is one.
        ({"DTR_REFERENCE": "{}/named"}, "named", FAILS, "DTR_REFERENCE is '{}/named'"),
        ({"DTR_REFERENCE": "{}/named"}, None, FAILS, "DTR_REFERENCE is '{}/named'"),
        ({"DTR_REFERENCE": ""}, None, FAILS, "DTR_REFERENCE is ''"),
        # Without a folder a test is skipped, and told what to set.
        ({"CI": "true"}, None, SKIPS, "set DTR_REFERENCE to the folder that has a.csv"),
        # In continuous integration the usual folder must be whole.
        ({"CI": "false"}, "usual", SKIPS, "set DTR_REFERENCE"),
        ({"CI": "true"}, "usual", FAILS, f"{USUAL}, so {{}}/usual is used, but {{}}/usual/a.csv"),
    ],
)
def test_what_is_not_there_fails_or_skips_a_test(
    variables: dict[str, str],
    folder: str | None,
    outcome: type[BaseException],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if folder:
        (tmp_path / folder).mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    with pytest.raises(outcome) as caught:
        reference("a.csv")
    assert told.format(tmp_path, tmp_path) in str(caught.value)


def test_what_is_there_is_found_in_the_named_folder_before_the_usual(
    usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (usual, tmp_path / "named"):
        folder.mkdir()
        (folder / "a.csv").touch()
    assert reference("a.csv") == usual / "a.csv"
    monkeypatch.setenv("DTR_REFERENCE", str(tmp_path / "named"))
    assert reference("a.csv") == tmp_path / "named" / "a.csv"
