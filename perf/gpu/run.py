"""All that needs a GPU, in eight minutes: tests, exactness, throughput, scoring, batch, allocators.

Each part is a process with a time limit, so that one that fails, hangs or crashes loses nothing but
itself, and the results are written after every part. Parts come in the order of their worth; those
for which no time is left are reported as skipped. Results go to $OUT, or to perf/results/gpu:
gpu.json, gpu.txt (the table) and tests.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GIB = 1 << 30
RATIOS = (0.7, 0.5, 0.3)
DEMO = ("resnet", "gpt", "lstm", "treelstm", "unet")
ALLOCATOR_SETTINGS = {
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
FIXED = 24 * GIB  # Memory for the largest batch.


@dataclass
class Report:
    """Results so far, rewritten whenever one comes in."""

    out: Path
    deadline: float
    device: str
    results: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    machine: str = "unknown"

    def add(self, name: str, result: Any, line: str) -> None:
        with self.lock:
            self.results[name] = result
            self.lines.append(f"{name:<34} {line}")
            print(self.lines[-1], flush=True)
            self.write()

    def write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        document = {
            "command": "make gpu",
            "python": platform.python_version(),
            "device": self.machine,
            "results": self.results,
        }
        (self.out / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.out / "gpu.txt").write_text("\n".join(self.lines) + "\n")

    def left(self) -> float:
        return self.deadline - time.monotonic()


def describe(device: str) -> str:
    """What ran, asked of another process: this one must not hold the GPU."""
    if device == "cpu":
        return "cpu"
    program = "import torch; print(torch.__version__, torch.cuda.get_device_name())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def part(report: Report, script: str, *arguments: object, limit: float = 90) -> dict[str, Any]:
    """What the script wrote, or `failed` with the end of its error text."""
    limit = min(limit, report.left())
    if limit < 5:
        return {"failed": "skipped: no time left"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, str(HERE / script), *map(str, arguments), "--out", str(out)]
        path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        env = dict(os.environ, PYTHONPATH=path)
        # Torch reads it when it is loaded.
        for argument in arguments:
            if argument in ALLOCATOR_SETTINGS:
                env["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATOR_SETTINGS[str(argument)]
        code, text = ended(command, limit, env=env)
        if out.exists():  # Perhaps what there was when time was up.
            result: dict[str, Any] = json.loads(out.read_text())
            return result
        if code is None:
            return {"failed": f"no answer within {limit:.0f} s"}
        return {"failed": text.strip()[-2000:] or f"exit code {code}"}


def ended(command: list[str], limit: float, **options: Any) -> tuple[int | None, str]:
    """Exit code (None: time was up, and it was killed with all that it started) and output."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    ) as process:
        try:
            text, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, text


def short(result: dict[str, Any]) -> str:
    text = str(result.get("failed") or result.get("out_of_memory"))
    return text.splitlines()[-1][:120]


def tests(report: Report) -> None:
    # A warning of another package's there must not fail all of them.
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-m", "gpu", "tests/gpu"]
    code, text = ended(command, 150, cwd=ROOT)
    if code is None:
        text += "\nno answer within 150 s"
    (report.out / "tests.txt").write_text(text)
    last = text.strip().splitlines()[-1] if text.strip() else "no output"
    report.add("tests/gpu", last, last)


def budget_of(eager: dict[str, Any], ratio: float) -> int:
    """Persistent bytes, and a share of what eager has beside them at its peak."""
    persistent = int(eager["persistent_bytes"])
    return persistent + int(ratio * max(int(eager["peak_bytes"]) - persistent, 0)) + (2 << 20)


