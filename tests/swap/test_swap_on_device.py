"""Swap between a device and the host's page-locked memory, on the fake driver, with CPU tensors on
the fake device's memory. The tier alone is in test_host_tier.py."""

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.runtime.scope import swapping
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.scope.session import Session
from tests.cuda.test_session_on_cuda import batch_norms, checkpointed, mlp
from tests.fake_cuda.driver import FakeCuda
from tests.support.exactness import alike, run
from tests.support.instruments import instrumented
from tests.support.swap_programs import (
    KINDS,
    adamw,
    floor,
    gradient,
    make_model,
    train,
    train_within_two_thirds,
)

SCALAR = torch.empty(())
COPIES = ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"]
AT_THE_START = {  # How often: a stream each way, and twelve copies to measure the bus.
    "cuMemHostRegister_v2": 1,
    "cuStreamCreateWithPriority": 2,
    "cuStreamSynchronize": 12,
}


@contextmanager
def on_device(budget: int | str, clock: str = "wall", **mode: Any) -> Iterator[Session]:
    """A scope on the fake device, checked at its end. Its swap is of the host's memory."""
    scope = rematerialize(budget, swap="64MiB", swap_anywhere=True, thrash_limit=0, clock=clock)
    with instrumented(on_cuda=True, **mode), scope as session:
        yield session
        session.check()


trained_within_two_thirds = partial(train_within_two_thirds, on_device)


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_trains_in_less_than_its_state(cuda: FakeCuda, kind: str) -> None:
    trained_within_two_thirds(KINDS[kind])


@pytest.mark.parametrize("program", [mlp, batch_norms, checkpointed])
def test_results_are_plain_torchs_where_all_goes_out_and_in(cuda: FakeCuda, program: Any) -> None:
    expected = run(program)
    with on_device("64MiB", swap_always=True) as session:
        assert alike(run(program), expected)
    assert session.stats().swapped_in_bytes > 0


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
    with on_device("2MiB") as session:
        written = [torch.ones(256, 128), torch.ones(256, 128)]
        read = [torch.ones(256, 128), other()]
        before = session.stats().operators
        torch._foreach_add_(written, read)
        assert session.stats().operators == before + operators


