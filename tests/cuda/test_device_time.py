"""Where time goes on a device, as far as a driver without one can tell: latencies that
tests/fake_cuda assumes, streams that run at once, a host that waits or does not. The clocks move
only as that says. Figures of the trainings at the end are told by perf/cost/device_time.py."""

from collections.abc import Callable

import pytest
import torch
from device_time import DRIVER_LIMIT, FIRST_LIMIT, SPEEDS, training

from dtr_alloc import Pool
from dtr_alloc.demo import MODELS
from dtr_alloc.runtime.scope.scope import rematerialize
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.fake_cuda.operator_work import Speed, operators_work
from tests.support.instruments import instrumented

Program = Callable[[FakeCuda], None]
US = 1000
MS = 1000 * US


def test_two_streams_run_at_once(timed: FakeCuda) -> None:
    a, b = timed.stream(), timed.stream()
    timed.work(5 * MS, a)
    timed.work(3 * MS, b)
    assert (timed.time("end"), timed.time("busy")) == (5 * MS, 5 * MS)


def test_a_stream_that_waits_for_another_starts_when_that_one_is_done(timed: FakeCuda) -> None:
    a, b = timed.stream(), timed.stream()
    timed.work(5 * MS, a)
    timed.order(a, b)
    timed.work(3 * MS, b)
    assert timed.time("end") == 8 * MS


def test_the_device_stands_idle_while_the_host_is_late(timed: FakeCuda) -> None:
    stream = timed.stream()
    timed.work(1 * MS, stream)
    timed.host_works(4 * MS)
    timed.work(1 * MS, stream)
    assert (timed.time("idle"), timed.time("busy")) == (3 * MS, 2 * MS)


def test_a_call_that_drains_makes_the_host_wait(timed: FakeCuda) -> None:
    stream = timed.stream()
    timed.drains("cuStreamSynchronize")
    timed.work(7 * MS, stream)
    timed.call("cuStreamSynchronize", stream)
    assert timed.time("waited") == 7 * MS


def test_an_operator_is_work_of_its_bytes_behind_the_hosts(timed: FakeCuda, library: str) -> None:
    timed.call("cuInit", 0)
    x = torch.ones(1 << 20)
    speed = Speed(host_us=10, kernel_us=1, gigabytes=8 * 1.048576, gigaflops=0.5)
    with operators_work(timed, library, speed) as work:
        x.exp().view(1 << 10, -1) @ torch.empty(1 << 10, 1)
    assert (work.count("operators"), timed.time("host")) == (2, 20 * US)
    matrix_by_vector = 2 * (1 << 20) / 0.5
    assert timed.time("end") == pytest.approx(10 * US + 1 * MS + matrix_by_vector, rel=1e-6)


def test_first_use_of_memory_costs_calls_and_a_second_use_none(timed: FakeCuda) -> None:
    pool = Pool(64 * PAGE, "cuda")
    before = timed.time("driver")
    pool.free(pool.allocate(64 * PAGE))
    made = timed.time("driver") - before
    pages = 64 * (25 + 8) * US
    assert pages <= made <= pages + 20 * US
    before = timed.time("driver")
    for _ in range(100):
        pool.free(pool.allocate(64 * PAGE))
    assert timed.time("driver") == before


def scattered(pool: Pool, stream: int) -> None:
    blocks = [pool.allocate(PAGE, stream=stream) for _ in range(64)]
    for address in blocks[::2]:
        pool.free(address)


def moves(timed: FakeCuda) -> None:
    """Pages go from one stream to another while the first is at work."""
    a, b = timed.stream(), timed.stream()
    pool = Pool(64 * PAGE, "cuda")
    scattered(pool, a)
    timed.work(50 * MS, a)
    before = timed.time("host")
    pool.allocate(32 * PAGE, stream=b)
    assert pool.stats().remaps == 1
    assert timed.time("host") - before < 1 * MS + timed.time("waited")
    timed.host_works(100 * MS)


def leaves(timed: FakeCuda) -> None:
    """Pages are still mapped at an old place whose work is done, and the stream has more to do."""
    stream = timed.stream()
    pool = Pool(64 * PAGE, "cuda")
    scattered(pool, stream)
    timed.work(50 * MS, stream)
    pool.allocate(16 * PAGE, stream=stream)
    assert timed.calls("cuMemUnmap") == 0
    timed.host_works(60 * MS)
    timed.work(50 * MS, stream)
    pool.allocate(16 * PAGE, stream=stream)
    assert timed.calls("cuMemUnmap") > 0
    timed.host_works(100 * MS)


@pytest.mark.parametrize("program", [moves, leaves])
def test_pages_move_and_leave_old_places_without_waiting(timed: FakeCuda, program: Program) -> None:
    program(timed)
    assert timed.time("waited") == 0


