"""The host's page-locked memory as a second tier of a device's, on the fake driver.

First the tier alone, whose streams a test runs in any order; then the runtime above it, with CPU
tensors on the fake device's memory.
"""

import gc
import random
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.pool import Pool
from dtr_alloc.runtime import swapping
from dtr_alloc.runtime._testing import instrumented
from dtr_alloc.runtime.scope import rematerialize
from dtr_alloc.runtime.session import Session
from tests.cuda_pools import start
from tests.exactness import run, same
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.swap_programs import KINDS, Make, adamw, equal, floor, make_model, train
from tests.test_session_on_cuda import batch_norms, checkpointed, mlp

COPIES = ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"]
AT_THE_START = {  # How often: a stream each way, and twelve copies to measure the bus.
    "cuMemHostRegister_v2": 1,
    "cuStreamCreateWithPriority": 2,
    "cuStreamSynchronize": 12,
}
SIZES = (16 << 10, 64 << 10, PAGE // 2, PAGE)  # The fake driver looks at every 16 KiB.


class Tiered:
    """Blocks of a pool that go to the tier and come back, with the value that each holds."""

    def __init__(self, cuda: FakeCuda, pages: int, bytes: int) -> None:
        self.blocks, *self.streams = start(cuda, pages)
        self.cuda = cuda
        self.tier = _core.HostTier(self.blocks.pool._core, 0, bytes)
        self.away: list[tuple[int, int, int]] = []
        self.begun: list[tuple[int, int, int, int]] = []

    def evict(self, address: int) -> bool:
        size, value, _ = self.blocks.held[address]
        room = self.tier.reserve(size)
        if room is None:
            return False
        self.tier.write(room, address, size)
        self.away.append((room, size, value))
        del self.blocks.held[address]
        self.blocks.pool.free(address)
        self.blocks.pool.check()
        return True

    def reload(self, at: int, reader: int, keep: bool = False) -> int:
        """`keep`: the tier keeps the bytes as well."""
        room, size, value = self.away[at]
        address = self.blocks.pool.allocate(size, stream=self.tier.arrives_on(reader))
        self.tier.begin_read(room, address, size)
        self.tier.finish_read(room, address, reader)
        self.cuda.expect(address, size, value, reader)
        self.blocks.held[address] = (size, value, reader)
        if not keep:
            del self.away[at]
            self.tier.give_back(room)
        return address

    def begin(self, at: int) -> None:
        """A copy that nobody has asked for yet."""
        room, size, _ = self.away[at]
        address = self.blocks.pool.allocate(size, stream=self.tier.arrives_on(0))
        self.tier.begin_read(room, address, size)
        self.begun.append((*self.away.pop(at), address))

    def finish(self, at: int, reader: int) -> int:
        room, size, value, address = self.begun.pop(at)
        self.tier.finish_read(room, address, reader)
        self.cuda.expect(address, size, value, reader)
        self.blocks.held[address] = (size, value, reader)
        self.tier.give_back(room)
        return address

    def give_up(self, at: int) -> None:
        room, size, value, address = self.begun.pop(at)
        self.blocks.pool.free(address)
        self.away.append((room, size, value))


def test_what_was_evicted_comes_back_as_it_was(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=2, bytes=PAGE)
    a, b, _ = tiered.streams
    address = tiered.blocks.allocate(PAGE, a)
    assert tiered.evict(address)
    assert tiered.tier.used() == PAGE
    tiered.blocks.allocate(2 * PAGE, b)  # In its place.
    cuda.finish()
    tiered.blocks.free(next(iter(tiered.blocks.held)))
    tiered.reload(0, b)
    assert tiered.tier.used() == 0
    cuda.finish()
    assert cuda.faults() == []


def random_run(cuda: FakeCuda, seed: int, pages: int = 3, rooms: int = 4 * PAGE) -> None:
    rng = random.Random(seed)
    tiered = Tiered(cuda, pages, rooms)
    blocks, copies = tiered.blocks, [tiered.tier.arrives_on(0)]
    for _ in range(120):
        kind = rng.random()
        if kind < 0.25:
            with suppress(torch.OutOfMemoryError):
                blocks.allocate(rng.choice(SIZES), rng.choice(tiered.streams))
        elif kind < 0.4 and blocks.held:
            tiered.evict(rng.choice(sorted(blocks.held)))
        elif kind < 0.5 and tiered.away:
            at = rng.randrange(len(tiered.away))
            with suppress(torch.OutOfMemoryError):
                tiered.reload(at, rng.choice(tiered.streams), keep=rng.random() < 0.5)
        elif kind < 0.55 and tiered.away:
            with suppress(torch.OutOfMemoryError):
                tiered.begin(rng.randrange(len(tiered.away)))
        elif kind < 0.6 and tiered.begun:
            at = rng.randrange(len(tiered.begun))
            if rng.random() < 0.3:
                tiered.give_up(at)
            else:
                tiered.finish(at, rng.choice(tiered.streams))
        elif kind < 0.7 and blocks.held:
            blocks.free(rng.choice(sorted(blocks.held)))
        elif kind < 0.75 and blocks.held:
            blocks.use(rng.choice(sorted(blocks.held)), rng.choice(tiered.streams))
        elif kind < 0.78:
            blocks.pool.trim()
        else:
            for _ in range(rng.randrange(6)):
                cuda.step(rng.choice([*tiered.streams, *copies]))
    cuda.finish()
    blocks.pool.check()


@pytest.mark.parametrize("missing", ["", "cuStreamWaitEvent"])
def test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else(
    cuda: FakeCuda, missing: str
) -> None:
    if missing:
        cuda.drop(missing)
    for seed in range(30):
        random_run(cuda, seed)
    assert bool(cuda.faults()) == bool(missing)


def test_a_full_tier_has_no_room(cuda: FakeCuda) -> None:
    tier = _core.HostTier(Pool(2 * PAGE, "cuda")._core, 0, PAGE)
    room = tier.reserve(PAGE)
    assert room is not None
    assert tier.reserve(512) is None
    tier.give_back(room)
    assert tier.reserve(512) is not None


def test_a_room_is_written_anew_only_after_it_was_read(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=4, bytes=PAGE)  # The tier has room for one.
    a, b, _ = tiered.streams
    tiered.evict(tiered.blocks.allocate(PAGE, a))
    other = tiered.blocks.allocate(PAGE, b)
    tiered.reload(0, a)  # Its copy has not run, and its room is another's by now.
    assert tiered.evict(other)
    tiered.blocks.pool.trim()  # The host waits for the copy of that one, and of no other.
    tiered.reload(0, b)
    cuda.finish()
    assert cuda.faults() == []


def test_who_overwrites_what_was_stored_waits_for_the_copy(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=2, bytes=PAGE)
    a, _, _ = tiered.streams
    address = tiered.blocks.allocate(PAGE, a)
    room = tiered.tier.reserve(PAGE)
    assert room is not None
    tiered.tier.write(room, address, PAGE)
    tiered.tier.let_overwrite()
    cuda.write(address, PAGE, 77, a)
    cuda.drain(a)
    tiered.away.append((room, PAGE, tiered.blocks.held.pop(address)[1]))
    tiered.reload(0, a)
    cuda.finish()
    assert cuda.faults() == []


def test_others_never_wait_for_copies_that_are_not_theirs(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=4, bytes=4 * PAGE)
    a, b, _ = tiered.streams
    evicted = tiered.blocks.allocate(PAGE, a)
    tiered.blocks.allocate(PAGE, b)
    cuda.finish()
    tiered.evict(evicted)
    tiered.blocks.pool._core.gather_streams(b)
    cuda.drain(a)
    cuda.drain(b)
    assert cuda.queued(a) == cuda.queued(b) == 0  # The copy has not run.
    cuda.finish()


def test_a_copy_that_was_begun_ahead_holds_up_only_who_reads_it(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=4, bytes=PAGE)
    a, b, _ = tiered.streams
    tiered.evict(tiered.blocks.allocate(PAGE, a))
    cuda.finish()
    tiered.begin(0)
    for stream in (a, b):
        tiered.blocks.allocate(PAGE, stream)
        cuda.drain(stream)
        assert cuda.queued(stream) == 0  # The copy has not run.
    tiered.finish(0, b)
    cuda.drain(b)
    assert cuda.queued(b) > 0
    cuda.finish()
    assert cuda.faults() == []


def test_a_copy_that_is_given_up_is_over_before_another_gets_its_place(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=1, bytes=PAGE)
    a, b, _ = tiered.streams
    tiered.evict(tiered.blocks.allocate(PAGE, a))
    cuda.finish()
    tiered.begin(0)
    tiered.give_up(0)
    tiered.blocks.allocate(PAGE, b)
    cuda.drain(b)
    cuda.finish()
    tiered.blocks.free(next(iter(tiered.blocks.held)))
    tiered.reload(0, a)
    cuda.finish()
    assert cuda.faults() == []


def test_times_tell_how_long_the_bus_was_busy_and_who_waited(cuda: FakeCuda) -> None:
    cuda.timed()
    pool = Pool(4 * PAGE, "cuda")
    stream = cuda.stream()
    tier = _core.HostTier(pool._core, 0, 2 * PAGE)
    per_byte, latency = tier.speed()
    assert per_byte == pytest.approx(2 / 25, rel=0.1)
    assert 0 < latency < 100_000
    bus = PAGE // 25
    for ahead, waits in ((0, True), (10 * bus, False)):
        before = tier.times()
        address, room = pool.allocate(PAGE, stream=stream), tier.reserve(PAGE)
        assert room is not None
        tier.write(room, address, PAGE)
        cuda.host_works(4 * bus)
        cuda.work(ahead, stream)  # That the device is still busy with when the copy is given.
        back = pool.allocate(PAGE, stream=tier.arrives_on(stream))
        tier.begin_read(room, back, PAGE)
        tier.finish_read(room, back, stream)
        cuda.host_works(20 * bus)
        busy, waited = (after - b for after, b in zip(tier.times(), before, strict=True))
        assert busy == pytest.approx(2 * bus, rel=0.05)
        assert waited == pytest.approx(bus if waits else 0, rel=0.1, abs=5_000)
        tier.give_back(room)
        pool.free(back)
        pool.free(address)
    assert cuda.faults() == []


# ---- The runtime above it


def on_device(
    budget: int | str, clock: str = "wall", **mode: Any
) -> tuple[AbstractContextManager[None], AbstractContextManager[Session]]:
    """A scope on the fake device. Its swap is of the host's memory; where temporary files lie does
    not matter."""
    scope = rematerialize(budget, swap="64MiB", swap_anywhere=True, thrash_limit=0, clock=clock)
    return instrumented(on_cuda=True, **mode), scope


def trained_within_two_thirds(make: Make = adamw) -> Session:
    """Of what gradients and the optimizer's state take."""
    expected, budget = train(make_model(), make), floor(make) * 2 // 3
    model = make_model()
    mode, scope = on_device(budget)
    with mode, scope as session:
        assert equal(train(model, make), expected)
        session.check()
    return session


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_trains_in_less_than_its_state(cuda: FakeCuda, kind: str) -> None:
    stats = trained_within_two_thirds(KINDS[kind]).stats()
    assert stats.budget_bytes is not None
    assert stats.peak_bytes <= stats.budget_bytes
    assert stats.swapped_in_bytes > 0
    assert cuda.faults() == []


@pytest.mark.parametrize("program", [mlp, batch_norms, checkpointed])
def test_results_are_those_of_plain_torch_where_all_goes_out_and_in(
    cuda: FakeCuda, program: Any
) -> None:
    expected = run(program)
    mode, scope = on_device("64MiB", swap_always=True)
    with mode, scope as session:
        found = run(program)
        assert all(same(a, b) for a, b in zip(expected, found, strict=True))
        session.check()
    assert session.stats().swapped_in_bytes > 0
    assert cuda.faults() == []


@pytest.mark.parametrize(
    ("other", "operators"),
    [
        (lambda: torch.ones(256, 128), 2),
        (lambda: torch.ones(256, 128, dtype=torch.float64), 1),
        (lambda: torch.ones(128, 256).t(), 1),
    ],
    ids=["alike", "another type", "another layout"],
)
def test_a_list_goes_item_by_item_where_its_items_have_one_kernel(
    cuda: FakeCuda, other: Callable[[], Tensor], operators: int
) -> None:
    mode, scope = on_device("2MiB")
    with mode, scope as session:
        written = [torch.ones(256, 128), torch.ones(256, 128)]
        read = [torch.ones(256, 128), other()]
        before = session.stats().operators
        torch._foreach_add_(written, read)
        assert session.stats().operators == before + operators
        del written, read


def test_nothing_is_page_locked_after_the_start_and_the_host_never_waits(cuda: FakeCuda) -> None:
    calls = ("cuMemHostRegister_v2", "cuStreamSynchronize", "cuEventSynchronize")
    mode, scope = on_device(floor(adamw) * 2 // 3)
    with mode, scope as session:
        model = make_model()
        before = [cuda.calls(call) for call in calls]
        train(model)
        assert session.stats().swapped_in_bytes > 0
        assert [cuda.calls(call) for call in calls] == before
        assert before[0] == 1
        del model


def test_memory_that_is_handed_out_is_copied_first(cuda: FakeCuda) -> None:
    mode, scope = on_device("64MiB")
    with mode, scope as session:
        parameter = torch.ones(1 << 16).requires_grad_()
        (parameter * 3).sum().backward()  # type: ignore[no-untyped-call]
        gradient = parameter.grad
        assert gradient is not None
        twice = gradient * 2
        expected = twice.clone()
        cuda.manual()
        gradient.data_ptr()
        cuda.drain(0)
        assert cuda.queued(0) > 0  # Whatever writes there now waits for the copy.
        cuda.finish()
        cuda.manual(False)
        gradient.fill_(7)
        dtr_alloc.evict(twice)
        assert torch.equal(twice, expected)
        session.check()
        del parameter, gradient, twice, expected


def test_a_tensor_is_read_on_the_stream_that_asks_and_others_come_after_it(
    cuda: FakeCuda,
) -> None:
    one, other = cuda.stream(), cuda.stream()
    try:
        mode, scope = on_device("64MiB")
        with mode, scope as session:
            _core.set_host_stream(one)
            made = torch.empty(1 << 16).fill_(3)
            gradient = torch.ones(1 << 16).requires_grad_()
            (gradient * made).sum().backward()  # type: ignore[no-untyped-call]
            assert gradient.grad is not None
            expected = gradient.grad.clone()
            _core.set_host_stream(other)
            gradient.grad.sum()
            assert dtr_alloc.evict(gradient.grad)
            waits = cuda.calls("cuStreamWaitEvent")
            dtr_alloc.materialize(gradient.grad)
            # The copy for its bytes and for its new place; this stream for the copy; the first
            # stream for this one.
            assert cuda.calls("cuStreamWaitEvent") == waits + 4
            assert torch.equal(gradient.grad, expected)
            session.check()
            del made, gradient, expected
    finally:
        _core.set_host_stream(0)
        cuda.destroy_stream(one)
        cuda.destroy_stream(other)


@pytest.mark.parametrize(("call", "times"), AT_THE_START.items())
def test_a_start_that_fails_says_so_and_leaves_nothing_behind(
    cuda: FakeCuda, call: str, times: int
) -> None:
    trained_within_two_thirds()
    for after in range(times):
        cuda.fail(call, after)
        with pytest.raises(RuntimeError, match=f"{call} failed"):
            trained_within_two_thirds()
        gc.collect()
        assert cuda.pending_failures() == 0
        assert cuda.held() == {}
        assert cuda.count("streams") == 1
    trained_within_two_thirds()


def test_a_pool_lives_on_where_a_tier_could_not_start(cuda: FakeCuda) -> None:
    for after in range(AT_THE_START["cuStreamSynchronize"]):
        blocks, a, b, _ = start(cuda, pages=2)
        cuda.fail("cuStreamSynchronize", after)
        with pytest.raises(RuntimeError, match="cuStreamSynchronize failed"):
            _core.HostTier(blocks.pool._core, 0, PAGE)
        for stream in (a, b):  # In the place of the copies, whose streams are gone.
            blocks.allocate(PAGE, stream)
        cuda.finish()
        assert cuda.faults() == []


@pytest.mark.parametrize("call", ["cuMemHostUnregister", "cuStreamDestroy_v2"])
def test_an_end_that_fails_once_leaves_nothing_behind(cuda: FakeCuda, call: str) -> None:
    cuda.fail(call)
    trained_within_two_thirds()
    gc.collect()
    assert cuda.pending_failures() == 0
    assert cuda.held() == {}
    assert cuda.count("streams") == 1


def test_memory_that_cannot_be_locked_is_named(cuda: FakeCuda) -> None:
    cuda.fail("cuMemHostRegister_v2", code=2)
    with pytest.raises(RuntimeError, match=r"swap of 67108864 bytes cannot be page-locked: .*less"):
        trained_within_two_thirds()


@pytest.mark.parametrize("call", [*COPIES, "cuEventRecord", "cuStreamWaitEvent"])
def test_a_copy_that_fails_is_an_error_and_nothing_is_lost(cuda: FakeCuda, call: str) -> None:
    for after in range(12):
        mode, scope = on_device("64MiB")
        with mode, scope as session:
            parameter = torch.ones(1 << 16).requires_grad_()
            (parameter * torch.arange(float(1 << 16))).sum().backward()  # type: ignore[no-untyped-call]
            gradient = parameter.grad
            assert gradient is not None
            expected = gradient.clone()
            cuda.fail(call, after)
            failed = 0
            for act in [dtr_alloc.evict, dtr_alloc.materialize] * 3:
                while True:
                    try:
                        act(gradient)
                        break
                    except RuntimeError as error:
                        assert f"{call} failed" in str(error)
                        failed += 1
            assert failed <= 1
            assert torch.equal(gradient, expected)
            session.check()
            del gradient, expected, parameter
        del session, scope
        gc.collect()
        assert cuda.held() == {}
        if cuda.pending_failures():
            break
    assert after > 0
    assert cuda.faults() == []


def test_no_more_is_page_locked_than_the_machine_can_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 9000 kB\nMemAvailable: 4096 kB\n")
    monkeypatch.setattr(swapping, "_MEMORY", memory)
    monkeypatch.setattr(swapping, "_CONTAINER", tmp_path)
    assert swapping.spare() == 4 << 20
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert swapping.spare() == 4 << 20
    (tmp_path / "memory.max").write_text("1049576\n")
    assert swapping.host_swap("1023KiB", rematerialize=True, auto=False) == 1023 << 10
    text = r"^swap of 1 MiB would page-lock more than this machine can spare, 1 MiB: ask"
    with pytest.raises(ValueError, match=text):
        swapping.host_swap("1MiB", rematerialize=True, auto=False)


def test_no_room_is_no_error_where_the_driver_fails(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=2, bytes=PAGE)
    a, _, _ = tiered.streams
    tiered.evict(tiered.blocks.allocate(PAGE, a))
    tiered.reload(0, a)  # The room waits for its copy.
    cuda.fail("cuStreamWaitEvent")
    assert tiered.tier.reserve(PAGE) is None
    assert tiered.tier.reserve(PAGE) is not None
    cuda.finish()
    assert cuda.faults() == []


def test_a_summary_tells_what_operators_waited_for(cuda: FakeCuda) -> None:
    session = trained_within_two_thirds()
    stats = session.stats()
    assert 0 < stats.swap_waited_ns < stats.swap_ns
    told = r"came back, .* MiB ahead of its use, in .* ms, of which operators waited for "
    assert re.search(told, session.summary())