def test_nothing_is_page_locked_after_the_start_and_the_host_never_waits(cuda: FakeCuda) -> None:
    calls = ("cuMemHostRegister_v2", "cuStreamSynchronize", "cuEventSynchronize")
    with on_device(floor(adamw) * 2 // 3) as session:
        model = make_model()
        before = [cuda.calls(call) for call in calls]
        train(model)
        assert session.stats().swapped_in_bytes > 0
        assert [cuda.calls(call) for call in calls] == before
        assert before[0] == 1


def test_memory_that_is_handed_out_is_copied_first(cuda: FakeCuda) -> None:
    with on_device("64MiB"):
        made = gradient()
        twice = made * 2
        expected = twice.clone()
        cuda.manual()
        made.data_ptr()
        cuda.drain(0)
        assert cuda.queued(0) > 0  # Whatever writes there now waits for the copy.
        cuda.finish()
        cuda.manual(False)
        made.fill_(7)
        dtr_alloc.evict(twice)
        assert torch.equal(twice, expected)


def test_a_tensor_is_read_on_the_stream_that_asks_and_others_come_after_it(
    cuda: FakeCuda, two_streams: tuple[int, int]
) -> None:
    one, other = two_streams
    with on_device("64MiB"):
        _core.set_host_stream(one)
        made = gradient()
        expected = made.clone()
        _core.set_host_stream(other)
        made.sum()
        assert dtr_alloc.evict(made)
        waits = cuda.calls("cuStreamWaitEvent")
        dtr_alloc.materialize(made)
        # The copy for its bytes and for its new place; this stream for the copy; the first
        # stream for this one.
        assert cuda.calls("cuStreamWaitEvent") == waits + 4
        assert torch.equal(made, expected)


@pytest.mark.parametrize(
    "act",
    [lambda made: torch.equal(made, made), lambda made: torch.sum(made, dim=(0,), out=SCALAR)],
    ids=["reads", "writes"],
)
def test_a_stream_that_comes_later_waits_for_what_was_brought_back_and_pinned(
    cuda: FakeCuda, two_streams: tuple[int, int], act: Callable[[Tensor], object]
) -> None:
    """Though its operator is not recorded and reads nothing that may be evicted."""
    one, other = two_streams
    with on_device("64MiB"):
        _core.set_host_stream(one)
        made = gradient()
        assert dtr_alloc.evict(made)
        cuda.manual()
        dtr_alloc.pin(made)
        _core.set_host_stream(other)
        _core.set_in_optimizer(True)
        with torch.no_grad():
            act(made)
        _core.set_in_optimizer(False)
        cuda.drain(other)
        assert cuda.queued(other) > 0
        cuda.finish()
        cuda.manual(False)


@pytest.mark.parametrize(("call", "times"), AT_THE_START.items())
def test_a_failed_start_says_so_and_leaves_nothing(cuda: FakeCuda, call: str, times: int) -> None:
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
        with on_device("64MiB"):
            made = gradient()
            expected = made.clone()
            cuda.fail(call, after)
            failed = 0
            for act in [dtr_alloc.evict, dtr_alloc.materialize] * 3:
                while True:
                    try:
                        act(made)
                        break
                    except RuntimeError as error:
                        assert f"{call} failed" in str(error)
                        failed += 1
            assert failed <= 1
            assert torch.equal(made, expected)
            del made, expected
        gc.collect()
        assert cuda.held() == {}
        if cuda.pending_failures():
            break
    assert after > 0


@pytest.fixture
def controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of control groups, on a machine with 4 MiB to spare; none has a limit yet."""
    memory, controls = tmp_path / "meminfo", tmp_path / "controls"
    memory.write_text("MemTotal: 9000 kB\nMemAvailable: 4096 kB\n")
    controls.mkdir()
    monkeypatch.setattr(swapping, "_MEMORY", memory)
    monkeypatch.setattr(swapping, "_CONTROLS", controls)
    monkeypatch.setattr(swapping, "_GROUPS", tmp_path / "groups")
    return controls


def limit(group: Path, size: int | str, taken: int, cached: int = 0, v1: bool = False) -> None:
    """Writes what the kernel shows of a control group."""
    names = "memory.limit_in_bytes memory.usage_in_bytes total_inactive_file"
    largest, now, files = (names if v1 else "memory.max memory.current inactive_file").split()
    group.mkdir(parents=True, exist_ok=True)
    (group / largest).write_text(f"{size}\n")
    (group / now).write_text(f"{taken}\n")
    (group / "memory.stat").write_text(f"active_file 9999\n{files} {cached}\nanon 9999\n")


def test_no_more_is_page_locked_than_the_machine_can_spare(controls: Path) -> None:
    assert swapping.spare() == 4 << 20
    limit(controls, "max", 1000)
    assert swapping.spare() == 4 << 20
    limit(controls, 1049576, 1000)
    assert swapping.host_swap("1023KiB", rematerialize=True) == 1023 << 10
    text = r"^swap of 1 MiB would page-lock more than this machine can spare, 1 MiB: ask"
    with pytest.raises(ValueError, match=text):
        swapping.host_swap("1MiB", rematerialize=True)


@pytest.mark.parametrize("v1", [False, True], ids=["version 2", "version 1"])
def test_the_least_that_a_group_of_this_process_or_one_around_it_has_left_is_what_is_spare(
    controls: Path, v1: bool
) -> None:
    swapping._GROUPS.write_text(
        "12:memory:/slurm/job_7/task_0\n3:cpu,cpuacct:/other\n0::/\n"
        if v1
        else "0::/slurm/job_7/task_0\n"
    )
    top = controls / "memory" if v1 else controls
    unlimited = 9223372036854771712 if v1 else "max"
    job, task = top / "slurm/job_7", top / "slurm/job_7/task_0"
    limit(top / "other", 10, 0, v1=v1)
    limit(task, unlimited, 1000, v1=v1)
    assert swapping.spare() == 4 << 20
    limit(job, 3 << 20, 1 << 20, v1=v1)
    assert swapping.spare() == 2 << 20
    limit(job, 3 << 20, 1 << 20, cached=1000, v1=v1)
    assert swapping.spare() == (2 << 20) + 1000
    limit(task, 1 << 20, 1000, v1=v1)
    assert swapping.spare() == (1 << 20) - 1000
    limit(top, 5000, 1000, v1=v1)
    assert swapping.spare() == 4000


def test_a_container_that_sees_the_hosts_group_name_has_its_own_limit(controls: Path) -> None:
    swapping._GROUPS.write_text("9:memory:/docker/0a1b\n0::/../sibling\n")
    limit(controls / "memory", 2 << 20, 1 << 20, v1=True)
    assert swapping.spare() == 1 << 20
    limit(controls, 1 << 19, 0)
    assert swapping.spare() == 1 << 19


def test_a_summary_tells_what_operators_waited_for(cuda: FakeCuda) -> None:
    session = trained_within_two_thirds()
    stats = session.stats()
    assert 0 < stats.swap_waited_ns < stats.swap_ns
    told = r"came back, .* MiB ahead of its use, in .* ms, of which operators waited for "
    assert re.search(told, session.summary())