def exactness(report: Report, model: str, extra: list[object], name: str) -> None:
    """Eager, then each budget; all must agree to the bit. Small models run eagerly twice: what
    differs then, because an operator adds in any order, is not compared."""
    base = ["--model", model, "--device", report.device, *extra]
    eager = part(report, "train.py", *base, "--allocator", "native")
    if "checksums" not in eager:
        report.add(f"{name} native", eager, short(eager))
        return
    reference = eager.pop("checksums")
    if model in DEMO:
        again = part(report, "train.py", *base, "--allocator", "native").get("checksums", {})
        unstable = [key for key, value in reference.items() if again.get(key, value) != value]
        for key in unstable:
            del reference[key]
        eager["not_repeatable"] = unstable
    seconds = sorted(eager["step_seconds"])[0]
    report.add(f"{name} native", eager, f"{seconds * 1e3:9.1f} ms a step")
    if report.device == "cpu":  # Eager's peak is not counted there.
        eager["peak_bytes"] = eager["persistent_bytes"] * 2
    for ratio in (None, *RATIOS):
        budget = [] if ratio is None else ["--budget", budget_of(eager, ratio)]
        if ratio is None and report.device == "cpu":
            continue
        label = f"{name} {'no limit' if ratio is None else f'budget {ratio:.1f}'}"
        found = part(report, "train.py", *base, "--allocator", "dtr", *budget)
        if "checksums" not in found:
            report.add(label, found, short(found))
            continue
        differing = [key for key, value in reference.items() if found["checksums"][key] != value]
        del found["checksums"]
        found["differing"] = differing
        found["slowdown"] = sorted(found["step_seconds"])[0] / seconds
        verdict = "bit for bit" if not differing else f"DIFFERS in {len(differing)}"
        if left_out := len(eager.get("not_repeatable", [])):
            verdict += f" of {len(reference)} (eager differs from itself in {left_out} others)"
        evictions = found["stats"].get("num_alloc_retries", 0)
        line = f"x{found['slowdown']:6.2f}  {verdict}, {evictions} evictions"
        report.add(label, found, line)


def batches(report: Report, model: str, most: int) -> None:
    for name, options in {
        "stock": ["--allocator", "native", "--limit", FIXED],
        "torch.utils.checkpoint": ["--allocator", "native", "--limit", FIXED, "--checkpoint"],
        "dtr_alloc": ["--allocator", "dtr", "--budget", FIXED],
    }.items():
        found = part(
            report,
            "train.py",
            *["--model", model, "--largest", most, "--batch", 4, "--device", report.device],
            *options,
            limit=60,
        )
        line = short(found) if "batch" not in found else f"{found['batch']:9d} texts"
        report.add(f"largest batch {name}", found, line)


def allocators(report: Report) -> None:
    for allocator in ("native", "expandable", "async", "pool", "dtr", "cupy", "cupy-dtr"):
        found = part(report, "allocators.py", "throughput", "--allocator", allocator, limit=40)
        line = f"{found['nanoseconds']:9.0f} ns" if "nanoseconds" in found else short(found)
        report.add(f"allocate and free {allocator}", found, line)
    for allocator in ("native", "expandable", "pool"):
        found = part(report, "allocators.py", "fragmentation", "--allocator", allocator, limit=40)
        line = f"{found['ratio']:9.3f} held over live" if "ratio" in found else short(found)
        report.add(f"fragmentation {allocator}", found, line)


def remapping(report: Report) -> None:
    arena = "host" if report.device == "cpu" else "cuda"
    found = part(report, "allocators.py", "remap", "--arena", arena, limit=40)
    line = short(found)
    if "new_page" in found:
        moved, new = found["microseconds_a_page"], found["new_page"]
        line = f"{moved:9.2f} us a page of 2 MiB moved, {new:.2f} us made anew"
    report.add("remap", found, line)


def scoring(report: Report) -> None:
    """What a score costs, on the CPU and on the GPU, and from how many candidates the GPU pays."""
    found = part(report, "../scoring.py", *(["--quick"] if report.device == "cpu" else []))
    if "measurements" not in found:
        report.add("scoring", found, short(found))
    for one in found.get("measurements", []):
        report.add(f"scoring {one['name']}", one, f"{one['value']:12.3f} {one['unit']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=360, help="for everything")
    parser.add_argument("--model", default="gpt1b", help="the large one")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or Path(os.environ.get("OUT") or ROOT / "perf/results/gpu")
    report = Report(out, time.monotonic() + arguments.seconds, arguments.device)
    report.machine = describe(arguments.device)
    if report.machine == "unknown":
        sys.exit("there is no CUDA device here that torch can use; --device cpu is a rehearsal")
    report.write()
    if arguments.device == "cuda":
        tests(report)
    with ThreadPoolExecutor(5) as pool:  # Small models side by side: their times mean nothing.
        for done in [pool.submit(exactness, report, m, [], f"{m} (shared)") for m in DEMO]:
            done.result()
    exactness(report, arguments.model, ["--batch", 8, "--steps", 4], arguments.model)
    remapping(report)
    scoring(report)
    if arguments.device == "cuda":
        allocators(report)
    batches(report, "gpt100m" if arguments.device == "cuda" else "gpt-tiny", 512)


if __name__ == "__main__":
    main()
