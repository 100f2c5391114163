"""The stand-in for torch's CUDA allocator, for Python: built with g++ against torch's headers."""

import ctypes
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.cpp_extension import CUDA_HOME

ROOT = Path(__file__).parents[2]
INCLUDE = Path(torch.__file__).parent / "include"


def cuda_headers() -> Path | None:
    """The folder of CUDA's headers: a toolkit's, or that of a package."""
    packages = Path(sysconfig.get_path("purelib"))
    places = [Path(home) / "include" for home in (CUDA_HOME, "/usr/local/cuda") if home]
    places += sorted(packages.glob("nvidia/cu*/include"), reverse=True)
    places.append(packages / "triton/backends/nvidia/include")
    needed = ("cuda_runtime_api.h", "crt/host_defines.h")
    return next((one for one in places if all((one / name).exists() for name in needed)), None)


def build(folder: Path) -> str:
    library = str(folder / "libnative.so")
    source = Path(__file__).with_name("stand_in.cpp")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall"]
    include = [f"-I{ROOT}", f"-I{INCLUDE}", f"-I{cuda_headers()}"]
    torch_libraries = [f"-L{INCLUDE.parent / 'lib'}", "-lc10", "-lc10_cuda"]
    command = ["g++", *flags, *include, str(source), *torch_libraries, "-o", library]
    subprocess.run(command, check=True)
    return library


class Native:
    """All allocators are addresses; 0 is the stand-in itself. There is one in a process, and one
    other, as a library brings it, with memory of its own."""

    def __init__(self, library: str, driver: str) -> None:
        os.environ["DTR_ALLOC_LIBCUDA"] = driver
        self._library = ctypes.CDLL(library)
        for name in ("call_all", "log"):
            getattr(self._library, f"standin_{name}").restype = ctypes.c_char_p
        for name in (
            *("address", "other", "installed", "frees", "other_frees", "strays"),
            *("live", "other_live", "peak", "num_ooms", "retries", "raw_alloc", "share", "place"),
        ):
            getattr(self._library, f"standin_{name}").restype = ctypes.c_long
        self._observers: list[object] = []
        self.address: int = self._library.standin_address()
        self.other: int = self._library.standin_other()

    def call_all(self, allocator: int = 0) -> str:
        """Calls every virtual; returns what they returned."""
        told: bytes = self._library.standin_call_all(ctypes.c_long(allocator))
        return told.decode()

    def log(self) -> list[str]:
        told: bytes = self._library.standin_log()
        return told.decode().splitlines()

    def __getattr__(self, name: str) -> int:
        """Figures, as frees, strays, live and peak; and the allocator that torch has: installed."""
        return int(getattr(self._library, f"standin_{name}")())

    def num_ooms(self, allocator: int = 0) -> int:
        return int(self._library.standin_num_ooms(ctypes.c_long(allocator)))

    def takes_python(self, on: bool) -> None:
        self._library.standin_takes_python(int(on))

    def fails(self, count: int, after: int = 0) -> None:
        """The next requests are turned down, whatever there is; but for the first ones."""
        self._library.standin_fails(count, after)

    def during(self, now: Callable[[], None]) -> None:
        """Runs it within the next request, once."""
        self._during = ctypes.CFUNCTYPE(None)(now)
        self._library.standin_during(self._during)

    def booked(self, now: Callable[[], None]) -> None:
        """Runs it at the end of the next request, once, while nobody else can read the books."""
        self._booked = ctypes.CFUNCTYPE(None)(now)
        self._library.standin_booked(self._booked)

    def lingers(self, reads: int) -> None:
        """The next request returns once the books have been read so often with it in them."""
        self._library.standin_lingers(reads)

    def install(self, allocator: int = 0) -> None:
        """In place of what torch has."""
        self._library.standin_install(ctypes.c_long(allocator))

    def uninstall(self) -> None:
        self._library.standin_uninstall()

    def enable(self, on: bool, allocator: int = 0) -> None:
        self._library.standin_enable(ctypes.c_long(allocator), int(on))

    def reset(self) -> None:
        self._library.standin_reset()

    def hold(self, size: int, allocator: int = 0) -> bool:
        """Takes a block as a tensor does; whether there was one."""
        return bool(self._library.standin_hold(ctypes.c_long(allocator), ctypes.c_size_t(size)))

    def drop(self, number: int) -> None:
        """Frees one of the blocks that were taken, counted from the last `drop_all`."""
        self._library.standin_drop(ctypes.c_size_t(number))

    def raw_alloc(self, size: int) -> int:
        return int(self._library.standin_raw_alloc(ctypes.c_size_t(size)))

    def empty_cache(self, allocator: int = 0) -> None:
        self._library.standin_empty_cache(ctypes.c_long(allocator))

    def set_fraction(self, fraction: float, allocator: int = 0) -> None:
        """Of the device, for all that torch holds."""
        self._library.standin_set_fraction(ctypes.c_long(allocator), ctypes.c_double(fraction))

    def share(self, tensor: torch.Tensor, allocator: int = 0) -> int:
        """Hands its memory to another process, as torch would; returns the address."""
        place = self._library.standin_share(
            ctypes.c_long(allocator), ctypes.c_void_p(tensor._cdata)
        )
        return int(place)

    def place(self, tensor: torch.Tensor) -> int:
        """The address of its content, which nobody is told of; 0 where it is evicted."""
        return int(self._library.standin_place(ctypes.c_void_p(tensor._cdata)))

    def drop_all(self) -> None:
        self._library.standin_drop_all()

    def observe(self, allocator: int = 0) -> list[int]:
        """Attaches an observer; the list gets the bytes of what it is told of."""
        told: list[int] = []
        observer = ctypes.CFUNCTYPE(None, ctypes.c_long)(told.append)
        self._observers.append(observer)
        self._library.standin_observe(ctypes.c_long(allocator), observer)
        return told

    def create_pool(self, of: int, allocator: int) -> None:
        self._library.standin_create_pool(ctypes.c_long(of), ctypes.c_long(allocator))

    def capture(self, begin: bool, allocator: int = 0, pool: int = 9) -> None:
        self._library.standin_capture(ctypes.c_long(allocator), int(begin), ctypes.c_long(pool))

    def record_stream(self, tensor: torch.Tensor, stream: int, allocator: int = 0) -> None:
        self._library.standin_record_stream(
            ctypes.c_long(allocator), ctypes.c_void_p(tensor._cdata), ctypes.c_long(stream)
        )
