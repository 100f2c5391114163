"""What each call of the CUDA driver costs that the pool makes: for a page, an event, a context.

Moving a page is mapping it at a second address and unmapping the first. Whether that is cheaper
than computing anew depends on prices that nobody publishes for this card: they are measured here,
through the driver itself, for runs of several lengths, on an idle device and while a kernel runs,
and with one call a page against one for the whole run. A call that waits for the kernel shows too.

    python perf/gpu/driver_calls.py --out calls.json

DTR_ALLOC_LIBCUDA names another driver, such as that of the tests; without a GPU there is no kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measurement import write_json

PAGE = 2 << 20
RUNS = (1, 16, 64, 256)
KERNEL_CYCLES = 400_000_000  # Some fifth of a second.
cuda: Any = torch.cuda  # Its functions have no types.
u64, size_t = ctypes.c_uint64, ctypes.c_size_t


class Prop(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of a device."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", u64 * 2),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (
        ("location_type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("flags", ctypes.c_int),
    )


class DriverError(RuntimeError):
    """A call was turned down."""


class Driver:
    """The driver with its primary context current, for a `with`."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("DTR_ALLOC_LIBCUDA") or "libcuda.so.1")
        self._device, self.context = ctypes.c_int(), ctypes.c_void_p()

    def __enter__(self) -> Driver:
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(self._device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self._device)
        self("cuCtxPushCurrent_v2", self.context)
        return self

    def __exit__(self, *error: object) -> None:
        self("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self("cuDevicePrimaryCtxRelease_v2", self._device)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Ints are passed as 64 bits, which every integer register takes.

        Raises:
            DriverError: The driver answered anything but success.
        """
        wide = [u64(a) if isinstance(a, int) else a for a in arguments]
        if code := getattr(self.library, name)(*wide):
            raise DriverError(f"{name}: {code}")


class Pages:
    """Physical pages, and addresses for twice as many."""

    def __init__(self, driver: Driver, count: int) -> None:
        self.driver, self.count = driver, count
        base = u64()
        driver("cuMemAddressReserve", ctypes.byref(base), 2 * count * PAGE, 0, 0, 0)
        self.base = base.value
        self.handles: list[int] = []

    def create(self, size: int = PAGE) -> int:
        handle, prop = u64(), Prop(1, 0, 1, 0)
        self.driver("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), 0)
        return handle.value

    def at(self, page: int) -> int:
        return self.base + page * PAGE

    def map(self, first: int, count: int) -> None:
        for i in range(count):
            self.driver("cuMemMap", self.at(first + i), PAGE, 0, self.handles[i], 0)

    def give_access(self, first: int, count: int) -> None:
        access = Access(1, 0, 3)
        size = count * PAGE
        self.driver("cuMemSetAccess", self.at(first), size, ctypes.byref(access), size_t(1))

    def unmap_each(self, first: int, count: int) -> None:
        for i in range(count):
            self.driver("cuMemUnmap", self.at(first + i), PAGE)

    def unmap_all(self, first: int, count: int) -> None:
        self.driver("cuMemUnmap", self.at(first), count * PAGE)

    def release(self) -> None:
        for handle in self.handles:
            self.driver("cuMemRelease", handle)
        self.handles = []

    def close(self) -> None:
        self.driver("cuMemAddressFree", self.base, 2 * self.count * PAGE)


def microseconds(call: Callable[[], object], count: int = 1) -> float:
    """Of each of the `count` things that one call does."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) / count * 1e6


def again_and_again(call: Callable[[], object], loops: int) -> float:
    """Microseconds of one call among many."""
    begin = time.perf_counter()
    for _ in range(loops):
        call()
    return round((time.perf_counter() - begin) / loops * 1e6, 3)


def of_pages(pages: Pages, count: int, prepare: Callable[[], None], repeat: int) -> dict[str, Any]:
    """Microseconds a page: the median, since the least would hide what a busy device adds."""
    seen: dict[str, list[float]] = {}
    for _ in range(repeat):
        prepare()
        # In this order: each finds what the one before has left.
        for name, call in {
            "map": lambda: pages.map(0, count),
            "give access": lambda: pages.give_access(0, count),
            "map at a second address": lambda: pages.map(pages.count, count),
            "give access at a second address": lambda: pages.give_access(pages.count, count),
            "unmap, a call a page": lambda: pages.unmap_each(0, count),
            "unmap, one call": lambda: pages.unmap_all(pages.count, count),
        }.items():
            seen.setdefault(name, []).append(microseconds(call, count))
        seen.setdefault("kernel still runs", []).append(float(kernel_runs()))
    return {name: round(statistics.median(values), 3) for name, values in seen.items()}


def of_large_pages(pages: Pages, count: int, repeat: int) -> dict[str, Any]:
    """One physical allocation of `count` pages; microseconds for each page of it."""
    seen: dict[str, list[float]] = {}
    access = Access(1, 0, 3)
    driver, at, size = pages.driver, pages.at(0), count * PAGE
    held: list[int] = []
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: held.append(pages.create(size)),
        "map": lambda: driver("cuMemMap", at, size, 0, held[0], 0),
        "give access": lambda: driver("cuMemSetAccess", at, size, ctypes.byref(access), size_t(1)),
        "unmap": lambda: driver("cuMemUnmap", at, size),
        "release": lambda: driver("cuMemRelease", held.pop()),
    }
    for _ in range(repeat):
        for name, call in calls.items():
            seen.setdefault(name, []).append(microseconds(call, count))
    return {name: round(statistics.median(values), 3) for name, values in seen.items()}


