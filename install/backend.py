"""What pip calls to build: setuptools, or one sentence where that is not there.

With --no-build-isolation pip takes the setuptools of the environment, and without any it ends in
twenty lines about the import of a backend. A new environment has none from Python 3.12 on, and an
old one before; both are told what to install. In a folder of its own, because pip puts the folder
on sys.path.
"""

import importlib.metadata

LEAST = 77  # That in pyproject.toml.

try:
    from setuptools.build_meta import *  # noqa: F403 (the functions that pip calls)

    found = importlib.metadata.version("setuptools")
except (ModuleNotFoundError, importlib.metadata.PackageNotFoundError):
    found = "0"
if int(found.partition(".")[0]) < LEAST:
    seen = "none" if found == "0" else found
    raise SystemExit(
        f"dtr_alloc is built by setuptools {LEAST} or later, and this environment has {seen}: "
        f"pip install 'setuptools>={LEAST}' ninja"
    )
