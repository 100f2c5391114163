"""The swap's file: its room, its end, disks that fail, forks, and what is refused."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from dtr_alloc.runtime.scope import current, swapping
from tests.support.exactness import grad_of
from tests.support.own_process import forked, printed
from tests.support.swap_programs import adamw, equal, floor, gradient, make_model, train

pytestmark = pytest.mark.usefixtures("folder")


def file_of_swap(folder: Path) -> int:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if re.fullmatch(rf"{folder}/\S+ \(deleted\)", os.readlink(entry)):
                return int(entry.name)
        except OSError:  # The folder's own, which is closed by now.
            continue
    raise AssertionError("no file of a swap is open")


def break_disk(folder: Path) -> Callable[[], None]:
    """The file of the swap can neither be written nor read, until what is returned is called."""
    number = file_of_swap(folder)
    good = os.dup(number)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), number)

    def repair() -> None:
        os.dup2(good, number)
        os.close(good)

    return repair


def test_a_fork_leaves_the_swap_to_the_parent() -> None:
    expected = train(make_model(), steps=2) + train(make_model(), steps=2)
    budget = floor(adamw) * 2 // 3
    with dtr_alloc.rematerialize(budget, swap="64MiB") as session:
        first = train(make_model(), steps=2)
        away = next(filter(dtr_alloc.is_evicted, first))
        assert "was not in memory when this process was forked" in forked(away.sum)
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
        assert float(forked(run)) == float((made + made).sum())
        assert torch.equal(made, away)


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
        repair = break_disk(folder)
    repair()
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
    with pytest.raises(AssertionError, match="no file of a swap is open"):
        file_of_swap(folder)


def test_what_a_failing_disk_kept_comes_back_though_the_budget_has_no_room_for_all(
    folder: Path,
) -> None:
    scope = dtr_alloc.rematerialize("1MiB", swap="8MiB")
    with pytest.raises(RuntimeError, match="cannot be read from the swap"), scope:
        made = [gradient() for _ in range(8)]
        repair = break_disk(folder)
    repair()
    for one in made:
        dtr_alloc.materialize(one)
    assert all(torch.equal(one, gradient()) for one in made)
    with dtr_alloc.rematerialize("64MiB"):
        pass


def test_an_error_says_that_the_swap_is_full() -> None:
    kept = []
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"swap: full, with 1.00 MiB; a larger one"),
        dtr_alloc.rematerialize("1MiB", swap="1MiB"),
    ):
        for _ in range(16):
            kept.append(gradient())


@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_the_swap_holds_no_more_than_it_was_given(memory: Any) -> None:
    def made() -> Tensor:
        x = torch.ones(1 << 16, requires_grad=True)
        x.sum().backward()  # type: ignore[no-untyped-call]
        return grad_of(x)

    with dtr_alloc.rematerialize("64MiB", swap=300 << 10, memory=memory):
        one, other = made(), made()
        assert dtr_alloc.evict(one)
        assert not dtr_alloc.evict(other)
        del one
        assert dtr_alloc.evict(made())


def test_a_disk_that_fails_to_write_or_to_read_loses_nothing(folder: Path) -> None:
    expected = gradient()
    with dtr_alloc.rematerialize("64MiB", swap="8MiB") as session:
        made = gradient()
        repair = break_disk(folder)
        with pytest.raises(RuntimeError, match=r"cannot be written to the swap in .* stays in"):
            dtr_alloc.evict(made)
        assert not dtr_alloc.is_evicted(made)
        assert torch.equal(made, expected)
        repair()
        assert dtr_alloc.evict(made)
        repair = break_disk(folder)
        with pytest.raises(RuntimeError, match="cannot be read from the swap"):
            made.sum()
        repair()
        assert torch.equal(made, expected)
        session.check()


SHORT = """
import ctypes, sys, torch, dtr_alloc
from tests.support.swap_programs import equal, gradient
double = ctypes.CDLL(sys.argv[1])
expected = [gradient(n) for n in range(1 << 16, (1 << 16) + 3)]
before = double.transfers()
with dtr_alloc.rematerialize("64MiB", swap="8MiB", swap_anywhere=True) as session:
    made = [gradient(n) for n in range(1 << 16, (1 << 16) + 3)]
    assert all(map(dtr_alloc.evict, made))
    assert equal(made, expected)
    session.check()
assert double.transfers() - before > 6 * (1 << 18) // 5000
"""


def test_transfers_that_come_short_or_are_interrupted_lose_nothing(tmp_path: Path) -> None:
    source, library = Path(__file__).with_name("short_transfers.cpp"), tmp_path / "short.so"
    command = ["c++", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    package_and_tests = Path(dtr_alloc.__file__).parents[1], Path(__file__).parents[2]
    path = os.pathsep.join(map(str, package_and_tests))
    preloaded = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    printed(SHORT, str(library), LD_PRELOAD=preloaded, PYTHONPATH=path)


def test_a_disk_without_room_is_an_error_and_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tempfile.gettempdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    text = r"swap of 2097152 bytes cannot be reserved in .*: 1 MiB are free; .* swap_dir"
    with pytest.raises(RuntimeError, match=text), dtr_alloc.rematerialize("64MiB", swap="2MiB"):
        pass
    assert current.session() is None


def test_a_disk_that_has_less_room_than_it_says_is_an_error_at_the_begin(folder: Path) -> None:
    program = """
import os, resource, sys, dtr_alloc
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
open_before = os.listdir("/proc/self/fd")
try:
    dtr_alloc.rematerialize("64MiB", swap="2MiB", swap_dir=sys.argv[1]).__enter__()
except RuntimeError as error:
    print(error)
print(len(os.listdir("/proc/self/fd")) - len(open_before), "more files are open")
"""
    text = r"swap of 2097152 bytes cannot be reserved in .*swap_dir.*\n0 more files are open"
    assert re.match(text, printed(program, str(folder)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"swap": 0}, "swap 0 is not above zero"),
        ({"swap": "much"}, 'swap "much" is not a size'),
        ({"swap": "17TiB"}, "swap"),
        ({"swap_dir": "."}, "swap_dir or swap_anywhere without swap"),
        ({"swap": "1MiB", "swap_dir": "/no/such/folder"}, "is no folder"),
        ({"swap": "1MiB", "swap_dir": 3}, "is no path of a folder"),
        ({"swap": "1MiB", "swap_dir": ""}, "is no path of a folder"),
        ({"swap": "1MiB", "budget": None}, "swap goes with a budget"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(options: dict[str, Any], text: str) -> None:
    arguments = {"budget": "64MiB"} | options
    kind = TypeError if "path" in text else ValueError
    with pytest.raises(kind, match=text), dtr_alloc.rematerialize(**arguments):
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
