"""The pool on CUDA memory, through the fake driver: pages, moves, and every call failing once."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dtr_alloc import _core
from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, ROOT, SCORER_CALLS, FakeCuda

MIB = 1 << 20


def alternating(cuda: FakeCuda) -> tuple[Pool, list[int]]:
    """A pool of eight pages, each a block that holds its number; every second one is freed."""
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(PAGE) for _ in range(8)]
    for number, address in enumerate(blocks):
        cuda.write(address, PAGE, number, 0)
    for address in blocks[::2]:
        pool.free(address)
    return pool, blocks


# The driver


def test_without_a_driver_the_error_says_so_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeError) as error:
        Pool("1 GiB", "cuda")
    assert str(error.value) == (
        "no CUDA driver: /nowhere/libcuda.so.1 could not be opened: /nowhere/libcuda.so.1: cannot "
        "open shared object file: No such file or directory; on CPU use "
        'dtr_alloc.rematerialize(..., device="cpu")'
    )


def test_a_library_that_is_no_driver_is_named_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", _core.__file__)
    with pytest.raises(
        RuntimeError, match=r"^the CUDA driver .*_core.* has no cuInit: it is older"
    ):
        Pool("1 GiB", "cuda")


def test_a_machine_without_a_device_is_told_in_the_driver_s_words(cuda: FakeCuda) -> None:
    cuda.fail("cuInit", code=100)
    with pytest.raises(RuntimeError, match=r"^cuInit failed: CUDA_ERROR_NO_DEVICE$"):
        Pool("1 GiB", "cuda")


@pytest.mark.parametrize("device", [-1, 2])
def test_a_device_that_is_not_there_is_named(cuda: FakeCuda, device: int) -> None:
    with pytest.raises(ValueError, match=f"no CUDA device {device}: this process sees 2"):
        Pool("1 GiB", "cuda", device=device)


def test_an_error_that_the_driver_has_no_name_for_is_a_number(cuda: FakeCuda) -> None:
    cuda.fail("cuMemAddressReserve", code=9999)
    with pytest.raises(RuntimeError, match=r"^cuMemAddressReserve failed: CUDA error 9999$"):
        Pool("1 GiB", "cuda")


HEADER = ROOT / "dtr_alloc/csrc/cuda/driver.h"


def compile_declarations(root: Path) -> "subprocess.CompletedProcess[str]":
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if not (toolkit / "cuda.h").exists():
        pytest.skip("no cuda.h on this machine")
    source = ROOT / "tests/fake_cuda/declarations.cpp"
    return subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", f"-I{root}", f"-isystem{toolkit}", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_our_declarations_agree_with_the_toolkit_s() -> None:
    done = compile_declarations(ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("CALL(cuEventDestroy_v2,", "CALL(cuEventDestroy,"),
        ("CALL(cuMemUnmap, Pointer,", "CALL(cuMemUnmap, int,"),
        ("unsigned short usage", "unsigned usage"),
        ("kNotReady = 600", "kNotReady = 601"),
    ],
)
def test_a_wrong_declaration_does_not_compile(tmp_path: Path, right: str, wrong: str) -> None:
    text = HEADER.read_text()
    assert right in text
    header = tmp_path / "dtr_alloc/csrc/cuda/driver.h"
    header.parent.mkdir(parents=True)
    header.write_text(text.replace(right, wrong))
    assert compile_declarations(tmp_path).returncode != 0


# Pages

POSIX_HANDLES, RDMA_PAGES = 103, 110  # Device attributes.


@pytest.mark.parametrize(
    ("options", "rdma", "exportable"),
    [
        ({}, 0, 0),
        ({"rdma": True}, 8, 0),
        ({"exportable": True}, 0, 8),
        ({"rdma": True, "exportable": True}, 8, 8),
    ],
)
def test_pages_are_made_for_what_was_asked(
    cuda: FakeCuda, options: dict[str, Any], rdma: int, exportable: int
) -> None:
    """Those of a later request and those that take the place of released ones, too."""
    pool = Pool(8 * PAGE, "cuda", **options)
    blocks = [pool.allocate(2 * PAGE) for _ in range(4)]
    pool.free(blocks[0])
    pool.trim()
    pool.allocate(2 * PAGE)
    assert (cuda.count("rdma"), cuda.count("exportable")) == (rdma, exportable)


@pytest.mark.parametrize(
    ("attribute", "option", "what"),
    [
        (RDMA_PAGES, "rdma", r"that a network card can reach \(GPUDirect RDMA\)"),
        (POSIX_HANDLES, "exportable", "that a file descriptor can name"),
    ],
)
def test_a_device_that_makes_no_such_pages_is_an_error_before_anything_is_reserved(
    cuda: FakeCuda, attribute: int, option: str, what: str
) -> None:
    cuda.lacks(attribute)
    with pytest.raises(
        RuntimeError, match=f"^CUDA device 0 makes no pages {what}: leave {option}=True out$"
    ):
        Pool(8 * PAGE, "cuda", **{option: True})  # type: ignore[arg-type]
    assert cuda.calls("cuMemAddressReserve") == 0
    assert cuda.held() == {}
    other = {"rdma": "exportable", "exportable": "rdma"}[option]
    pool = Pool(8 * PAGE, "cuda", **{other: True})  # type: ignore[arg-type]
    pool.allocate(PAGE)
    assert (cuda.count(option), cuda.count(other)) == (0, 1)


@pytest.mark.parametrize("arena", ["host", "virtual"])
def test_only_a_device_s_pages_are_made_for_other_uses(arena: Any) -> None:
    with pytest.raises(
        ValueError, match=f'rdma and exportable are of arena "cuda", not of "{arena}"'
    ):
        Pool(PAGE, arena, rdma=True)


def test_a_new_pool_holds_addresses_and_no_memory(cuda: FakeCuda) -> None:
    pool = Pool("1 GiB", "cuda")
    assert (pool.arena, pool.budget, pool.address_space) == ("cuda", 1 << 30, (2 << 30) + 64 * MIB)
    assert (cuda.used(), cuda.count("reservations")) == (0, 1)
    begin = pool.snapshot()[0].address
    assert begin % (1 << 30) == 0
    assert _core.Pool.is_owned(begin)


def test_pools_never_share_a_gibibyte_of_addresses(cuda: FakeCuda) -> None:
    pools = [Pool(PAGE, arena) for arena in ("cuda", "host", "cuda", "virtual", "cuda")]
    assert len({pool.snapshot()[0].address >> 30 for pool in pools}) == 5


def test_pages_come_with_the_blocks_that_need_them(cuda: FakeCuda) -> None:
    pool = Pool(16 * PAGE, "cuda")
    first = pool.allocate(1)
    assert (cuda.used(), pool.stats().committed) == (PAGE, PAGE)
    pool.allocate(PAGE - 512)
    assert cuda.used() == PAGE
    last = pool.allocate(2 * PAGE + 512)
    assert cuda.used() == pool.stats().committed == 4 * PAGE
    cuda.write(first, 1, 1, 0)
    cuda.write(last, 2 * PAGE + 512, 2, 0)
    assert cuda.faults() == []
    pool.check()


def test_the_pages_of_holes_stay_until_they_are_trimmed(cuda: FakeCuda) -> None:
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(PAGE) for _ in range(4)]
    for address in blocks[:3]:
        pool.free(address)
    assert cuda.used() == 4 * PAGE
    assert pool.trim() == 3 * PAGE
    assert (cuda.used(), cuda.count("mappings"), cuda.count("handles")) == (PAGE, 1, 1)
    pool.check()


def test_memory_is_that_of_the_device_asked_for(cuda: FakeCuda) -> None:
    pools = [Pool(8 * PAGE, "cuda", device=device) for device in (0, 1)]
    pools[0].allocate(3 * PAGE)
    pools[1].allocate(5 * PAGE)
    assert [cuda.used(device) for device in (0, 1)] == [3 * PAGE, 5 * PAGE]
    assert cuda.count("contexts") == 2


def test_a_pool_leaves_the_thread_s_context_as_it_was(cuda: FakeCuda) -> None:
    with cuda.current(1):
        pool = Pool(8 * PAGE, "cuda", device=0)
        pool.free(pool.allocate(PAGE))
        pool.trim()
        assert cuda.count("current") == 1
    assert cuda.count("current") == 0


def test_a_dropped_pool_gives_everything_back_with_its_live_blocks(cuda: FakeCuda) -> None:
    pool = Pool(8 * PAGE, "cuda")
    for _ in range(3):
        pool.allocate(PAGE)
    begin = pool.snapshot()[0].address
    del pool
    assert cuda.held() == {}
    assert not _core.Pool.is_owned(begin)


# Moving pages


def test_remapping_keeps_contents_and_copies_nothing(cuda: FakeCuda) -> None:
    pool, blocks = alternating(cuda)
    created = cuda.calls("cuMemCreate")
    large = pool.allocate(3 * PAGE)
    assert large == blocks[0] + 8 * PAGE
    assert (pool.stats().remaps, pool.stats().committed, cuda.used()) == (1, 8 * PAGE, 8 * PAGE)
    assert cuda.calls("cuMemCreate") == created
    # The pages of three freed blocks, whole and with the contents they had.
    found = [cuda.bytes_at(large + i * PAGE, PAGE) for i in range(3)]
    assert all(len(set(page)) == 1 for page in (p[:512] + p[-512:] for p in found))
    assert {page[0] for page in found} < {0, 2, 4, 6}
    assert len({page[0] for page in found}) == 3
    for number in (1, 3, 5, 7):
        cuda.expect(blocks[number], PAGE, number, 0)
    assert cuda.faults() == []


def test_pages_that_moved_away_can_be_committed_again(cuda: FakeCuda) -> None:
    pool, blocks = alternating(cuda)
    large = pool.allocate(4 * PAGE)
    pool.free(large)
    assert pool.trim() == 4 * PAGE
    again = [pool.allocate(PAGE) for _ in range(4)]
    assert set(again) == set(blocks[::2])
    for address in again:
        cuda.write(address, PAGE, 9, 0)
    assert cuda.faults() == []
    assert cuda.used() == 8 * PAGE


# Memory that others hold


def test_memory_of_other_processes_is_respected_and_the_error_is_a_memory_error(
    cuda: FakeCuda,
) -> None:
    cuda.set_capacity(8 * PAGE)
    pool = Pool(8 * PAGE, "cuda")
    kept = pool.allocate(2 * PAGE)
    cuda.set_others(5 * PAGE)
    before = pool.snapshot()
    with pytest.raises(MemoryError, match=r"^cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY \(out"):
        pool.allocate(3 * PAGE)
    pool.check()
    assert pool.snapshot() == before
    assert (cuda.used(), pool.stats().live) == (2 * PAGE, 2 * PAGE)
    cuda.set_others(3 * PAGE)
    assert pool.allocate(3 * PAGE) == kept + 2 * PAGE
    pool.check()


def test_the_pool_s_own_free_pages_are_used_before_the_device_is_called_full(
    cuda: FakeCuda,
) -> None:
    pool, blocks = alternating(cuda)
    pool.allocate(4 * PAGE)  # Takes the pages of the four holes: the limit is the budget.
    wide = Pool(64 * PAGE, "cuda")
    mine = [wide.allocate(PAGE) for _ in range(6)]
    for address in mine[::2]:
        wide.free(address)
    cuda.set_capacity(cuda.used())
    created = cuda.used()
    large = wide.allocate(3 * PAGE)
    assert large == mine[5] + PAGE
    assert (wide.stats().remaps, cuda.used()) == (1, created)
    with pytest.raises(MemoryError):
        wide.allocate(PAGE)
    wide.check()
    assert len(blocks) == 8


def test_a_budget_above_the_device_s_memory_is_no_error_until_it_is_needed(cuda: FakeCuda) -> None:
    cuda.set_capacity(4 * PAGE)
    pool = Pool(16 * PAGE, "cuda")
    pool.allocate(4 * PAGE)
    with pytest.raises(MemoryError):
        pool.allocate(512)
    with pytest.raises(torch.OutOfMemoryError, match="pool is full"):
        pool.allocate(13 * PAGE)
    pool.check()


FORKING_PROGRAM = """
import os, signal
from dtr_alloc.pool import Pool

