"""The runtime's device half without a GPU, on the memory of the fake CUDA driver: pages, copies
inside replays, time stamps and the order of streams. Only torch's own CUDA kernels are missing."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.scope.session import Session
from tests.fake_cuda.driver import PAGE, FakeCuda
from tests.support.exactness import MODES, grad_of, run, same, scope
from tests.support.instruments import instrumented


def mlp() -> Iterator[Tensor]:
    layers = [torch.nn.Linear(64, 64) for _ in range(8)]
    x = torch.randn(256, 64)
    for layer in layers:
        x = torch.nn.functional.dropout(layer(x).relu(), 0.1)
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    yield from (grad_of(layer.weight) for layer in layers)


def batch_norms() -> Iterator[Tensor]:
    norms = [torch.nn.BatchNorm1d(64) for _ in range(4)]
    x = torch.randn(256, 64, requires_grad=True)
    y = x * 1
    for norm in norms:
        y = norm(y) * 0.5
        y += 0.5
        torch.nn.functional.relu(y, inplace=True)
    y.sum().backward()  # type: ignore[no-untyped-call]
    yield grad_of(x)
    for norm in norms:
        assert norm.running_mean is not None
        yield norm.running_mean


def checkpointed() -> Iterator[Tensor]:
    layer = torch.nn.Linear(64, 64)
    x = torch.randn(256, 64, requires_grad=True)
    y = x
    for _ in range(4):
        y = checkpoint(lambda z: layer(z).tanh(), y, use_reentrant=False)
    y.sum().backward()  # type: ignore[no-untyped-call]
    yield grad_of(layer.weight)


@pytest.fixture
def session(cuda: FakeCuda) -> Iterator[Session]:
    """A scope on the device for the whole test, checked at its end. A proxy, since pytest keeps it
    until all fixtures are over, and a session keeps the pool."""
    with instrumented(on_cuda=True), rematerialize("64MiB") as session:
        yield weakref.proxy(session)
        session.check()


@pytest.mark.parametrize("mode", ["recorded", "evict_always", "verify"])
@pytest.mark.parametrize("program", [mlp, batch_norms, checkpointed])
def test_results_are_those_of_plain_torch(cuda: FakeCuda, program: Any, mode: str) -> None:
    expected = run(program)
    with scope("64MiB", on_cuda=True, **MODES[mode]) as session:
        found = run(program)
        session.check()
        evictions = session.stats().evictions
    assert all(map(same, expected, found))
    assert (evictions > 0) == (mode == "evict_always")
    assert cuda.calls("cuMemCreate") > 0


SMALL = torch.randn(64, 64)


def test_a_steady_state_stamps_no_times_and_never_waits(cuda: FakeCuda, session: Session) -> None:
    def step() -> None:
        x = SMALL
        for _ in range(4):
            x = x.exp().mul(0.5)
        session._core.step()

    for _ in range(4):
        step()
    known = session._core.stats().time_stamps
    for _ in range(10):
        step()
    assert session._core.stats().time_stamps == known
    assert 0 < known <= 2 * 3 * 2  # Two for each sample, three samples for each operator.
    assert cuda.calls("cuEventSynchronize") == 0


def test_an_operator_of_another_device_gets_no_time_stamps(session: Session) -> None:
    for _ in range(3):
        torch.ones(64, 64, device="meta")
        session._core.step()
    assert session._core.stats().time_stamps == 0


def cost_of_exp(session: Session) -> int:
    before = session.stats().kernel_ns
    SMALL.exp()
    return session.stats().kernel_ns - before


def test_an_operator_costs_what_the_device_measured_once_samples_arrive(session: Session) -> None:
    for _ in range(2):  # The second is measured, and the time not read before the third.
        assert cost_of_exp(session) == pytest.approx(5000 + 2 * 64 * 64 * 4 // 2000, rel=0.01)
    assert cost_of_exp(session) == pytest.approx(250_000, rel=0.01)


def test_the_least_of_the_samples_counts(cuda: FakeCuda, session: Session) -> None:
    SMALL.exp()
    for milliseconds in (4.0, 0.5, 2.0):
        cuda.event_takes(milliseconds)
        SMALL.exp()
        session._core.step()
    assert cost_of_exp(session) == pytest.approx(500_000, rel=0.01)


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuEventElapsedTime"])
def test_a_time_that_is_not_taken_is_no_error(cuda: FakeCuda, session: Session, call: str) -> None:
    cuda.fail(call)
    for _ in range(4):
        found = SMALL.exp()
        session._core.step()
    assert cuda.pending_failures() == 0
    assert torch.equal(found, SMALL.exp())


def test_a_run_in_which_pages_are_made_is_not_measured(session: Session) -> None:
    SMALL.exp()
    kept = [SMALL.exp() for _ in range(3)]  # One may make a page; the next is measured.
    assert session._core.stats().time_stamps == 2
    large = torch.empty(1 << 20)
    kept += [large.exp() for _ in range(4)]  # Each makes two pages of its own.
    assert session._core.stats().time_stamps == 2 + 3


def test_cudnns_benchmark_is_warned_of(cuda: FakeCuda) -> None:
    x, weight = torch.randn(1, 4, 16, 16), torch.randn(4, 4, 3, 3)
    torch.set_warn_always(True)  # Else once a process, and this test may run twice.
    on = torch.backends.cudnn.flags(enabled=True, benchmark=True)
    try:
        with on, instrumented(on_cuda=True), rematerialize("64MiB"):
            x = x.add(1)  # No convolution: no warning, which would be an error here.
            with torch.backends.cudnn.flags(enabled=True, benchmark=False):
                torch.nn.functional.conv2d(x, weight)
            with pytest.warns(UserWarning, match=r"^torch\.backends\.cudnn\.benchmark is on: "):
                torch.nn.functional.conv2d(x, weight)
    finally:
        torch.set_warn_always(False)


def test_memory_that_others_hold_is_made_up_for_by_evicting(cuda: FakeCuda) -> None:
    cuda.set_capacity(16 << 20)
    x = torch.randn(1 << 19)
    expected = [(x * i).exp() for i in range(1, 12)]
    with instrumented(on_cuda=True), rematerialize("256MiB", thrash_limit=0) as session:
        found = [(x * i).exp() for i in range(1, 12)]
        assert session.stats().evictions > 0
        assert all(map(torch.equal, found, expected))
        session.check()
        del found


def test_the_text_says_when_the_device_has_less_than_the_budget(cuda: FakeCuda) -> None:
    cuda.set_capacity(8 << 20)
    with instrumented(on_cuda=True), rematerialize("256MiB", thrash_limit=0):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.zeros(4 << 20)
        text = str(caught.value)
    assert "asked: 16.00 MiB, within the budget of 256.00 MiB" in text
    assert "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY" in text
    assert "another budget does not help" in text


@pytest.fixture
def held(cuda: FakeCuda) -> Iterator[tuple[Session, list[Tensor]]]:
    """Twelve tensors of a page each in a scope with room for sixteen; number n is full of n."""
    rows = torch.arange(12.0).repeat_interleave(PAGE // 4).view(12, -1)
    with instrumented(on_cuda=True), rematerialize(16 * PAGE) as session:
        held = [row.abs() for row in rows]
        yield weakref.proxy(session), held
        session.resize(16 * PAGE)
        assert [tensor[1].item() for tensor in held] == list(range(12))
        session.check()
        held.clear()


Held = tuple[Session, list[Tensor]]


@pytest.mark.parametrize("after", range(8))
def test_a_page_that_the_device_did_not_take_back_goes_before_a_resize_ends(
    cuda: FakeCuda, held: Held, after: int
) -> None:
    session, tensors = held
    cuda.fail("cuMemUnmap", after)
    session.resize(4 * PAGE)
    assert cuda.pending_failures() == 0
    assert cuda.used() <= 4 * PAGE
    assert sum(map(dtr_alloc.is_evicted, tensors)) == 8  # No more for that page.


def test_a_resize_that_the_driver_fails_leaves_the_budget_as_it_was(
    cuda: FakeCuda, held: Held
) -> None:
    session, tensors = held
    assert all(map(dtr_alloc.evict, tensors))  # Free pages, which a smaller budget gives back.
    evictions = session.stats().evictions
    cuda.fail("cuMemUnmap")
    with pytest.raises(RuntimeError, match="cuMemUnmap failed"):
        session.resize(11 * PAGE)
    assert session.stats().budget_bytes == 16 * PAGE
    assert [tensor[1].item() for tensor in tensors] == list(range(12))
    assert session.stats().evictions == evictions
    with session.lend(4 * PAGE):
        assert session.stats().budget_bytes == 12 * PAGE
    assert session.stats().budget_bytes == 16 * PAGE


def hold(tensor: Tensor) -> None:
    session = current.session()
    assert session is not None
    session.holding([tensor], [], False, 0, lambda: None)


@pytest.mark.parametrize("read", [torch.sum, hold])
def test_evicting_a_tensor_marks_the_place_of_every_other_stream_that_read_it(
    cuda: FakeCuda, two_streams: tuple[int, int], session: Session, read: Callable[[Tensor], Any]
) -> None:
    one, other = two_streams
    _core.set_host_stream(one)
    alone, shared = SMALL.exp(), SMALL.sin()
    _core.set_host_stream(other)
    read(shared)
    for tensor, events in ((alone, 0), (shared, 1)):
        before = cuda.calls("cuEventRecord")
        assert dtr_alloc.evict(tensor)
        assert cuda.calls("cuEventRecord") == before + events


def test_replays_on_the_only_stream_record_and_wait_for_nothing(
    cuda: FakeCuda, two_streams: tuple[int, int], session: Session
) -> None:
    calls = ("cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuEventSynchronize")
    _core.set_host_stream(two_streams[0])
    made = [SMALL.exp().sin() for _ in range(8)]
    before = [cuda.calls(call) for call in calls]
    for tensor in made:
        assert dtr_alloc.evict(tensor)
        dtr_alloc.materialize(tensor)
    assert [cuda.calls(call) for call in calls] == before
    assert session.stats().rematerializations >= 8


def test_a_replay_comes_after_other_streams_and_they_go_on_after_it(
    cuda: FakeCuda, two_streams: tuple[int, int], session: Session
) -> None:
    one, other = two_streams
    _core.set_host_stream(one)
    made = SMALL.exp()
    expected = made.clone()
    _core.set_host_stream(other)
    made.sum()
    assert dtr_alloc.evict(made)
    waits = cuda.calls("cuStreamWaitEvent")
    assert torch.equal(made, expected)
    # One before the replay, one after it.
    assert cuda.calls("cuStreamWaitEvent") == waits + 2


def test_a_replay_on_a_stream_that_is_new_to_the_pool_waits_for_the_others(
    cuda: FakeCuda, two_streams: tuple[int, int], session: Session
) -> None:
    one, other = two_streams
    _core.set_host_stream(one)
    first = SMALL.exp()
    made = first.sin()
    expected = made.clone()
    dtr_alloc.evict(made)
    _core.set_host_stream(other)
    waits = cuda.calls("cuStreamWaitEvent")
    dtr_alloc.materialize(made)
    assert cuda.calls("cuStreamWaitEvent") == waits + 2
    assert torch.equal(made, expected)


def test_the_place_of_a_pinned_tensor_is_marked_by_every_stream_that_may_read_it(
    cuda: FakeCuda, two_streams: tuple[int, int], session: Session
) -> None:
    one, other = two_streams
    _core.set_host_stream(one)
    made = SMALL.exp()
    _core.set_host_stream(other)
    made.sum()
    dtr_alloc.evict(made)
    dtr_alloc.pin(made)  # Computed again on `other`; nothing on `one` will say that it reads.
    before = cuda.calls("cuEventRecord")
    del made
    assert cuda.calls("cuEventRecord") == before + 1
