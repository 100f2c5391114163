"""What nobody can recompute goes to a file when memory is full, and comes back as it was."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.demo import MODELS
from dtr_alloc.runtime import current, swapping
from dtr_alloc.runtime._testing import instrumented
from tests.exactness import assert_exact, bits, chain

WIDTH, LAYERS, ROWS = 256, 6, 32
MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files may lie in memory where the tests run."""
    monkeypatch.setattr(swapping, "_IN_MEMORY", set())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


Make = Callable[[Any], torch.optim.Optimizer]


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, **options)


def train(model: nn.Module, make: Make = adamw, steps: int = 4) -> list[Tensor]:
    optimizer = make(model.parameters())
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [entry for one in optimizer.state.values() for entry in one.values()]
    return [*model.parameters(), *(entry for entry in state if isinstance(entry, Tensor))]


def floor(make: Make) -> int:
    """What gradients and the optimizer's state take: two or three times the parameters."""
    with dtr_alloc.measure() as session:
        kept = train(make_model(), make)
        taken = session.stats().live_bytes
    del kept
    return taken


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        torch.equal(one, other) for one, other in zip(found, expected, strict=True)
    )


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)


KINDS: dict[str, Make] = {
    "tensor by tensor": lambda parameters: adamw(parameters, foreach=False),
    "in lists": lambda parameters: adamw(parameters, foreach=True),
    "fused": lambda parameters: adamw(parameters, fused=True),
    "with momentum": plain_sgd,
}