pool = Pool("16 MiB", "cuda")
pool.allocate(1000)
child = os.fork()
if child == 0:
    signal.alarm(10)
    try:
        pool.allocate(4 << 20)
    except RuntimeError as error:
        print(error, flush=True)
    pool.check()
    del pool
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
pool.allocate(4 << 20)
pool.check()
"""


def test_a_forked_child_is_refused_and_does_not_call_the_driver(cuda: FakeCuda) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING_PROGRAM],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "a CUDA pool cannot be used in a forked process, where CUDA does not work: start the "
        'process with "spawn"',
        "0",
    ], done.stderr


# Every call failing once


class Life:
    """A pool's whole life in steps, on streams that are stepped by hand. A step may fail; then the
    pool must be whole, and the next steps must work with what is there. Every block holds a value
    of its own, which the block's streams must find in it when it is freed."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.a, self.b = cuda.stream(), cuda.stream()
        self.failed: list[Exception] = []
        self.pool: Pool | None = None
        self.blocks: dict[int, tuple[int, int, int]] = {}
        self.next_value = 1

    def attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except (RuntimeError, MemoryError) as error:
            self.failed.append(error.with_traceback(None))  # It would keep the pool.
        if self.pool is not None:
            self.pool.check()

    def make(self) -> None:
        self.pool = Pool(8 * PAGE, "cuda")

    def allocate(self, pages: float, stream: int) -> None:
        assert self.pool is not None
        size = int(pages * PAGE)
        address = self.pool.allocate(size, stream=stream)
        value, self.next_value = self.next_value, self.next_value + 1
        self.cuda.write(address, size, value, stream)
        self.blocks[address] = (size, value, stream)

    def free(self, which: int, also_on: int | None = None) -> None:
        assert self.pool is not None
        address = sorted(self.blocks)[which % len(self.blocks)]
        size, value, stream = self.blocks.pop(address)
        self.cuda.expect(address, size, value, stream)
        if also_on is not None:
            self.cuda.order(stream, also_on)
            self.cuda.expect(address, size, value, also_on)
            self.pool.record_stream(address, also_on)
        self.pool.free(address)

    def live(self) -> None:
        a, b = self.a, self.b
        for _ in range(2):  # The second time nothing fails any more.
            if self.pool is None:
                self.attempt(self.make)
        pool = self.pool
        assert pool is not None
        for pages, stream in ((1, a), (1, a), (2, b), (1, a), (1.5, b), (0.5, a), (1, b)):
            self.attempt(partial(self.allocate, pages, stream))
        self.attempt(lambda: self.free(0))
        self.attempt(lambda: self.free(0, also_on=b))
        self.attempt(lambda: self.free(1))
        self.attempt(lambda: self.allocate(1, b))  # Waits for a.
        self.attempt(lambda: self.allocate(1.5, a))  # Waits for b.
        self.attempt(lambda: self.free(1))
        self.attempt(lambda: self.free(-1))
        self.attempt(lambda: self.allocate(3, a))  # Takes two pages from where b may still be.
        before = len(self.failed)
        self.attempt(pool.begin_quarantine)
        begun = len(self.failed) == before
        self.attempt(lambda: self.free(1))
        self.attempt(lambda: self.allocate(0.5, a))
        if begun:
            self.attempt(pool.end_quarantine)
        self.cuda.drain(b)
        self.attempt(pool.trim)
        self.attempt(lambda: self.allocate(1, b))
        self.attempt(lambda: pool.retire_stream(b))
        self.attempt(lambda: self.free(0, also_on=b))
        self.attempt(lambda: self.allocate(1, b))
        while self.blocks:
            self.free(0)
            pool.check()
        self.cuda.manual(False)
        self.cuda.finish()
        self.attempt(lambda: pool.trim())
        self.attempt(lambda: pool.trim())
        with suppress(MemoryError, RuntimeError):
            pool.free(pool.allocate(8 * PAGE, stream=a))
        pool.free(pool.allocate(8 * PAGE, stream=a))
        pool.check()
        assert pool.stats().live == 0


