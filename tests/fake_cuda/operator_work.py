"""Torch's operators as work of the fake device, for programs on timed clocks."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils.cpp_extension import include_paths, library_paths

if TYPE_CHECKING:
    from tests.fake_cuda.driver import FakeCuda


@dataclass(frozen=True)
class Speed:
    """How fast the device and its host are, which nobody measured: the regime of a program."""

    host_us: float = 6.0
    """That the host is busy with an operator, from Python to the launch."""
    kernel_us: float = 2.5
    """The least that a kernel takes."""
    gigabytes: float = 3000.0
    """A second, read and written."""
    gigaflops: float = 200_000.0
    """A second."""


def build(folder: Path) -> str:
    """Returns the path of the library, made with g++ in `folder`. Some half a minute."""
    library = str(folder / "liboperatorwork.so")
    source = Path(__file__).with_name("operator_work.cpp")
    flags = ["-std=c++20", "-O1", "-g0", "-DNDEBUG", "-shared", "-fPIC", "-fvisibility=hidden"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-I{path}" for path in include_paths()]
    flags += [f"-L{path}" for path in library_paths()]
    command = ["g++", *flags, str(source), "-ltorch_cpu", "-lc10", "-ldl", "-o", library]
    subprocess.run(command, check=True)
    return library


class OperatorWork:
    """What torch's operators have come to so far."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def count(self, what: str) -> int:
        """`operators`, of them `replayed` by a scope, and nanoseconds `worked` on all."""
        return int(self._library.operator_work_count(what.encode()))


@contextmanager
def operators_work(cuda: FakeCuda, path: str, speed: Speed) -> Iterator[OperatorWork]:
    """In the body torch's operators keep the timed driver's host busy, and its default stream."""
    library = ctypes.CDLL(path)
    library.operator_work_count.restype = ctypes.c_int64
    times = (speed.host_us * 1e3, speed.kernel_us * 1e3, speed.gigabytes, speed.gigaflops)
    if library.operator_work_begin(cuda.path.encode(), *map(ctypes.c_double, times)):
        raise RuntimeError(f"{cuda.path} is not loaded")
    try:
        yield OperatorWork(library)
    finally:
        library.operator_work_end()
