"""`measure`, `plan` and `run` where torch has a CUDA device: the fake one, with a clock. What torch
says and the allocators are pretended (tests/support/pretended_cuda.py), so this is what Python does
with them, in every build. test_cuda_measure.py has `measure` over a stand-in for torch's."""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dtr_alloc
from dtr_alloc.pool.size import parse_size
from dtr_alloc.runtime.planning import report, script
from dtr_alloc.runtime.planning.plan import plan_of
from dtr_alloc.runtime.planning.profile import Profile, Recorded
from dtr_alloc.runtime.scope import current
from dtr_alloc.runtime.scope.scope import rematerialize
from dtr_alloc.runtime.trace import Trace
from dtr_alloc.runtime.trace.format import Call
from tests.fake_cuda.driver import FakeCuda
from tests.fake_cuda.operator_work import Speed, operators_work
from tests.support.fences import ROOT
from tests.support.instruments import instrumented
from tests.support.interruptions import of_the_process, walk
from tests.support.own_process import own_process
from tests.support.pretended_cuda import PretendedAllocator, pretend

MS = 1_000_000
SPEED = Speed(host_us=5, gigabytes=2.097152, gigaflops=1e9)  # 2 MiB, read and written in 2 ms.


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, timed: FakeCuda) -> Iterator[list[PretendedAllocator]]:
    given = pretend(partial(monkeypatch.setattr, raising=False))
    timed.call("cuInit", 0)
    yield given
    while given:
        given.pop().end()


def train(steps: int = 3, synchronize: Callable[[], object] = lambda: None) -> list[float]:
    """All of it, parameters too, as a program on a device has it."""
    torch.manual_seed(0)
    model = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(128, 128), nn.Tanh())])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = model(torch.linspace(0, 1, 4096 * 128).view(4096, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize()
        losses.append(loss.item())
        del loss
    return losses


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 0)])
def test_measured_steps_tell_the_devices_peak_and_times_and_a_budget_that_is_enough(
    given: list[PretendedAllocator], timed: FakeCuda, library: str, device: Any
) -> None:
    expected = train()
    measured = dtr_alloc.measure(device=device, timeline=True)
    with measured as session, operators_work(timed, library, SPEED):
        assert dtr_alloc.current_session() is session
        assert train(synchronize=lambda: timed.call("cuStreamSynchronize", 0)) == expected
    assert dtr_alloc.current_session() is None
    stats = session.stats()
    assert (stats.recorded, stats.evictions, stats.budget_bytes) == (0, 0, None)
    assert stats.kernel_ns > 2 * 8 * 2 * MS  # The device's: the host needs microseconds.
    assert max(session.timeline()) == stats.peak_bytes > 16 << 20
    told = session.summary()
    assert "not recorded by measure()" in told
    assert "must stay" in told
    found = re.search(r'allocator\("(.*)"\): six tenths of the activations, and what', told)
    assert found is not None
    budget = parse_size(found[1])
    assert budget < stats.peak_bytes
    with instrumented(on_cuda=True), rematerialize(budget) as within:
        assert train() == expected
    assert within.stats().evictions > 0
    assert given == []


def test_a_measure_and_another_scope_do_not_nest(given: list[PretendedAllocator]) -> None:
    def measure() -> None:
        dtr_alloc.measure(device="cuda").__enter__()

    with rematerialize("4MiB") as session:
        x = torch.ones(1000).exp()
        assert "do not nest" in refused(measure)
        assert dtr_alloc.evict(x)
        session.check()
    with dtr_alloc.measure(device="cuda") as session:
        assert "or measure() on CUDA serves this process already" in refused(measure)
        assert "serves this process already" in refused(rematerialize("4MiB").__enter__)
        with pytest.raises(ValueError, match="there is no budget to change"):
            session.resize("1MiB")
    measure()
    left = dtr_alloc.current_session()
    assert left is not None
    left.close()
    assert dtr_alloc.current_session() is None


def test_a_measure_that_raises_leaves_torch_its_allocator(given: list[PretendedAllocator]) -> None:
    with pytest.raises(ArithmeticError), dtr_alloc.measure(device="cuda"):
        raise ArithmeticError
    assert current.scope() is None
    with rematerialize("1MiB"):
        pass


