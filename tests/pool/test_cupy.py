"""CuPy's and RMM's allocators on the pool, over the fake driver.

CuPy is a stub with the two classes that the allocator makes, unless CuPy is installed: then its own
arrays are made as well. RMM is a stub.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import dtr_alloc
from dtr_alloc import Pool
from tests.fake_cuda.driver import PAGE, FakeCuda


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self.device_id = ptr, size, device_id
        self._owner = owner


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CuPy's current stream, and the number of its current device; the test may change both."""
    current = SimpleNamespace(ptr=0, device=0)
    stub = ModuleType("cupy")
    stub.__dict__["cuda"] = SimpleNamespace(
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        get_current_stream=lambda: current,
        runtime=SimpleNamespace(getDevice=lambda: current.device),
    )
    monkeypatch.setitem(sys.modules, "cupy", stub)
    return current


class ServesAll:
    """As `dtr_alloc.allocator` returns it: a pool for each device."""

    device = 0

    def __init__(self) -> None:
        self.pools = [Pool("16MiB", arena="cuda", device=device) for device in range(2)]

    def allocate(self, size: int, *, stream: int = 0, device: int | None = None) -> int:
        return self.pools[self.device if device is None else device].allocate(size, stream=stream)

    def free(self, address: int) -> None:
        (pool,) = (p for p in self.pools if address in [b.address for b in p.snapshot()])
        pool.free(address)

    def live(self) -> list[int]:
        return [pool.stats().live for pool in self.pools]


def make_pool() -> Pool:
    return Pool("16MiB", arena="cuda")


def test_memory_is_the_pools_until_its_last_holder_dies(
    cuda: FakeCuda, current: SimpleNamespace
) -> None:
    pool = make_pool()
    pointer = dtr_alloc.cupy_allocator(pool)(1000)
    assert (pointer.mem.size, pointer.mem.device_id) == (1000, 0)
    assert pool.stats().live == 1024
    assert [b.address for b in pool.snapshot() if not b.free] == [pointer.ptr]
    memory = pointer.mem
    del pointer
    assert pool.stats().live == 1024
    del memory
    gc.collect()
    assert pool.stats().live == 0
    pool.check()


def test_a_budget_bounds_cupy(cuda: FakeCuda, current: SimpleNamespace) -> None:
    pool = make_pool()
    allocate = dtr_alloc.cupy_allocator(pool)
    held = allocate(16 << 20)
    with pytest.raises(torch.OutOfMemoryError, match="pool is full: 512 B asked"):
        allocate(512)
    del held
    assert allocate(512).mem.size == 512


def test_zero_bytes_are_a_block_of_their_own(cuda: FakeCuda, current: SimpleNamespace) -> None:
    pool = make_pool()
    allocate = dtr_alloc.cupy_allocator(pool)
    first, second = allocate(0), allocate(0)
    assert first.ptr != second.ptr


def test_another_stream_waits_for_the_work_of_the_one_that_freed(
    cuda: FakeCuda, current: SimpleNamespace
) -> None:
    pool = make_pool()
    one, other = cuda.stream(), cuda.stream()
    cuda.manual()
    allocate = dtr_alloc.cupy_allocator(pool)
    current.ptr = one
    first = allocate(16 << 20)
    cuda.write(first.ptr, PAGE, 1, one)
    cuda.expect(first.ptr, PAGE, 1, one)
    del first
    current.ptr = other
    second = allocate(16 << 20)
    cuda.write(second.ptr, PAGE, 2, other)
    cuda.drain(other)
    cuda.finish()
    assert cuda.faults() == []
    assert pool.stats().stream_waits == 1
    del second
    cuda.destroy_stream(one)


def test_memory_of_a_pool_is_on_the_pools_device(cuda: FakeCuda, current: SimpleNamespace) -> None:
    pool = Pool("16MiB", arena="cuda", device=1)
    assert dtr_alloc.cupy_allocator(pool)(1).mem.device_id == 1
    assert dtr_alloc.cupy_allocator(pool, device=1)(1).mem.device_id == 1


@pytest.mark.parametrize("make", [dtr_alloc.cupy_allocator, dtr_alloc.rmm_resource])
def test_a_pool_on_another_device_than_the_one_named_is_refused(
    cuda: FakeCuda, make: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=r"^device 1 with a pool on device 0: .*, device=1\)$"):
        make(make_pool(), device=1)


def test_an_allocator_serves_the_device_that_is_current_at_each_request(
    cuda: FakeCuda, current: SimpleNamespace
) -> None:
    source = ServesAll()
    allocate = dtr_alloc.cupy_allocator(source)
    for current.device in (1, 0):
        pointer = allocate(512)
        assert pointer.mem.device_id == current.device
        assert source.live()[current.device] == 512
        assert sum(source.live()) == 512
        del pointer
    assert source.live() == [0, 0]


def test_an_allocator_serves_the_device_that_was_named(
    cuda: FakeCuda, current: SimpleNamespace
) -> None:
    source = ServesAll()
    pointer = dtr_alloc.cupy_allocator(source, device=1)(512)
    assert pointer.mem.device_id == 1
    assert source.live() == [0, 512]


@pytest.mark.parametrize("make", [dtr_alloc.cupy_allocator, dtr_alloc.rmm_resource])
def test_a_pool_that_cannot_serve_is_refused(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match='memory is "host", which CuPy cannot use'):
        make(Pool("1MiB"))
    with pytest.raises(TypeError, match="'8GiB' is no pool"):
        make("8GiB")


@pytest.fixture
def rmm(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The functions that RMM was given, two for each resource."""
    made: list[Any] = []
    stub = ModuleType("rmm")

    def resource(*functions: Any) -> Any:
        made.append(functions)
        return functions

    stub.__dict__["mr"] = SimpleNamespace(CallbackMemoryResource=resource)
    monkeypatch.setitem(sys.modules, "rmm", stub)
    yield made
    made.clear()  # They hold pools.


def test_rmm_gets_two_callables(cuda: FakeCuda, rmm: list[Any]) -> None:
    pool = make_pool()
    allocate, deallocate = dtr_alloc.rmm_resource(pool)
    assert rmm == [(allocate, deallocate)]

    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0

    for stream in (None, 0, Stream()):
        address = allocate(4096, stream)
        assert pool.stats().live == 4096
        deallocate(address, 4096, stream)
    assert pool.stats().live == 0


def test_a_resource_of_rmms_is_of_the_device_that_is_named_or_was_torchs_current_one(
    cuda: FakeCuda, rmm: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ServesAll()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    named, current = dtr_alloc.rmm_resource(source, device=0), dtr_alloc.rmm_resource(source)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for (allocate, deallocate), expected in ((named, [512, 0]), (current, [0, 512])):
        address = allocate(512)
        assert source.live() == expected
        deallocate(address, 512)


def test_cupys_own_arrays_lie_in_the_pool(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=0))
    with cupy.cuda.using_allocator(dtr_alloc.cupy_allocator(pool)):
        array = cupy.empty((256, 1024), dtype="float32")
        view = array.reshape(-1)[1024:].T
    assert pool.stats().live == 1 << 20
    assert view.data.ptr == array.data.ptr + 4096
    del array
    assert pool.stats().live == 1 << 20
    del view
    gc.collect()
    assert pool.stats().live == 0
