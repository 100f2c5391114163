"""What a live value drags along is bounded, whatever the program calls a step. A value that is
carried from step to step rests on the recipes of all that was let go: records and copies grew with
every step. Others need what they made long ago, and must keep it recomputable."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from idioms import PROGRAMS
from measurement import end_first_steps
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.runtime.heuristic import DEFAULT
from dtr_alloc.runtime.scope.session import Session
from tests.support.exactness import assert_exact_within, grad_of, scope
from tests.support.own_process import printed

Recurrent = tuple[nn.LSTM, nn.Linear]


def recurrent() -> Recurrent:
    torch.manual_seed(0)
    return nn.LSTM(64, 64, 2), nn.Linear(64, 64)


def carried(
    steps: int, model: Recurrent, session: Session | None = None, optimizer: bool = False
) -> Any:
    """Truncated BPTT. The records and live bytes after each step, and what was computed."""
    torch.manual_seed(1)
    lstm, head = model
    parameters = [*lstm.parameters(), *head.parameters()]
    descent = torch.optim.SGD(parameters, 0.1)
    x = torch.randn(20, 8, 64)
    state = torch.zeros(2, 8, 64), torch.zeros(2, 8, 64)
    seen = []
    for _ in range(steps):
        state = state[0].detach(), state[1].detach()
        descent.zero_grad()
        y, state = lstm(x, state)
        head(y).square().mean().backward()
        if optimizer:
            descent.step()
        else:
            with torch.no_grad():
                for parameter in parameters:
                    parameter.add_(grad_of(parameter), alpha=-0.1)
        del y
        if session is not None:
            stats = session.stats()
            seen.append((stats.records, stats.live_bytes))
    return seen, [*parameters, *state]


@pytest.mark.parametrize("inside", [False, True], ids=["model outside", "model inside"])
@pytest.mark.parametrize("optimizer", [False, True], ids=["by hand", "SGD"])
def test_a_carried_state_does_not_drag_its_history_along(optimizer: bool, inside: bool) -> None:
    model = recurrent()
    with dtr_alloc.rematerialize(None) as session:
        seen, _ = carried(60, recurrent() if inside else model, session, optimizer)
        session.check()
    most = max(records for records, _ in seen[:2])
    assert max(records for records, _ in seen) <= 3 * max(most, 20)
    assert max(live for _, live in seen[2:]) <= max(live for _, live in seen[:2])


@pytest.mark.parametrize("optimizer", [False, True])
def test_a_carried_state_trains_exactly_at_less_than_eager_needs(optimizer: bool) -> None:
    models = iter([recurrent() for _ in range(3)])
    assert_exact_within(0.8, lambda: carried(12, next(models), optimizer=optimizer)[1])


def streamed(steps: int, session: Session | None = None) -> tuple[list[tuple[int, int]], Tensor]:
    torch.manual_seed(0)
    cell = nn.GRUCell(64, 64)
    frames = torch.Generator().manual_seed(1)
    seen = []
    with torch.no_grad():
        h = torch.zeros(64, 64)
        for _ in range(steps):
            h = cell(torch.tensor(torch.randn(64, 64, generator=frames).tolist()), h)
            if session is not None:
                seen.append((session.stats().records, session.stats().live_bytes))
    return seen, h


def test_stateful_inference_does_not_grow() -> None:
    _, expected = streamed(200)
    with dtr_alloc.rematerialize(None) as session:
        seen, found = streamed(200, session)
        session.check()
    records, live = seen[0]
    assert max(count for count, _ in seen) <= 3 * records
    assert max(bytes_ for _, bytes_ in seen) <= 5 * live  # Frames of a few steps, 16 KiB each.
    assert torch.equal(found, expected)


def test_a_deep_chain_without_gradients_keeps_its_last_operators_only() -> None:
    with dtr_alloc.rematerialize("4MiB") as session:
        x = torch.zeros(1024, 64)
        for _ in range(3000):
            x = x + 1
        assert session.stats().records <= 2 * 400
        dtr_alloc.evict(x)
        assert bool((x == 3000).all())


@pytest.mark.parametrize("name", ["gan", "gradient accumulation", "maml"])
def test_what_a_later_step_needs_stays_recomputable(name: str) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return PROGRAMS[name]()

    programs = [made() for _ in range(3)]  # They stay: so does what an optimizer keeps.
    left = iter(programs)

    def program() -> list[Tensor]:
        step, model = next(left)
        return [*(step() for _ in range(3)), *model.state_dict().values()]

    assert_exact_within(0.7, program)


def test_a_long_chain_of_writes_keeps_few_recipes() -> None:
    """Of a large buffer, whose history weighs little beside it."""
    with scope(None) as session:
        total = torch.zeros(1 << 18).exp()
        for _ in range(200):
            total.mul_(0.99)
        assert session.stats().records < 60
        session.check()


def test_a_constant_that_is_written_is_copied_where_more_hangs_on_it() -> None:
    narrow = torch.zeros(40_000)
    with dtr_alloc.rematerialize(None) as session:
        wide = [(narrow + i).sin() for i in range(4)]
        expected = [tensor.clone() for tensor in wide]
        before = session.stats().live_bytes
        narrow.add_(1)
        assert session.stats().live_bytes - before == 160_256  # 160,000 bytes in granules of 512.
        assert all(dtr_alloc.evict(tensor) for tensor in wide)
        assert all(torch.equal(a, b) for a, b in zip(wide, expected, strict=True))


def test_what_hangs_on_a_written_constant_stays_where_it_is_smaller() -> None:
    large = torch.ones(40_000)
    with dtr_alloc.rematerialize(None) as session:
        small = large.sin()[:1000].clone()
        before = session.stats().live_bytes
        large.add_(1)
        assert session.stats().live_bytes == before
        assert not dtr_alloc.evict(small)
        assert torch.equal(small, torch.ones(1000).sin())


def test_copies_never_come_to_more_than_what_hangs_on_them() -> None:
    """A result that outlives its step must not make the runtime keep all parameters twice."""
    parameters = [torch.ones(1000) for _ in range(100)]
    with dtr_alloc.rematerialize(None) as session:
        out = torch.ones(4000)
        for parameter in parameters:
            out = out * parameter.repeat(4)
        before = session.stats().live_bytes
        for parameter in parameters:
            parameter.add_(1)
        assert session.stats().live_bytes - before <= 2 * 16_384
        assert torch.equal(out, torch.ones(4000))


def test_batch_norm_in_training_copies_nothing() -> None:
    layer = nn.BatchNorm2d(1000).train()
    x = torch.randn(4, 1000, 4, 4)
    with dtr_alloc.measure() as session:
        y = layer(x)
        measured = session.stats().peak_bytes
        del y
    with dtr_alloc.rematerialize(None) as session:
        y = layer(x)
        assert session.stats().peak_bytes == measured
        kept, mean = y.clone(), layer.running_mean
        assert mean is not None
        before = mean.clone()
        dtr_alloc.evict(y)
        assert torch.equal(y, kept)
        assert torch.equal(mean, before)


def test_evaluation_reads_the_statistics_and_leaves_what_rests_on_them() -> None:
    """Training writes them, after which what was computed from them cannot be recomputed."""
    norm = nn.BatchNorm1d(4096)
    for training in (False, True):
        norm.train(training)
        with scope(None) as session:
            assert norm.running_mean is not None
            derived = norm.running_mean[:128].exp()
            norm(torch.ones(4, 4096))
            assert dtr_alloc.evict(derived) == (not training)
            session.check()


def results_of_batches(count: int) -> list[Tensor]:
    """A small result of each batch is kept; eager holds one batch at a time."""
    kept = []
    for index in range(count):
        batch = torch.full((512, 1024), float(index))
        batch.numpy()  # The batch cannot be recomputed.
        kept.append((batch * 2).mean(0)[:256].clone())
    return kept


def test_small_results_do_not_hold_their_batches_in_the_budget() -> None:
    with dtr_alloc.measure() as session:
        expected = results_of_batches(30)
    with scope(session.stats().peak_bytes) as limited:
        found = results_of_batches(30)
        limited.check()
    assert all(map(torch.equal, found, expected))


def test_small_results_do_not_hold_their_batches_where_memory_is_plenty() -> None:
    with dtr_alloc.rematerialize(None) as session:
        kept = results_of_batches(200)
        assert session.stats().live_bytes < 40 * 2 << 20
        session.check()
        assert len(kept) == 200


def test_where_each_recipe_is_run_at_once_none_is_shed() -> None:
    with scope(None, verify=True) as session:
        kept = results_of_batches(40)
        assert all(map(dtr_alloc.evict, kept))
        session.check()
        del kept


def bytes_from_malloc() -> int:
    class Mallinfo(ctypes.Structure):
        _fields_ = (("figures", ctypes.c_size_t * 10),)

    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Mallinfo
    return int(ask().figures[7])  # uordblks


def growth(call: Callable[[], object], heuristic: str) -> int:
    """Of the bytes from malloc, over 8,000 calls."""
    with dtr_alloc.rematerialize(None, heuristic=heuristic):
        end_first_steps()  # Until then each operator is recorded, for the advice in errors.
        before = 0
        for number in range(10_000):
            call()
            if number == 1999:
                before = bytes_from_malloc()
        return bytes_from_malloc() - before


def test_a_recipe_that_goes_takes_its_arguments_along() -> None:
    """Each has a list of sixty sizes, 480 bytes."""
    x = torch.ones(1)
    assert growth(lambda: x.repeat([1] * 60), DEFAULT) < 8000 * 480 / 2


def test_a_tensor_that_goes_leaves_nothing_of_its_storage() -> None:
    """Whose record is of some 100 bytes. LRU keeps no tape, which would grow as well."""
    assert growth(torch.ones(256).exp, "lru") < 8000 * 100 / 2


RESIZED = """
import torch, warnings, dtr_alloc
warnings.simplefilter("ignore")  # Of torch's, on a result that has another size.
source, kib = torch.rand(20 << 10), 256
with dtr_alloc.rematerialize("560KiB", device="cpu") as session:
    batch = torch.ones(64 * kib)
    batch.numpy()  # A constant from now on, and soon one that only recipes hold.
    x = batch.exp().sin()
    del batch
    dtr_alloc.evict(x)
    torch.sort(source, out=(x, torch.empty(1, dtype=torch.int64)))
    print(torch.equal(x, source.sort()[0]))
    session.check()
"""


def test_what_stays_behind_nothing_that_is_held_can_be_evicted() -> None:
    """An operator resizes its argument, and needs room: only what that was made from may go."""
    assert printed(RESIZED) == "True\n"
