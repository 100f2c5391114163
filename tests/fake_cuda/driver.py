"""The fake driver for Python: built once with g++, steered by name, its streams given work."""

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = 2 << 20
SCORER_CALLS = [
    *("cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemHostGetDevicePointer_v2"),
    *("cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel"),
    *("cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamSynchronize"),
]
"""That nobody but the device's scorer makes."""
COUNTS = (
    *("handles", "allocations", "mappings", "reservations", "events", "contexts", "current"),
    *("registered", "modules"),
)


def build(folder: Path) -> str:
    library = str(folder / "libfakecuda.so")
    source = Path(__file__).with_name("fake_cuda.cpp")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT}"]
    subprocess.run(["g++", *flags, str(source), "-o", library], check=True)
    return library


class DriverError(Exception):
    pass


class FakeCuda:
    """All streams are numbers as the driver's; addresses are those of the pool."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._library.fakecuda_fault.restype = ctypes.c_char_p
        for name in ("count", "calls", "faults", "used", "queued", "pending_failures"):
            getattr(self._library, f"fakecuda_{name}").restype = ctypes.c_long
        self._library.fakecuda_time.restype = ctypes.c_int64
        self._library.fakecuda_reset()
        self._told = 0

    # The driver's own calls.

    def call(self, name: str, *arguments: object) -> None:
        code = self.code(name, *arguments)
        if code != 0:
            raise DriverError(f"{name}: {code}")

    def code(self, name: str, *arguments: object) -> int:
        """The driver's answer. Ints become 64 bits, which every integer register takes."""
        wide = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self._library, name)(*wide))

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Calls that are neither counted nor turned down nor dropped."""
        self._library.fakecuda_aside(1)
        try:
            yield
        finally:
            self._library.fakecuda_aside(0)

    @contextmanager
    def current(self, device: int = 0) -> Iterator[None]:
        with self._aside():
            self.call("cuInit", 0)
            self.call("cuCtxPushCurrent_v2", device + 1)
        yield
        with self._aside():
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self) -> int:
        made = ctypes.c_void_p()
        with self.current(), self._aside():
            self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value or 0

    def destroy_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", stream)

    def order(self, first: int, then: int) -> None:
        """What `then` is given from now on comes after what `first` was given so far."""
        event = ctypes.c_void_p()
        with self.current(), self._aside():
            self.call("cuEventCreate", ctypes.byref(event), 2)
            self.call("cuEventRecord", event, first)
            self.call("cuStreamWaitEvent", then, event, 0)
            self.call("cuEventDestroy_v2", event)

    # Work for streams.

    def write(self, address: int, size: int, value: int, stream: int) -> None:
        self.call("cuMemsetD8Async", address, value, size, stream)

    def expect(self, address: int, size: int, value: int, stream: int) -> None:
        """Queues a read that must find `value` in every byte, else it is a fault."""
        self.call("fakecuda_expect", address, value, size, stream)

    def host_function(self, function: Callable[[], object]) -> None:
        """The next host call that waits for an event waits for it, too, in a thread of its own."""
        self._function = ctypes.CFUNCTYPE(None)(function)
        self._library.fakecuda_host_function(self._function)

    def manual(self, on: bool = True) -> None:
        self._library.fakecuda_manual(int(on))

    def event_takes(self, milliseconds: float) -> None:
        """What passes on the device's clock before each event is complete."""
        self._library.fakecuda_event_takes(ctypes.c_double(milliseconds))

    # Time. All figures are nanoseconds.

    def timed(self) -> None:
        """From now on time passes: calls take their latencies, and work what it is said to."""
        self._library.fakecuda_timed()

    def bare(self) -> None:
        """Pages have no memory: for more of them than a process can map."""
        self._library.fakecuda_bare()

    def latency(self, name: str, nanoseconds: int) -> None:
        self._library.fakecuda_latency(name.encode(), ctypes.c_int64(nanoseconds))

    def drains(self, name: str) -> None:
        """The call waits for all work, as some of a real driver's may."""
        self._library.fakecuda_drains(name.encode())

    def host_works(self, nanoseconds: int) -> None:
        self._library.fakecuda_host_works(ctypes.c_int64(nanoseconds))

    def work(self, nanoseconds: int, stream: int = 0) -> None:
        self.call("fakecuda_work", stream, nanoseconds)

    def time(self, what: str) -> int:
        """The host's clock (`host`), of that in calls (`driver`) and waiting (`waited`); how long
        the device was `busy`, and `idle` between work, which is all done at `end`; how long the
        default stream waited for others, beyond the host (`stalled`)."""
        return int(self._library.fakecuda_time(what.encode()))

    def step(self, stream: int) -> bool:
        return bool(self.code("fakecuda_step", stream))

    def drain(self, stream: int) -> None:
        """Steps the stream until it is empty or waits for an event."""
        while self.step(stream):
            pass

    def queued(self, stream: int) -> int:
        return self.code("fakecuda_queued", stream)

    def finish(self) -> None:
        self._library.fakecuda_finish()

    def faults(self) -> list[str]:
        """Those since the last call. One that a test leaves fails it (tests/conftest.py)."""
        new = range(self._told, self._library.fakecuda_faults())
        self._told = new.stop
        return [self._library.fakecuda_fault(ctypes.c_long(i)).decode() for i in new]

    def bytes_at(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    # Steering and counting.

    def fail(self, name: str, after: int = 0, code: int = 700) -> None:
        """Call number `after` from now answers `code`; 0 is the next."""
        self._library.fakecuda_fail(name.encode(), ctypes.c_long(after), code)

    def pending_failures(self) -> int:
        return int(self._library.fakecuda_pending_failures())

    def drop(self, name: str) -> None:
        """From now on the call answers success and does nothing: a planted bug."""
        self._library.fakecuda_drop(name.encode())

    def calls(self, name: str) -> int:
        return int(self._library.fakecuda_calls(name.encode()))

    def set_capacity(self, size: int, device: int = 0) -> None:
        self._library.fakecuda_capacity(device, ctypes.c_size_t(size))

    def lacks(self, attribute: int) -> None:
        """The devices answer no to a CU_DEVICE_ATTRIBUTE."""
        self._library.fakecuda_lacks(attribute)

    def set_others(self, size: int, device: int = 0) -> None:
        self._library.fakecuda_others(device, ctypes.c_size_t(size))

    def used(self, device: int = 0) -> int:
        return int(self._library.fakecuda_used(device))

    def count(self, what: str) -> int:
        return int(self._library.fakecuda_count(what.encode()))

    def held(self) -> dict[str, int]:
        counts = {what: self.count(what) for what in COUNTS}
        return {what: count for what, count in counts.items() if count}
