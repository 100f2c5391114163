"""The part of the extension for CUDA is C++ that a compiler accepts, also where torch has no CUDA.

Nothing else would look at it on a machine that has only such a torch, whose wheel has all of
torch's headers; CUDA's own come with Triton. The compiler checks the sources without making code:
about 15 s, since all are in one file. Hence names in their anonymous namespaces must differ, and a
header that one of them lacks may come from another: `make check-cuda` compiles them one by one."""

import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from os import environ
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from tests.native_stand_in.native import cuda_headers

ROOT = Path(__file__).parents[2]
LIVE_CUDA = ROOT / "runtime/csrc/live_cuda"
OTHERS = (ROOT / "runtime/csrc/bindings/bind.cpp", ROOT / "runtime/csrc/bindings/bind_session.cpp")
"""What has lines for CUDA beside live_cuda: the test of this list looks for more."""

NEEDED = "c10/cuda/CUDACachingAllocator.h"
GENERATED = "c10/cuda/impl/cuda_cmake_macros.h"
"""Its only macro says whether c10_cuda is a shared library."""

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="this torch has CUDA: the build compiled the sources"
)


def compiler() -> list[str]:
    command = shlex.split(environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    return command


def check(sources: Sequence[Path], folder: Path) -> str:
    """What the compiler says of all sources in one file; "" where it accepts them."""
    headers, of_cuda = include_paths(), cuda_headers()
    if of_cuda is None:
        pytest.skip("cuda_runtime_api.h was not found: no CUDA toolkit, and no Triton that has it")
    if not Path(headers[0], NEEDED).exists():
        pytest.skip(f"this torch has no {NEEDED}")
    if not Path(headers[0], GENERATED).exists():
        (folder / GENERATED).parent.mkdir(parents=True)
        (folder / GENERATED).write_text("#pragma once\n")
    unit = folder / "all.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    system = [str(folder), *headers, str(of_cuda), sysconfig.get_path("include")]
    command = [*compiler(), "-std=c++20", "-fsyntax-only", "-Wall", "-I", str(ROOT)]
    command += [word for one in system for word in ("-isystem", one)]
    command += ["-DDTR_TORCH_CUDA", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    command.append("-DTORCH_EXTENSION_NAME=_core")
    done = subprocess.run([*command, str(unit)], capture_output=True, text=True, timeout=500)
    return done.stderr if done.returncode else ""


def test_the_sources_for_cuda_compile(tmp_path: Path) -> None:
    said = check([*sorted(LIVE_CUDA.glob("*.cpp")), *OTHERS], tmp_path)
    assert not said, f"\n{said}"


def test_a_fault_in_a_source_for_cuda_is_told(tmp_path: Path) -> None:
    text = (LIVE_CUDA / "statistics.cpp").read_text()
    assert "c10::CachingDeviceAllocator" in text
    source = tmp_path / "statistics.cpp"
    source.write_text(text.replace("c10::CachingDeviceAllocator", "c10::NoSuchAllocator", 1))
    said = check([source], tmp_path)
    assert "statistics.cpp" in said
    assert "NoSuchAllocator" in said


def test_no_other_source_has_lines_for_cuda_alone() -> None:
    found = {
        source
        for folder in (ROOT / "dtr_alloc/pool/csrc", ROOT / "runtime/csrc")
        for source in folder.rglob("*.[ch]*")
        if "DTR_TORCH_CUDA" in source.read_text()
    }
    assert found == set(OTHERS)