@pytest.mark.parametrize("memory", ["pool", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_trains_in_less_than_its_state(kind: str, memory: Any) -> None:
    make = KINDS[kind]
    expected = train(make_model(), make)
    model, budget = make_model(), floor(make) * 2 // 3
    with dtr_alloc.rematerialize(budget, swap="64MiB", memory=memory) as session:
        assert equal(train(model, make), expected)
        session.check()
    stats = session.stats()
    assert stats.peak_bytes <= budget
    assert stats.swapped_out_bytes > 0
    assert stats.swapped_in_bytes > 0
    assert "swapped out" in session.summary()


def test_without_swap_that_budget_is_refused() -> None:
    budget = floor(adamw) * 2 // 3
    with pytest.raises(torch.OutOfMemoryError), dtr_alloc.rematerialize(budget):
        train(make_model())


@pytest.mark.parametrize(("name", "budget"), [("resnet", 12), ("gpt", 12), ("unet", 16)])
def test_a_model_trains_exactly_where_recomputing_alone_is_refused(name: str, budget: int) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        job = MODELS[name]()
        optimizer = job.optimizer(job.model.parameters())
        draw = torch.Generator().manual_seed(1)
        for _ in range(2):
            job.loss(job.model, job.batch(draw)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return list(job.model.parameters())

    expected = run()
    with pytest.raises(torch.OutOfMemoryError), dtr_alloc.rematerialize(budget * MIB):
        run()
    gc.collect()
    with dtr_alloc.rematerialize(budget * MIB, swap="256MiB") as session:
        found = run()
    assert equal(found, expected)
    assert session.stats().swapped_in_bytes > 0


def gradient(size: int = 1 << 16) -> Tensor:
    """A gradient of 256 KiB, which no operator can make again."""
    x = torch.linspace(0, 1, size, requires_grad=True)
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad


def test_what_is_not_recorded_leaves_memory_and_comes_back() -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB"):
        made = gradient()
        assert dtr_alloc.evict(made)
        assert dtr_alloc.is_evicted(made)
        assert torch.equal(made, expected)


def test_what_was_written_meanwhile_is_what_comes_back() -> None:
    expected = gradient().mul_(3).add_(1)
    with dtr_alloc.rematerialize("64MiB", swap="64MiB"):
        made = gradient()
        dtr_alloc.evict(made)
        made.mul_(3)
        dtr_alloc.evict(made)
        made.add_(1)
        assert dtr_alloc.evict(made)
        assert torch.equal(made, expected)


def test_a_recipe_reads_what_was_there_before_it_was_written() -> None:
    expected = gradient().exp()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        made = gradient()
        derived = made.exp()
        dtr_alloc.evict(made)
        made.zero_()
        dtr_alloc.evict(derived)
        session.release()
        assert torch.equal(derived, expected)
        assert not made.any()


def test_a_recipe_reads_what_the_program_has_let_go() -> None:
    expected = gradient().exp()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        derived = gradient().exp()
        session.release()
        assert session.stats().live_bytes < derived.nbytes
        assert torch.equal(derived, expected)
        session.check()


def test_what_is_written_through_a_pointer_is_never_moved_again() -> None:
    with dtr_alloc.rematerialize("64MiB", swap="64MiB"):
        made = gradient()
        derived = made.exp()
        expected = bits(derived)
        dtr_alloc.evict(made)
        array = made.numpy()
        array[:] = 1
        made.mul_(2)
        assert not dtr_alloc.evict(made)
        assert (array == 2).all()
        dtr_alloc.evict(derived)
        assert torch.equal(bits(derived)[2], expected[2])


def written_often() -> list[Tensor]:
    """The chain of its recipes is given up at the sixteenth write."""
    x = torch.linspace(0, 1, 1 << 16)
    for _ in range(20):
        x.mul_(1.01)
    return [x]


def carried_on() -> list[Tensor]:
    """Of a value that rests on 256 that are gone the recipe is given up when it is read."""
    kept = []
    for steps in range(250, 260):
        x = torch.linspace(0, 1, 1 << 16)
        for _ in range(steps):
            x = x * 1.001
        kept += [x, x + 1]
    return kept


def made_from_what_was_written() -> list[Tensor]:
    """A constant is about to be written, and what was made from it is worth less than a copy."""
    constant = torch.linspace(0, 1, 1 << 17).numpy()
    x = torch.from_numpy(constant)
    made = x[: 1 << 16] * 2
    x.zero_()
    return [made]


def state_of_adagrad() -> list[Tensor]:
    """It is made by a recorded operator, and written by one that is not."""
    model = make_model()
    optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.1)
    model(torch.ones(ROWS, WIDTH)).square().mean().backward()
    optimizer.step()
    sums = [state["sum"] for state in optimizer.state.values()]
    return [one for one in sums if one.nbytes >= 16 << 10]


def state_that_was_loaded() -> list[Tensor]:
    model = make_model()
    optimizer = adamw(model.parameters())
    model(torch.ones(ROWS, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    return [one for one in moments if one.nbytes >= 16 << 10]


@pytest.mark.parametrize(
    "make",
    [
        written_often,
        carried_on,
        made_from_what_was_written,
        state_of_adagrad,
        state_that_was_loaded,
    ],
)
def test_what_lost_its_recipe_may_still_leave_memory(make: Callable[[], list[Tensor]]) -> None:
    expected = make()
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        found = make()
        assert all(map(dtr_alloc.evict, found))
        assert equal(found, expected)
        session.check()


def in_child(run: Callable[[], object]) -> str:
    """What it comes to in a forked process: its result, or the text of its error."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            told = str(run())
        except BaseException as error:
            told = str(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    with open(reader) as pipe:
        return pipe.read()


def test_a_fork_leaves_the_swap_to_the_parent() -> None:
    expected = train(make_model(), steps=2) + train(make_model(), steps=2)
    budget = floor(adamw) * 2 // 3
    with dtr_alloc.rematerialize(budget, swap="64MiB") as session:
        first = train(make_model(), steps=2)
        away = next(filter(dtr_alloc.is_evicted, first))
        assert "was not in memory when this process was forked" in in_child(away.sum)
        assert equal(first + train(make_model(), steps=2), expected)
        session.check()
        del first, away


def test_a_forked_child_reads_what_the_budget_has_room_for_and_opens_a_scope() -> None:
    def run() -> float:
        with dtr_alloc.rematerialize("4MiB"):
            return float((made + away).sum())

    with dtr_alloc.rematerialize("64MiB", swap="8MiB"):
        made, away = gradient(), gradient()
        dtr_alloc.evict(away)
        assert float(in_child(run)) == float((made + made).sum())
        assert torch.equal(made, away)


def test_what_was_made_from_inputs_that_are_gone_may_leave_memory() -> None:
    def run() -> list[Tensor]:
        kept = []
        for step in range(30):
            batch = torch.from_numpy(numpy.full((256, 256), step, numpy.float32))
            kept.append(batch[:128] * 3)
        return kept

    expected = run()
    with dtr_alloc.rematerialize("2MiB", swap="64MiB") as session:
        found = run()
        session.check()
        assert session.stats().swapped_out_bytes > 0
        assert equal(found, expected)
        del found


def test_what_an_operator_that_failed_was_to_write_may_leave_memory_again() -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="8MiB") as session:
        made = gradient()
        with pytest.raises(RuntimeError, match="size of tensor"):
            made.add_(torch.ones(3))
        assert dtr_alloc.evict(made)
        assert torch.equal(made, expected)
        session.check()


def test_the_disk_has_its_room_back_when_the_scope_is_over(folder: Path) -> None:
    with dtr_alloc.rematerialize("64MiB", swap="8MiB") as session:
        dtr_alloc.evict(gradient())
        assert file_of_swap(folder)
    with pytest.raises(AssertionError, match="no file of a swap is open"):
        file_of_swap(folder)
    assert session.stats().swapped_out_bytes > 0


def test_what_a_failing_disk_keeps_at_the_end_is_read_when_it_works_again(folder: Path) -> None:
    expected = gradient()
    scope = dtr_alloc.rematerialize("64MiB", swap="8MiB")
    with pytest.raises(RuntimeError, match="cannot be read from the swap"), scope:
        made = gradient()
        dtr_alloc.evict(made)
        number = file_of_swap(folder)
        good = os.dup(number)
        with open(os.devnull) as empty:
            os.dup2(empty.fileno(), number)
    os.dup2(good, number)
    os.close(good)
    assert dtr_alloc.is_evicted(made)
    with (
        pytest.raises(RuntimeError, match="could not be brought back at its end"),
        dtr_alloc.rematerialize("64MiB"),
    ):
        pass
    dtr_alloc.materialize(made)
    assert torch.equal(made, expected)
    with dtr_alloc.rematerialize("64MiB"):  # The other scope has let everything go.
        pass


def test_the_swap_holds_no_more_than_it_was_given() -> None:
    def made() -> Tensor:
        x = torch.ones(1 << 16, requires_grad=True)
        x.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad

    with dtr_alloc.rematerialize("64MiB", swap=300 << 10):
        one, other = made(), made()
        assert dtr_alloc.evict(one)
        assert not dtr_alloc.evict(other)
        del one
        assert dtr_alloc.evict(made())


def test_release_writes_what_cannot_be_recomputed() -> None:
    with dtr_alloc.rematerialize("64MiB", swap="64MiB") as session:
        made = [gradient(), gradient()]
        session.release()
        assert all(map(dtr_alloc.is_evicted, made))
        assert session.stats().swapped_out_bytes == 2 * made[0].nbytes


def test_what_is_dear_to_recompute_goes_to_the_file_instead() -> None:
    expected = dear()
    with dtr_alloc.rematerialize("12MiB", swap="64MiB") as session:
        made = dear()
        others = chain(250)
        assert dtr_alloc.is_evicted(made)
        assert torch.equal(made, expected)
        del others
    assert session.stats().swapped_in_bytes >= made.nbytes


def dear() -> Tensor:
    """256 KiB that take a matrix product of 2 GFLOP."""
    torch.manual_seed(0)
    return torch.randn(256, 4096) @ torch.randn(4096, 256)


def test_everything_may_go_out_and_in_after_each_operator() -> None:
    def program() -> Iterator[Tensor]:
        model = make_model()
        yield from train(model)
        yield from chain(10)
        x = torch.randn(64, 64, requires_grad=True)
        y = x.clone()
        y[3:] *= 2
        y.relu_()
        (y @ y.T).logsumexp(0).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        yield x.grad
        yield y

    assert_exact(program, modes=["swap_always"])


def test_lists_are_gone_through_item_by_item_where_they_would_fill_the_budget() -> None:
    def run() -> list[Tensor]:
        x = [torch.linspace(0, n, 1 << 16) for n in range(8)]
        y = list(torch._foreach_mul(x, 2))
        torch._foreach_addcdiv_(y, x, torch._foreach_add(x, 1), value=0.5)
        torch._foreach_mul_(y, [float(n) for n in range(8)])
        return y

    expected = run()
    with torch.no_grad(), dtr_alloc.rematerialize("3MiB", swap="64MiB") as session:
        found = run()
        assert equal(found, expected)
    assert session.stats().largest_operator_bytes < 1 * MIB


def test_lists_of_other_lengths_are_the_errors_that_they_are() -> None:
    with torch.no_grad(), dtr_alloc.rematerialize("3MiB", swap="64MiB"):
        x = [torch.linspace(0, n, 1 << 16) for n in range(8)]
        with pytest.raises(RuntimeError, match="must have the same number of tensors"):
            torch._foreach_add_(x, [torch.ones(1 << 16)])
        assert x[1][-1] == 1


def test_the_file_has_no_name(folder: Path) -> None:
    with dtr_alloc.rematerialize("64MiB", swap="8MiB", swap_dir=folder):
        made = gradient()
        dtr_alloc.evict(made)
        assert list(folder.iterdir()) == []
        assert made.sum() > 0


def test_a_killed_process_leaves_no_file(folder: Path) -> None:
    program = (
        "import torch, dtr_alloc, os\n"
        f"with dtr_alloc.rematerialize('64MiB', swap='8MiB', swap_dir={str(folder)!r},"
        " swap_anywhere=True) as session:\n"
        "    x = torch.ones(1 << 16, requires_grad=True)\n"
        "    x.square().sum().backward()\n"
        "    session.release()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(folder.iterdir()) == []


def file_of_swap(folder: Path) -> int:
    """The descriptor of the nameless file."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if re.fullmatch(rf"{folder}/\S+ \(deleted\)", os.readlink(entry)):
                return int(entry.name)
        except OSError:  # The folder's own, which is closed by now.
            continue
    raise AssertionError("no file of a swap is open")


def test_a_disk_that_fails_to_write_loses_nothing(folder: Path) -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="8MiB") as session:
        made = gradient()
        number = file_of_swap(folder)
        good = os.dup(number)
        with open(os.devnull) as only_read:
            os.dup2(only_read.fileno(), number)
        with pytest.raises(RuntimeError, match=r"cannot be written to the swap in .* stays in"):
            dtr_alloc.evict(made)
        assert not dtr_alloc.is_evicted(made)
        assert torch.equal(made, expected)
        os.dup2(good, number)
        os.close(good)
        assert dtr_alloc.evict(made)
        assert torch.equal(made, expected)
        session.check()


def test_a_file_that_cannot_be_read_is_read_again_when_it_can(folder: Path) -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="8MiB"):
        made = gradient()
        dtr_alloc.evict(made)
        number = file_of_swap(folder)
        good = os.dup(number)
        with open(os.devnull) as empty:
            os.dup2(empty.fileno(), number)
        with pytest.raises(RuntimeError, match="cannot be read from the swap"):
            made.sum()
        os.dup2(good, number)
        os.close(good)
        assert torch.equal(made, expected)


def test_a_disk_without_the_room_is_an_error_at_the_begin() -> None:
    with (
        pytest.raises(RuntimeError, match=r"swap of \d+ bytes cannot be reserved in .* swap_dir"),
        dtr_alloc.rematerialize("64MiB", swap="15TiB"),
    ):
        pass
    assert current.session() is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"swap": 0}, "swap 0 is not above zero"),
        ({"swap": "much"}, 'swap "much" is not a size'),
        ({"swap": "17TiB"}, "swap"),
        ({"swap_dir": "."}, "swap_dir or swap_anywhere without swap"),
        ({"swap": "1MiB", "swap_dir": "/no/such/folder"}, "is no folder"),
        ({"swap": "1MiB", "policy": "banish"}, "swap goes with a budget"),
        ({"swap": "1MiB", "heuristic": "auto"}, "swap goes with a budget"),
        ({"swap": "1MiB", "budget": None}, "swap goes with a budget"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(options: dict[str, Any], text: str) -> None:
    arguments = {"budget": "64MiB"} | options
    with pytest.raises(ValueError, match=text), dtr_alloc.rematerialize(**arguments):
        pass
    assert current.session() is None


@pytest.mark.parametrize(("kind", "where"), [("nfs4", "on a network"), ("tmpfs", "in memory")])
def test_a_folder_that_is_no_local_disk_is_refused_unless_told(
    kind: str, where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = folder / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nother {folder} {kind} rw 0 0\n")
    monkeypatch.setattr(swapping, "_MOUNTS", mounts)
    monkeypatch.setattr(swapping, "_IN_MEMORY", {"tmpfs"})
    inner = folder / "inner"
    inner.mkdir()
    with pytest.raises(ValueError, match=rf"lies {where} \({kind}\)"):
        swapping.native_swap("1MiB", inner)
    assert swapping.native_swap("1MiB", inner, anywhere=True)["swap_folder"] == str(inner)


def test_a_trace_is_not_recorded_of_a_scope_with_swap(folder: Path) -> None:
    scope = dtr_alloc.rematerialize("64MiB", swap="8MiB")
    with (
        scope,
        pytest.raises(RuntimeError, match="a trace does not tell what was swapped"),
        dtr_alloc.record_trace(folder / "trace.log"),
    ):
        pass


def test_a_chrome_trace_shows_what_went_out_and_in(folder: Path) -> None:
    with dtr_alloc.rematerialize("64MiB", swap="8MiB", events=True) as session:
        made = gradient()
        dtr_alloc.evict(made)
        made.sum()
        dtr_alloc.evict(made)  # The file has it.
    session.export_chrome_trace(folder / "run.json")
    events = json.loads((folder / "run.json").read_text())["traceEvents"]
    spans = [(one["name"], one["args"]["bytes"]) for one in events if one["ph"] == "X"]
    assert spans == [("swap out", made.nbytes), ("swap in", made.nbytes), ("swap in", made.nbytes)]


def test_threads_of_backward_swap_as_well() -> None:
    expected = train(make_model())
    budget = floor(adamw) * 2 // 3
    scope = dtr_alloc.rematerialize(budget, swap="64MiB", clock="logical")
    with instrumented(swap_always=True), scope as session:
        assert equal(train(make_model()), expected)
    assert session.stats().records == 0