def of_small_calls(driver: Driver, loops: int) -> dict[str, float]:
    """Microseconds a call, the least of three rounds; the cost of calling from Python is beside."""
    event, popped, mode, free = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(2), size_t()
    driver("cuEventCreate", ctypes.byref(event), 2)
    version = ctypes.c_int()

    def push_and_pop() -> None:
        driver("cuCtxPushCurrent_v2", driver.context)
        driver("cuCtxPopCurrent_v2", ctypes.byref(popped))

    def make_and_destroy() -> None:
        made = ctypes.c_void_p()
        driver("cuEventCreate", ctypes.byref(made), 2)
        driver("cuEventDestroy_v2", made)

    calls: dict[str, Callable[[], None]] = {
        "nothing but Python's own (cuDriverGetVersion)": lambda: driver(
            "cuDriverGetVersion", ctypes.byref(version)
        ),
        "record an event": lambda: driver("cuEventRecord", event, 0),
        "wait in a stream": lambda: driver("cuStreamWaitEvent", 0, event, 0),
        "wait on the host, complete": lambda: driver("cuEventSynchronize", event),
        "query an event, complete": lambda: driver("cuEventQuery", event),
        "create and destroy an event": make_and_destroy,
        "push and pop a context": push_and_pop,
        "current context": lambda: driver("cuCtxGetCurrent", ctypes.byref(popped)),
        "exchange the capture mode": lambda: driver(
            "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)
        ),
        "free bytes of the device": lambda: driver(
            "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(size_t())
        ),
    }
    found = {}
    for name, call in calls.items():
        call()
        found[name] = min(again_and_again(call, loops) for _ in range(3))
    if have_kernels():
        busy()
        driver("cuEventRecord", event, 0)
        query = driver.library.cuEventQuery  # It answers "not ready", which is no error here.
        found["query an event, not complete"] = again_and_again(lambda: query(event), loops)
        record = calls["record an event"]
        found["record an event under a kernel"] = again_and_again(record, loops)
        idle()
    driver("cuEventDestroy_v2", event)
    return found


def have_kernels() -> bool:
    return torch.cuda.is_available() and "DTR_ALLOC_LIBCUDA" not in os.environ


def kernel_runs() -> bool:
    return have_kernels() and not torch.cuda.current_stream().query()


def idle() -> None:
    if have_kernels():
        torch.cuda.synchronize()


def busy() -> None:
    idle()
    cuda._sleep(KERNEL_CYCLES)


def measure(
    runs: tuple[int, ...], repeat: int, loops: int, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Everything, by name; `tell` is given what there is after each group."""
    most = max(runs)
    found: dict[str, Any] = {}
    states = {"idle": idle, "under a kernel": busy} if have_kernels() else {"idle": idle}
    with Driver() as driver:
        found["calls"] = of_small_calls(driver, loops)
        tell(found)
        pages = Pages(driver, most)
        made = microseconds(lambda: pages.handles.extend(pages.create() for _ in range(most)), most)
        found["a page"] = {"create": round(made, 3)}
        for state, prepare in states.items():
            for count in runs:
                found[f"{state}, {count} pages"] = of_pages(pages, count, prepare, repeat)
                tell(found)
        idle()
        found["a page"]["release"] = round(microseconds(pages.release, most), 3)
        for count in runs:
            found[f"one allocation of {count} pages"] = of_large_pages(pages, count, repeat)
        pages.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=list(RUNS), help="pages at once")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--loops", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if have_kernels():
        cuda.init()
        cuda._sleep(1)

    def tell(found: dict[str, Any]) -> None:
        write_json(arguments.out, {"microseconds": found, "unfinished": f"after {[*found][-1]}"})

    found = measure(tuple(arguments.runs), arguments.repeat, arguments.loops, tell)
    write_json(arguments.out, {"microseconds": found})


if __name__ == "__main__":
    main()
