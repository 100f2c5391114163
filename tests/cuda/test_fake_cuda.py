"""The fake driver: its rules are cuda.h's, and what breaks them is seen."""

import ctypes
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.fake_cuda.driver import PAGE, DriverError, FakeCuda

INVALID, ILLEGAL_ADDRESS = 1, 700


class Memory:
    """The calls for memory, with what they need filled in; cleans up after itself."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.handles: list[int] = []
        self.mapped: dict[int, int] = {}
        cuda.call("cuInit", 0)
        self.range = self.reserve(8 * PAGE)

    def reserve(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.cuda.call("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
        return address.value

    def create(self, size: int = PAGE) -> int:
        handle = ctypes.c_uint64()
        prop = struct.pack("4i16x", 1, 0, 1, 0)  # Pinned, not shared, on device 0.
        self.cuda.call("cuMemCreate", ctypes.byref(handle), size, prop, 0)
        self.handles.append(handle.value)
        return handle.value

    def release(self, handle: int) -> None:
        self.cuda.call("cuMemRelease", handle)
        self.handles.remove(handle)

    def free(self, address: int, size: int) -> None:
        self.cuda.call("cuMemAddressFree", address, size)

    def map(
        self, page: int, handle: int, size: int = PAGE, offset: int = 0, access: bool = True
    ) -> int:
        address = self.range + page * PAGE
        self.cuda.call("cuMemMap", address, size, offset, handle, 0)
        self.mapped[address] = size
        if access:
            on_device_0 = struct.pack("3i", 1, 0, 3)  # To read and write.
            self.cuda.call("cuMemSetAccess", address, size, on_device_0, 1)
        return address

    def unmap(self, address: int, size: int = PAGE) -> None:
        self.cuda.call("cuMemUnmap", address, size)
        del self.mapped[address]

    def write(self, address: int, data: bytes) -> None:
        self.cuda.call("cuMemcpyHtoD_v2", address, data, len(data))

    def close(self) -> None:
        for address, size in list(self.mapped.items()):
            self.unmap(address, size)
        for handle in list(self.handles):
            self.release(handle)
        self.free(self.range, 8 * PAGE)


@pytest.fixture
def memory(cuda: FakeCuda) -> Iterator[Memory]:
    made = Memory(cuda)
    yield made
    made.close()


def refused(code: int) -> "pytest.RaisesExc[DriverError]":
    return pytest.raises(DriverError, match=f": {code}$")


def test_every_call_needs_the_driver_to_be_initialized(cuda: FakeCuda) -> None:
    count = ctypes.c_int()
    assert cuda.code("cuDeviceGetCount", ctypes.byref(count)) == 3
    cuda.call("cuInit", 0)
    assert cuda.code("cuDeviceGetCount", ctypes.byref(count)) == 0
    assert count.value == 2


def test_events_and_streams_need_a_context(cuda: FakeCuda) -> None:
    cuda.call("cuInit", 0)
    made = ctypes.c_void_p()
    assert cuda.code("cuStreamCreate", ctypes.byref(made), 1) == 201
    assert cuda.code("cuEventCreate", ctypes.byref(made), 2) == 201


@pytest.mark.parametrize(
    "breach",
    [
        pytest.param(lambda m: m.free(m.range, PAGE), id="the begin of a reservation is freed"),
        pytest.param(lambda m: m.free(m.range + PAGE, 7 * PAGE), id="the end of one"),
        pytest.param(lambda m: m.free(m.range, 8 * PAGE), id="one that has a mapping"),
        pytest.param(lambda m: m.map(-1, m.create()), id="mapped before a reservation"),
        pytest.param(lambda m: m.map(8, m.create()), id="mapped behind it"),
        pytest.param(lambda m: m.map(2, m.create()), id="over the begin of a mapping"),
        pytest.param(lambda m: m.map(3, m.create()), id="over its end"),
        pytest.param(lambda m: m.map(1, m.create(2 * PAGE), 2 * PAGE), id="over a part of it"),
        pytest.param(lambda m: m.map(0, m.create(2 * PAGE)), id="less than an allocation"),
        pytest.param(lambda m: m.map(0, m.create(2 * PAGE), offset=PAGE), id="its second half"),
        pytest.param(lambda m: m.unmap(m.range + 2 * PAGE), id="a part of a mapping unmapped"),
        pytest.param(lambda m: m.unmap(m.range), id="unmapped where none is"),
    ],
)
def test_what_breaks_a_rule_is_refused(memory: Memory, breach: Callable[[Memory], object]) -> None:
    memory.map(2, memory.create(2 * PAGE), 2 * PAGE)
    with refused(INVALID):
        breach(memory)


def test_a_new_mapping_has_no_access(cuda: FakeCuda, memory: Memory) -> None:
    handle = memory.create()
    address = memory.map(0, handle, access=False)
    with refused(ILLEGAL_ADDRESS):
        memory.write(address, b"x")
    memory.unmap(address)
    address = memory.map(0, handle)
    memory.write(address, b"x")
    memory.unmap(address)
    memory.map(0, handle, access=False)
    with refused(ILLEGAL_ADDRESS):
        cuda.bytes_at(address, 1)


def test_one_allocation_at_two_addresses_is_the_same_memory(cuda: FakeCuda, memory: Memory) -> None:
    handle = memory.create()
    first, second = memory.map(0, handle), memory.map(5, handle)
    memory.write(first + 1000, b"both")
    assert cuda.bytes_at(second + 1000, 4) == b"both"
    assert cuda.used() == PAGE


def test_memory_lives_while_it_has_a_handle_or_a_mapping(cuda: FakeCuda, memory: Memory) -> None:
    handle = memory.create()
    address = memory.map(0, handle)
    memory.write(address, b"still here")
    memory.release(handle)
    assert (cuda.used(), cuda.count("handles")) == (PAGE, 0)
    assert cuda.bytes_at(address, 10) == b"still here"
    memory.unmap(address)
    assert cuda.used() == 0
    with refused(INVALID):
        cuda.call("cuMemRelease", handle)


def test_a_call_fails_when_it_is_told_to_and_once(cuda: FakeCuda, memory: Memory) -> None:
    cuda.fail("cuMemCreate", after=1, code=999)
    memory.create()
    with refused(999):
        memory.create()
    memory.create()
    assert (cuda.calls("cuMemCreate"), cuda.pending_failures()) == (3, 0)
    assert cuda.used() == 2 * PAGE


@pytest.fixture
def page(cuda: FakeCuda, memory: Memory) -> int:
    return memory.map(0, memory.create())


def test_in_manual_mode_work_waits_for_a_step_and_keeps_order(cuda: FakeCuda, page: int) -> None:
    a, b = cuda.stream(), cuda.stream()
    cuda.manual()
    cuda.write(page, 100, 1, a)
    cuda.write(page, 100, 2, a)
    cuda.write(page, 100, 3, b)
    assert cuda.bytes_at(page, 1) == b"\0"
    for stream, expected in ((a, 1), (b, 3), (a, 2)):
        assert cuda.step(stream)
        assert cuda.bytes_at(page, 100) == bytes([expected]) * 100
    assert not cuda.step(a)


def test_a_stream_stands_still_until_its_event_is_complete(cuda: FakeCuda, page: int) -> None:
    a, b = cuda.stream(), cuda.stream()
    cuda.manual()
    cuda.write(page, 1, 1, a)
    cuda.order(a, b)
    cuda.write(page, 1, 2, b)
    cuda.drain(b)
    assert cuda.queued(b) == 2
    cuda.step(a)
    cuda.drain(b)
    assert cuda.queued(b) == 2
    cuda.step(a)
    cuda.drain(b)
    assert (cuda.queued(b), cuda.bytes_at(page, 1)) == (0, b"\2")


def test_a_wait_is_for_where_the_event_was_when_it_was_called(cuda: FakeCuda, page: int) -> None:
    a, b, c = cuda.stream(), cuda.stream(), cuda.stream()
    cuda.manual()
    event = ctypes.c_void_p()
    with cuda.current():
        cuda.call("cuEventCreate", ctypes.byref(event), 2)
    cuda.call("cuEventRecord", event, a)
    cuda.call("cuStreamWaitEvent", b, event, 0)
    cuda.write(page, 1, 1, c)
    cuda.call("cuEventRecord", event, c)
    cuda.call("cuEventDestroy_v2", event)
    cuda.drain(a)
    cuda.drain(b)
    assert (cuda.queued(b), cuda.queued(c)) == (0, 2)
    cuda.finish()


def test_waiting_on_the_host_runs_what_it_must_and_no_more(cuda: FakeCuda, page: int) -> None:
    a, b, c = cuda.stream(), cuda.stream(), cuda.stream()
    cuda.manual()
    for stream in (a, b, c):
        cuda.write(page, 1, 1, stream)
    cuda.order(a, b)
    cuda.write(page, 1, 2, a)
    cuda.call("cuStreamSynchronize", b)
    assert [cuda.queued(stream) for stream in (a, b, c)] == [1, 0, 1]
    cuda.finish()
    assert [cuda.queued(stream) for stream in (a, b, c)] == [0, 0, 0]


def test_work_of_a_destroyed_stream_goes_on_and_its_name_is_free(cuda: FakeCuda, page: int) -> None:
    stream = cuda.stream()
    cuda.manual()
    cuda.write(page, 1, 1, stream)
    cuda.destroy_stream(stream)
    assert cuda.stream() == stream
    assert cuda.queued(stream) == 0
    cuda.finish()
    assert cuda.bytes_at(page, 1) == b"\1"
