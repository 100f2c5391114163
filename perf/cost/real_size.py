"""Two models of real size: time over eager, and memory as the operating system counts it.

The demo's models hold 50 MiB, so that all can be tried in minutes. Here are a GPT of 85 M
parameters on 4 x 512 tokens, and ResNet-50 on 16 pictures of 192 x 192. A budget bounds the bytes
of the pool. What else a process holds meanwhile, as scratch space and freed memory that malloc
keeps, only its resident memory shows. That is of a process, so each training has its own; what is
told is how far its peak in the scope lies above what was resident before. Rounds are interleaved,
and each begins with another way. Ratios are of processor time, as in the demo, and of the wall's.

Our pool is faster than glibc's malloc at large blocks, and part of what a user gains is that. So
eager trains with other allocators too, in the first round alone: preloaded, where they are
installed (Debian: libjemalloc2, libtcmalloc-minimal4).

    python perf/cost/real_size.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import gc
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurement import origin, provenance, write_json
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that all of PyTorch uses)

import dtr_alloc
from dtr_alloc.demo.models import Job, gpt
from dtr_alloc.demo.train import Plan, Training, train

THREADS = 2
BUDGETS = {"gpt": (0.5, 0.25), "resnet50": (0.5, 0.33, 0.25)}
EAGER, POOL = "eager", "eager in the pool"
PRELOADED = {"eager, jemalloc": "jemalloc", "eager, tcmalloc": "tcmalloc_minimal"}
MIB = 1 << 20


class Bottleneck(nn.Module):
    """Convolutions of 1, 3 and 1, and a shortcut (He et al. 2016); the second takes the stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu(self.body(x) + self.shortcut(x), inplace=True)
        return out


def resnet50(*, stages: tuple[int, ...] = (3, 4, 6, 3), images: int = 16, side: int = 192) -> Job:
    """ResNet-50 on `images` pictures of side x side pixels, with a thousand classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, 64 << stage, stride))
            channels = 4 * 64 << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pictures = torch.randn(images, 3, side, side, generator=generator)
        return pictures, torch.randint(1000, (images,), generator=generator)

    def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = data
        return F.cross_entropy(model(pictures), labels)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)

    return Job("resnet50", nn.Sequential(*layers), batch, loss, optimizer)


def job(model: str, quick: bool) -> Job:
    """One of BUDGETS; `quick`: as deep as needed to have something to evict."""
    if model == "gpt":
        size = {"layers": 2, "width": 64} if quick else {"layers": 12, "width": 768}
        return gpt(**size, heads=size["width"] // 64, length=128 if quick else 512, texts=4)
    return resnet50(stages=(1, 1), images=4, side=64) if quick else resnet50()


@dataclass(frozen=True)
class Run:
    """What one training's process tells. `resident` is in bytes, above what was there before."""

    training: Training
    resident: int


