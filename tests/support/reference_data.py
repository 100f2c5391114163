"""Data of the paper that is not in the repository: where it lies, and what its absence means.

DTR_REFERENCE names the folder. Who sets it says that the data is there, so what is missing then is
a failure, and never a skip. In continuous integration (CI=true) ../shared/reference counts as if it
were named, where it exists: no file of it may be missing either. Without a folder a test is
skipped, and told what to set.
"""

import os
from pathlib import Path

import pytest

USUAL = Path(__file__).parents[3] / "shared" / "reference"
CONTINUOUS = ("1", "true")


def reference(name: str) -> Path:
    """The path of a file or folder of the data. Fails or skips the test where it is missing."""
    named = os.environ.get("DTR_REFERENCE")
    continuous = os.environ.get("CI", "").lower() in CONTINUOUS
    path = (USUAL if named is None else Path(named)) / name
    if path.exists():
        return path
    if named is not None:
        pytest.fail(f"DTR_REFERENCE is {named!r}, but {path} does not exist", pytrace=False)
    if continuous and USUAL.exists():
        pytest.fail(
            f"CI is set and DTR_REFERENCE is not, so {USUAL} is used, but {path} does not exist",
            pytrace=False,
        )
    pytest.skip(f"{path} does not exist: set DTR_REFERENCE to the folder that has {name}")
