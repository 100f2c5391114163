"""The host's page-locked memory as a second tier of a device's, on the fake driver: the tier alone,
whose streams a test runs in any order. The runtime above it is in test_swap_on_device.py."""

import random
from contextlib import suppress

import pytest
import torch

from dtr_alloc.pool import Pool
from tests.engine_harness.harness import HostTier
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.support.cuda_pools import start

SIZES = (16 << 10, 64 << 10, PAGE // 2, PAGE)  # The fake driver looks at every 16 KiB.


class Tiered:
    """Blocks of a pool that go to the tier and come back, with the value that each holds."""

    def __init__(self, cuda: FakeCuda, pages: int, bytes: int) -> None:
        self.blocks, *self.streams = start(cuda, pages)
        self.cuda = cuda
        self.out = cuda.stream()  # The next one has the same name.
        cuda.destroy_stream(self.out)
        self.tier = HostTier(self.blocks.pool._core, 0, bytes)
        self.away: list[tuple[int, int, int]] = []
        self.begun: list[tuple[int, int, int, int]] = []

    def evict(self, address: int, made: int | None = None) -> bool:
        size, value, _ = self.blocks.held[address]
        room = self.tier.reserve(size)
        if room is None:
            return False
        self.tier.write(room, address, size, made)
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


def random_run(cuda: FakeCuda, seed: int, streams: int, pages: int = 3) -> None:
    """The program uses so many streams; with one of them, marks tell what was made by when."""
    rng = random.Random(seed)
    tiered = Tiered(cuda, pages, bytes=4 * PAGE)
    tiered.streams = tiered.streams[:streams]
    blocks, copies = tiered.blocks, [tiered.out, tiered.tier.arrives_on(0)]
    made: dict[int, int] = {}
    now = 0
    for _ in range(120):
        now += rng.choice([0, 100_000, 500_000])
        if rng.random() < 0.3:
            tiered.tier.mark(tiered.streams[0], now)
        kind = rng.random()
        if kind < 0.25:
            with suppress(torch.OutOfMemoryError):
                made[blocks.allocate(rng.choice(SIZES), rng.choice(tiered.streams))] = now
        elif kind < 0.4 and blocks.held:
            address = rng.choice(sorted(blocks.held))
            tiered.evict(address, made.pop(address, None))
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
            address = rng.choice(sorted(blocks.held))
            made.pop(address, None)
            blocks.free(address)
        elif kind < 0.75 and blocks.held:
            blocks.use(rng.choice(sorted(blocks.held)), rng.choice(tiered.streams))
        elif kind < 0.78:
            blocks.pool.trim()
        else:
            for _ in range(rng.randrange(6)):
                cuda.step(rng.choice([*tiered.streams, *copies]))
    cuda.finish()
    blocks.pool.check()


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("missing", ["", "cuStreamWaitEvent"])
def test_a_random_run_finds_a_wait_that_is_missing_and_nothing_else(
    cuda: FakeCuda, missing: str, streams: int
) -> None:
    if missing:
        cuda.drop(missing)
    for seed in range(30):
        random_run(cuda, seed, streams)
    assert bool(cuda.faults()) == bool(missing)


def test_a_copy_out_waits_for_what_made_the_bytes_and_not_for_what_came_after(
    cuda: FakeCuda,
) -> None:
    tiered = Tiered(cuda, pages=4, bytes=PAGE)
    a, _, _ = tiered.streams
    address = tiered.blocks.allocate(PAGE, a)
    cuda.drain(tiered.tier.arrives_on(0))  # The tier has measured the bus there.
    tiered.tier.mark(a, 1)
    made = cuda.queued(a)
    tiered.blocks.allocate(PAGE, a)
    tiered.evict(address, made=0)
    cuda.drain(tiered.out)
    assert cuda.queued(tiered.out) > 0
    for _ in range(made):
        cuda.step(a)
    cuda.drain(tiered.out)
    assert cuda.queued(tiered.out) == 0
    cuda.finish()


def test_what_was_made_at_the_time_of_a_mark_may_have_come_after_it(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=4, bytes=PAGE)
    a, _, _ = tiered.streams
    tiered.tier.mark(a, 1)
    tiered.evict(tiered.blocks.allocate(PAGE, a), made=1)
    cuda.drain(tiered.out)
    cuda.finish()
    tiered.reload(0, a)
    cuda.finish()


def test_a_full_tier_has_no_room(cuda: FakeCuda) -> None:
    tier = HostTier(Pool(2 * PAGE, "cuda")._core, 0, PAGE)
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


def test_times_tell_how_long_the_bus_was_busy_and_who_waited(cuda: FakeCuda) -> None:
    cuda.timed()
    pool = Pool(4 * PAGE, "cuda")
    stream = cuda.stream()
    tier = HostTier(pool._core, 0, 2 * PAGE)
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


def test_no_room_is_no_error_where_the_driver_fails(cuda: FakeCuda) -> None:
    tiered = Tiered(cuda, pages=2, bytes=PAGE)
    a, _, _ = tiered.streams
    tiered.evict(tiered.blocks.allocate(PAGE, a))
    tiered.reload(0, a)  # The room waits for its copy.
    cuda.fail("cuStreamWaitEvent")
    assert tiered.tier.reserve(PAGE) is None
    assert tiered.tier.reserve(PAGE) is not None
    cuda.finish()


def test_a_pool_lives_on_where_a_tier_could_not_start(cuda: FakeCuda) -> None:
    for after in range(12):  # As often the bus is measured.
        blocks, a, b, _ = start(cuda, pages=2)
        cuda.fail("cuStreamSynchronize", after)
        with pytest.raises(RuntimeError, match="cuStreamSynchronize failed"):
            HostTier(blocks.pool._core, 0, PAGE)
        for stream in (a, b):  # In the place of the copies, whose streams are gone.
            blocks.allocate(PAGE, stream)
        cuda.finish()