def resident(of: str) -> int:
    """Bytes; `of` is VmRSS, what is resident now, or VmHWM, the most since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(of))


def run(model: str, way: str, budget: int | None, steps: int, quick: bool) -> Run:
    """A training from scratch, in this process."""
    torch.set_num_threads(THREADS)
    grown = 0

    @contextlib.contextmanager
    def scope() -> Iterator[dtr_alloc.Session | None]:
        nonlocal grown
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        if way == EAGER or way in PRELOADED:
            yield None
        elif way == POOL:
            with dtr_alloc.measure(device="cpu") as session:
                yield session
        else:
            with dtr_alloc.rematerialize(budget, device="cpu") as session:
                yield session
        grown = resident("VmHWM") - before

    training = train(lambda: job(model, quick), Plan(steps=steps), scope)
    return Run(training, grown)


def alone(model: str, way: str, budget: int | None, steps: int, quick: bool) -> Run:
    """The same in a process of its own."""
    library = ctypes.util.find_library(PRELOADED[way]) if way in PRELOADED else None
    malloc = mock.patch.dict(os.environ, {"LD_PRELOAD": library} if library else {})
    with malloc, multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(run, (model, way, budget, steps, quick))


def ratio(runs: list[Run], base: list[Run], clock: str = "processor_ns") -> float:
    """Of the times of a step: the median over the rounds that both were in, from the first on."""

    def step(one: Run) -> float:
        steps: list[int] = getattr(one.training, clock)
        return statistics.median(steps[1:])

    return statistics.median(step(a) / step(b) for a, b in zip(runs, base, strict=False))


def compare(
    model: str, rounds: int, steps: int, quick: bool, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row for each way to train the model."""
    measured = alone(model, POOL, None, 2, quick).training
    persistent = measured.gradient_bytes + measured.optimizer_bytes
    activations = measured.stats[-1].peak_bytes - persistent
    found = [way for way, library in PRELOADED.items() if ctypes.util.find_library(library)]
    budgets: dict[str, int | None] = dict.fromkeys([EAGER, *found, POOL])
    for share in BUDGETS[model][: 1 if quick else None]:
        budgets[f"{share:.0%}"] = int(share * activations) + persistent
    runs: dict[str, list[Run]] = {way: [] for way in budgets}
    for turn in range(rounds):
        first = turn % len(budgets)
        for way in [*budgets, *budgets][first : first + len(budgets)]:
            if turn and way in PRELOADED:
                continue
            say(f"{model}, round {turn + 1} of {rounds}, {way}")
            runs[way].append(alone(model, way, budgets[way], steps, quick))
    rows = []
    expected = runs[EAGER][0].training.digests
    for way, budget in budgets.items():
        mine = runs[way]
        seconds = [ns / 1e9 for one in mine for ns in one.training.step_ns[1:]]
        stats = [one.training.stats[-1] for one in mine if one.training.stats]
        rows.append(
            {
                "model": model,
                "way": way,
                "budget_bytes": budget,
                "peak_bytes": max((s.peak_bytes for s in stats), default=None),
                "resident_bytes": max(one.resident for one in mine),
                "step_seconds": statistics.median(seconds),
                "over_pool": ratio(mine, runs[POOL]),
                "over_plain": ratio(mine, runs[EAGER]),
                "over_pool_wall": ratio(mine, runs[POOL], "step_ns"),
                "over_plain_wall": ratio(mine, runs[EAGER], "step_ns"),
                "rematerializations": max((s.rematerializations for s in stats), default=0),
                "identical": all(one.training.digests == expected for one in mine),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text: MiB, seconds, ratios."""
    above = f"{'':>64} on the wall"
    head = ["model", "way", "budget", "peak", "resident", "step"]
    head += ["over pool", "plain", "pool", "plain", "bits"]
    layout = "{:<9} {:<18} {:>7} {:>7} {:>8} {:>6} {:>9} {:>6} {:>5} {:>5} {:>5}"
    lines = [above, layout.format(*head)]
    for row in rows:
        budget, peak = (
            "-" if row[name] is None else f"{row[name] / MIB:,.0f}"
            for name in ("budget_bytes", "peak_bytes")
        )
        lines.append(
            f"{row['model']:<9} {row['way']:<18} {budget:>7} {peak:>7} "
            f"{'+' + format(row['resident_bytes'] / MIB, ',.0f'):>8} {row['step_seconds']:>6.2f} "
            f"{row['over_pool']:>9.2f} {row['over_plain']:>6.2f} "
            f"{row['over_pool_wall']:>5.2f} {row['over_plain_wall']:>5.2f} "
            f"{'same' if row['identical'] else 'OTHER':>5}"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs all; returns 1 where a result was not eager's or a budget was passed."""
    parser = argparse.ArgumentParser(description="Models of real size under budgets.")
    parser.add_argument("--quick", action="store_true", help="small models, one budget, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write real_size.json and .txt here")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    rounds, steps = (1, 2) if options.quick else (options.rounds, 3)
    rows = []
    for model in BUDGETS:
        rows += compare(
            model, rounds, steps, options.quick, lambda doing: print(doing, file=sys.stderr)
        )
    print(table(rows))
    if options.out:
        write_json(options.out / "real_size.json", provenance() | {"rows": rows})
        (options.out / "real_size.txt").write_text(f"{origin()}\n\n{table(rows)}\n")
    kept = all(
        row["identical"]
        and (row["budget_bytes"] is None or row["peak_bytes"] <= row["budget_bytes"])
        for row in rows
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