@pytest.mark.parametrize(
    ("program", "call"),
    [
        (moves, "cuMemMap"),
        (moves, "cuMemSetAccess"),
        (moves, "cuStreamWaitEvent"),
        (leaves, "cuMemUnmap"),
    ],
)
def test_on_a_driver_that_waits_it_would_show(timed: FakeCuda, program: Program, call: str) -> None:
    timed.drains(call)
    program(timed)
    assert timed.time("waited") > 40 * MS


def test_giving_pages_back_waits_for_the_work_on_them(timed: FakeCuda) -> None:
    stream = timed.stream()
    pool = Pool(64 * PAGE, "cuda")
    scattered(pool, stream)
    timed.work(50 * MS, stream)
    pool.trim()
    assert 49 * MS < timed.time("waited") <= 50 * MS


def test_a_run_of_pages_is_unmapped_in_one_call(timed: FakeCuda) -> None:
    pool = Pool(64 * PAGE, "cuda")
    pool.free(pool.allocate(64 * PAGE))
    before = timed.calls("cuMemUnmap")
    assert pool.trim() == 64 * PAGE
    assert timed.calls("cuMemUnmap") == before + 1


def test_a_hundred_thousand_pages_are_handled(timed: FakeCuda) -> None:
    pages = 100_000
    timed.bare()
    timed.set_capacity(2 * pages * PAGE)
    pool = Pool(pages * PAGE, "cuda")
    blocks = [pool.allocate(100 * PAGE) for _ in range(pages // 100)]
    for address in blocks[::2]:
        pool.free(address)
    large = pool.allocate(pages // 4 * PAGE)
    assert pool.stats().committed == pages * PAGE
    pool.check()
    for address in (large, *blocks[1::2]):
        pool.free(address)
    assert pool.trim() == pages * PAGE


def test_an_operators_cost_is_without_the_pages_that_it_used_first(timed: FakeCuda) -> None:
    """Three layers alike, each with memory of its own in the first step. 40 us a page, 5 pages."""
    timed.latency("cuMemCreate", 40 * US)
    x = torch.ones(5 * PAGE // 4)
    with instrumented(on_cuda=True), rematerialize("256MiB") as session:
        for _ in range(4):
            layers = [x]
            for _ in range(3):
                layers.append(layers[-1].add(1))
            del layers
            session._core.step()
        before = session.stats().kernel_ns
        y = x.add(1)
        assert session.stats().kernel_ns - before < 10 * US
        assert torch.equal(y, torch.full_like(x, 2))


def test_a_gpt_at_half_of_its_memory_hardly_calls_the_driver_and_never_waits(
    cuda: FakeCuda, library: str
) -> None:
    """On a device so fast that it waits for the host, where a call of the driver counts most."""
    found = training(cuda, library, SPEEDS["launch"], MODELS["gpt"], 0.5)
    assert all(step.replayed > 0 for step in found.ours)
    assert found.driver_share <= DRIVER_LIMIT / 100
    assert found.waited == 0
    assert found.first_to_second <= FIRST_LIMIT


def test_costs_are_within_a_tenth_of_truth_after_four_steps(cuda: FakeCuda, library: str) -> None:
    """40 us to make a page, as long as three kernels take. The first run of an operator is not
    measured, three of the next steps are."""
    cuda.latency("cuMemCreate", 40 * US)
    speed = Speed(host_us=3, gigabytes=300, gigaflops=18_000)
    found = training(cuda, library, speed, MODELS["gpt"], 0.7)
    assert found.ours[0].pages > 20
    assert found.waited == 0
    assert 0.9 <= found.believed <= 1.1


def test_a_busy_device_hardly_sees_that_tensors_come_and_go(timed: FakeCuda, library: str) -> None:
    """A step with a third of the memory, the rest on the host, by the device's own clock."""
    slow = Speed(gigabytes=20, gigaflops=300)

    def last_step(budget: str) -> tuple[int, int, int]:
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        swapped = rematerialize(budget, swap="64MiB", swap_anywhere=True, thrash_limit=0)
        with instrumented(on_cuda=True), swapped as session, operators_work(timed, library, slow):
            waited = timed.time("waited")
            for _ in range(5):
                before = timed.time("end")
                model(torch.randn(256, 256)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            took, waited = timed.time("end") - before, timed.time("waited") - waited
            moved = session.stats().swapped_in_bytes
            del optimizer, model, layers
        return took, waited, moved

    alone, _, nothing = last_step("64MiB")
    beside, waited, moved = last_step("4MiB")
    assert nothing == 0
    assert moved > 10 << 20
    assert waited == 0
    assert beside < 1.1 * alone