def test_a_measure_is_open_or_not_wherever_it_is_interrupted(
    given: list[PretendedAllocator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = of_the_process()

    def run() -> None:
        with dtr_alloc.measure(device="cuda"):
            torch.ones(1000)

    def check() -> None:
        assert of_the_process() == before
        with rematerialize("1MiB"):
            pass

    assert walk(run, check) >= 100


def test_a_device_that_has_no_events_or_is_none_is_refused(given: list[PretendedAllocator]) -> None:
    with pytest.raises(ValueError, match=r"_record_memory_history\(\) keeps them; leave events"):
        dtr_alloc.measure(device="cuda", events=True).__enter__()
    with pytest.raises(ValueError, match="'cudas' is not a CUDA device"):
        dtr_alloc.measure(device="cudas").__enter__()


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch has CUDA")
def test_without_cuda_a_measure_says_what_is_missing_and_what_else_there_is() -> None:
    text = refused(dtr_alloc.measure(device="cuda:1").__enter__)
    assert 'dtr_alloc.measure(device="cuda:1") serves CUDA devices, and torch' in text
    assert "install a CUDA build of torch" in text
    assert "on CPU use `with dtr_alloc.measure():`" in text


SCRIPT = """
import torch
from tests.cuda.test_front_door_of_programs import train
print(sum(train(100 if {endless} else 3)))
"""


def script_in(folder: Path, *, endless: bool) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(endless=endless))
    return path


def test_a_plan_is_of_the_device_and_names_the_allocator(
    given: list[PretendedAllocator],
    timed: FakeCuda,
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    def synchronize() -> None:
        timed.call("cuStreamSynchronize", 0)
        waits.append(1)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    path, log = script_in(tmp_path, endless=True), tmp_path / "step.log"
    options = {"steps": 4, "log": str(log), "within": None, "own_scope": False}
    with operators_work(timed, library, SPEED):
        row = script._train(str(path), [], options)
    assert row is not None
    assert [one.asked for one in given] == [{"budget": "1TiB"}]
    assert len(waits) >= 5  # Steps end when the device is done.
    trace = Trace.load(log)
    made = [item for item in trace.instructions if isinstance(item, Call)]
    last = [item.time for item in made if item.name == "aten::tanh"][-8:]
    assert last == [pytest.approx(2 * MS, rel=0.1)] * 8
    times = tuple(row["step_ns"])
    figures = row["warm_marks"], len(times), times, row["kernel_share"], row["peak_bytes"]
    profile = Profile.of([], [Recorded(trace, *figures)])
    monkeypatch.setattr("dtr_alloc.runtime.planning.plan.rematerialization_ns", lambda: 0.0)
    plan = plan_of(profile, ["60%"], slowdown=10.0)
    assert plan.predictions[0].peak_bytes == row["peak_bytes"]
    assert plan.smallest is not None
    assert plan.smallest.rematerializations > 0
    told = report.suggestion(plan, 10.0)
    found = re.search(r', on CUDA dtr_alloc.allocator\("(.*)"\)$', told)
    assert found is not None
    given.pop().end()
    with instrumented(on_cuda=True), rematerialize(found[1]) as session:
        train()
    assert session.stats().evictions > 0


def test_a_plan_on_the_cpu_says_what_to_do(given: list[PretendedAllocator], tmp_path: Path) -> None:
    path, log = tmp_path / "train.py", tmp_path / "step.log"
    path.write_text("pass\n")
    options = {"steps": 3, "log": str(log), "within": None, "own_scope": False}
    row = script._train(str(path), [], options)
    assert row is not None
    assert row["problem"].endswith("; for a program on the CPU set CUDA_VISIBLE_DEVICES=")


RUN = f"""
import os, sys
sys.path.append({str(ROOT)!r})
from tests.fake_cuda.driver import FakeCuda
from tests.support.pretended_cuda import pretend
FakeCuda(os.environ["DTR_ALLOC_LIBCUDA"]).timed()
given = pretend()
from dtr_alloc.__main__ import main
try:
    main(["run", "--strict", "--budget", sys.argv[1], sys.argv[2]])
finally:
    print([one.asked for one in given])
    given[0].end()
"""


def test_a_program_runs_with_the_commands_budget(cuda: FakeCuda, tmp_path: Path) -> None:
    path = script_in(tmp_path, endless=False)
    done = own_process(RUN, "14MiB", str(path), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    printed, asked = done.stdout.splitlines()
    assert float(printed) == sum(train())
    assert asked == str([{"budget": "14MiB", "memory": "pool", "strict": True}])
    assert re.search(r"^peak .* budget 14 MiB$", done.stderr, re.MULTILINE)
    evictions = re.search(r"^evictions +([\d,]+)", done.stderr, re.MULTILINE)
    assert evictions is not None
    assert evictions[1] != "0"
