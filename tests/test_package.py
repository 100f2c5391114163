"""The installed package: its names, and what an import under another torch says."""

import subprocess
import sys
from pathlib import Path

import torch

from dtr_alloc import _core


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, check=False
    )


def test_an_import_under_another_torch_than_built_with_says_so(tmp_path: Path) -> None:
    done = run("import torch; torch.__version__ = '2.0.1'; import dtr_alloc", tmp_path)
    assert done.returncode == 1
    assert f"built with torch {_core.torch_version}, but torch 2.0.1 is installed" in done.stderr
    assert "pip install --no-build-isolation -e ." in done.stderr


def test_it_was_built_with_the_torch_that_is_here() -> None:
    assert torch.__version__.split("+")[0] == _core.torch_version


def test_nothing_named_kernels_or_runtime_is_installed_at_top_level(tmp_path: Path) -> None:
    done = run(
        "import dtr_alloc.kernels, dtr_alloc.runtime, importlib.util as u; "
        "print(u.find_spec('kernels'), u.find_spec('runtime'))",
        tmp_path,
    )
    assert done.stdout.split() == ["None", "None"], done.stderr