CALLS = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxGetCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
]


def live_with(cuda: FakeCuda, name: str = "", after: int = 0, code: int = 700) -> Life:
    """One life in which a call fails. Nothing may be left of it, and no stream may have found a
    wrong byte."""
    cuda.manual()
    life = Life(cuda)
    if name:
        cuda.fail(name, after, code)
    life.live()
    assert cuda.faults() == []
    life.pool = None
    left = cuda.held()
    assert left == {}, (name, after, left, life.failed)
    return life


def test_without_a_failure_every_step_works_and_every_call_is_made(cuda: FakeCuda) -> None:
    assert live_with(cuda).failed == []
    assert [name for name in CALLS if cuda.calls(name) == 0] == []


def declared_calls() -> set[str]:
    lines = HEADER.read_text().splitlines()
    return {line.split("CALL(")[1].split(",")[0] for line in lines if "  CALL(" in line}


def test_the_calls_that_fail_below_are_all_that_we_declare() -> None:
    texts = {"cuGetErrorName", "cuGetErrorString"}
    of_the_runtime = {"cuEventElapsedTime", "cuMemcpyDtoDAsync_v2", "cuDeviceTotalMem_v2"}
    assert set(CALLS) | texts | of_the_runtime | set(SCORER_CALLS) == declared_calls()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_once_leaves_the_pool_whole_and_nothing_behind(
    cuda: FakeCuda, name: str
) -> None:
    before = cuda.calls(name)
    live_with(cuda)
    times = cuda.calls(name) - before
    assert times > 0
    failed = 0
    for after in range(times):
        failed += len(live_with(cuda, name, after).failed)
        assert cuda.pending_failures() == 0
    # A release is tried again; a recording at a free, and the mode of capture, can be done without.
    quiet = ("Release", "Free", "Destroy", "Pop", "Exchange")
    assert failed > 0 or any(word in name for word in quiet)


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_memory_that_is_not_there_is_never_more_than_a_memory_error(
    cuda: FakeCuda, name: str
) -> None:
    for after in range(5):
        life = live_with(cuda, name, after, code=2)
        assert all(isinstance(error, MemoryError) for error in life.failed)


