"""What a program calls on a session, `measure`, and the commands `run` and `plan`, on a GPU. On the
fake driver the same is in tests/cuda/test_front_door.py and test_front_door_of_programs.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dtr_alloc
from tests.gpu.programs import MIB, assert_exact, backward, in_process, result, swap, told, trained


def called(device: str, budget: int | None, call: str) -> Any:
    """The call comes between the passes of the third step of four."""
    watched = swap(device, budget, events=call == "pictures")
    width, batch = (512, 8192) if device == "cuda" else (32, 2048)
    layers: list[torch.nn.Module] = []
    for _ in range(12):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    net = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(batch, width, device=device)
    found: dict[str, Any] = {}
    for step in range(4):
        loss = (net(x) - x).square().mean()
        session = dtr_alloc.current_session()
        if step == 2 and budget is not None and session is not None:
            core = session._core
            before = core.pool_stats().committed
            if call == "resize":
                session.resize(int(0.9 * budget))
                found["within"] = core.pool_stats().live <= 0.9 * budget
                found["given"] = before - core.pool_stats().committed
            elif call == "lend":
                with session.lend(budget // 10):
                    found["within"] = core.pool_stats().live <= 0.9 * budget + 1
                    found["given"] = before - core.pool_stats().committed
            elif call == "release":
                found["given"] = session.release()
                found["within"] = found["given"] == before - core.pool_stats().committed
            elif call == "record_trace":
                with dtr_alloc.record_trace() as recording:
                    x.tanh().sin()
                trace: Any = recording.trace
                costs = [getattr(item, "time", 0) for item in trace.instructions]
                found["given"] = sum(cost > 0 for cost in costs)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        del loss
    if call == "pictures" and budget is not None and session is not None:
        session.dump_snapshot("run.pickle")
        session.export_chrome_trace("run.json.gz")
        held = session.held()
        found["within"] = held.size_bytes <= watched.peak()
        found["given"] = sum(line.module.startswith("Sequential.") for line in held)
    return result(watched, trained(net), **found)


@pytest.mark.parametrize("call", ["resize", "lend", "release", "record_trace", "pictures"])
def test_a_call_in_the_middle_of_a_step_does_what_it_says_and_changes_no_bit(
    device: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, found = assert_exact(called, device, 0.8, call)
    assert found.get("within", True)
    assert found["given"] > 0


def measured(device: str) -> Any:
    """Two steps of a program that began without us."""
    width, batch = (512, 8192) if device == "cuda" else (32, 2048)
    parts = [part for _ in range(12) for part in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    net = torch.nn.Sequential(*parts).to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    with dtr_alloc.measure(device=device) as session:
        for _ in range(2):
            x = torch.ones(batch, width, device=device)
            backward(net(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    stats = session.stats()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else stats.peak_bytes
    after = torch.ones(8 << 20, device=device)
    session.check()
    return {
        "peaks": [stats.peak_bytes, peak, session.stats().peak_bytes],
        "evictions": stats.evictions,
        "summary": session.summary(),
        "after": float(after.sum()),
    }


def test_a_measure_has_torchs_peak_and_names_a_budget_below_it(device: str) -> None:
    found = told(measured, device)
    assert len({*found["peaks"]}) == 1
    assert found["evictions"] == 0
    call = "allocator" if device == "cuda" else "rematerialize"
    assert re.search(rf'^try .* {call}\("[\d.]+[KM]iB"\): ', found["summary"], re.MULTILINE)
    assert found["after"] == 8 << 20


SCRIPT = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
width, batch = (512, 8192) if device == "cuda" else (64, 2048)
torch.manual_seed(0)
parts = [part for _ in range(12) for part in (torch.nn.Linear(width, width), torch.nn.Tanh())]
net = torch.nn.Sequential(*parts).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(batch, width, device=device)
for _ in range(6):
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(sum(p.double().sum().item() for p in net.parameters()).hex())
"""


def command(device: str, path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path.write_text(SCRIPT)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return subprocess.run(
        [sys.executable, *words, str(path)],
        env=os.environ | hidden | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=path.parent,
        timeout=120,
        check=True,
    )


def test_an_unedited_program_runs_exactly_under_a_budget(device: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    budget = "200MiB" if device == "cuda" else "5MiB"
    plain = command(device, path)
    found = command(device, path, "-m", "dtr_alloc", "run", "--budget", budget)
    assert found.stdout == plain.stdout
    assert re.search(r"^evictions +[1-9]", found.stderr, re.MULTILINE)


def test_a_plan_names_a_budget_for_a_program(device: str, tmp_path: Path) -> None:
    options = ("--rounds", "1", "--steps", "3", "--slowdown", "100", "--json")
    done = command(device, tmp_path / "train.py", "-m", "dtr_alloc", "plan", *options)
    (plan,) = json.loads(done.stdout)
    assert plan["measured_peak_bytes"] > (150 * MIB if device == "cuda" else 5 * MIB)
    assert 0 < plan["smallest"]["budget_bytes"] < plan["measured_peak_bytes"]


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["pool", "torch"])
def test_a_budget_is_a_part_of_the_card(memory: str) -> None:
    """As docs/allocator.md shows it."""
    program = f"""
import json, torch, dtr_alloc
if {memory!r} == "torch":
    free, total = torch.cuda.mem_get_info()
    allocator = dtr_alloc.allocator(int(0.01 * free), memory="torch")
    allocator.install()
else:
    allocator = dtr_alloc.allocator("1TiB")
    torch.cuda.memory.change_current_allocator(allocator)
    torch.cuda.set_per_process_memory_fraction(0.01)
    free = total = torch.cuda.get_device_properties(0).total_memory
x = torch.ones(1 << 20, device="cuda")
kept = [(x + n).sin() for n in range(2 * free // 100 // x.nbytes)]
stats = allocator.session.stats()
print(json.dumps([stats.budget_bytes / free, stats.evictions, stats.peak_bytes / free]))
"""
    share, evictions, peak = in_process(program)
    assert 0.0099 < share <= 0.01
    assert evictions > 0
    assert peak <= 0.01