@pytest.mark.parametrize("undoing", ["cuMemUnmap", "cuMemRelease"])
@pytest.mark.parametrize("doing", ["cuMemMap", "cuMemSetAccess"])
@pytest.mark.parametrize("after", range(12))
def test_a_failure_while_a_failure_is_undone_is_made_good_later(
    cuda: FakeCuda, doing: str, undoing: str, after: int
) -> None:
    cuda.fail(undoing)
    live_with(cuda, doing, after)


def test_a_page_whose_unmapping_failed_is_still_the_pool_s(cuda: FakeCuda) -> None:
    pool, blocks = alternating(cuda)
    cuda.fail("cuMemUnmap", after=2)
    with pytest.raises(RuntimeError, match=r"^cuMemUnmap failed: CUDA_ERROR_ILLEGAL_ADDRESS$"):
        pool.trim()
    pool.check()
    assert pool.stats().committed == cuda.used() == 6 * PAGE
    for number in (1, 3, 5, 7):
        cuda.expect(blocks[number], PAGE, number, 0)
    assert cuda.faults() == []


@pytest.mark.parametrize("name", ["cuMemMap", "cuMemSetAccess", "cuMemUnmap"])
@pytest.mark.parametrize("hole", [1, 3], ids=["holes_of_one_page", "holes_of_three_pages"])
def test_a_move_that_fails_half_way_loses_no_page(cuda: FakeCuda, hole: int, name: str) -> None:
    """Of several pages, some may have moved when a call fails."""
    pool = Pool(8 * PAGE, "cuda")
    blocks = [pool.allocate(pages * PAGE) for pages in [hole, 1] * (8 // (hole + 1))]
    kept = blocks[1::2]
    for number, address in enumerate(kept):
        cuda.write(address, PAGE, number, 0)
    for address in blocks[::2]:
        pool.free(address)
    free = 8 - len(kept)
    for after in range(free):
        cuda.fail(name, after)
        with suppress(RuntimeError):
            pool.free(pool.allocate(free * PAGE))
        pool.check()
        assert pool.stats().committed == cuda.used() == 8 * PAGE
    large = pool.allocate(free * PAGE)
    cuda.write(large, free * PAGE, 200, 0)
    for number, address in enumerate(kept):
        cuda.expect(address, PAGE, number, 0)
    assert cuda.faults() == []
