"""Where would the time of a training step go on a device? On the fake driver with a clock.

The demo's models train on the CPU, in a scope whose memory, copies, stamps and events go through
the fake driver of tests/fake_cuda. Nothing is timed: clocks move by assumed latencies of the
driver's calls, and by what each operator would take of the host and of the device, a function of
its shapes. So all figures are the same on every machine, and none was measured on a device. What
they show is how often the runtime calls the driver, and whether the host ever waits in it.

Two devices: one that computes so fast that it waits for the host (`launch`), and one thirty times
slower (`compute`). A steady step is the mean of those after the fourth: until then operators are
timed. The first step of an optimizer makes its state, in eager mode too, so what eager's first step
takes more than its second is not counted against ours.

    python perf/cost/device_time.py [--quick] [--out perf/results]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from fake_device import driver, instrumented, operator_work
from measurement import Measurement, origin, report

import dtr_alloc
from dtr_alloc import Pool
from dtr_alloc.demo import MODELS, Job, Plan
from dtr_alloc.demo.train import train

if TYPE_CHECKING:
    from tests.fake_cuda.driver import FakeCuda
    from tests.fake_cuda.operator_work import Speed

SPEEDS: dict[str, Speed] = {
    "launch": operator_work.Speed(),
    "compute": operator_work.Speed(gigabytes=100.0, gigaflops=6_000.0),
}
CASES = (("gpt", 0.5), ("gpt", 0.3), ("resnet", 0.5), ("unet", 0.5))
STEPS, WARM = 8, 4
PAGES = 100_000
DRIVER_LIMIT = 2.0  # Per cent of a steady step.
FIRST_LIMIT = 1.3  # Times the second step.


@dataclass(frozen=True)
class Step:
    """One step of a training. Times are nanoseconds of the fake clocks."""

    time: int
    """From its begin until the device is done."""
    driver: int
    """Of the host, in calls of the driver."""
    waited: int
    """Of the host, in calls that wait for the device."""
    worked: int
    """That the device works on all operators, the recomputed ones too."""
    believed: int
    """The same by the costs that the runtime knows."""
    replayed: int
    """Operators that ran again."""
    pages: int
    """Calls that map a page."""


@dataclass(frozen=True)
class Training:
    """The same training in eager mode and under a budget."""

    eager: list[Step]
    ours: list[Step]

    def steady(self, steps: list[Step], of: Callable[[Step], int]) -> float:
        """The mean of a steady step."""
        return sum(map(of, steps[WARM:])) / len(steps[WARM:])

    @property
    def driver_share(self) -> float:
        """Of a steady step, spent in calls of the driver."""
        return self.steady(self.ours, lambda step: step.driver) / self.steady(
            self.ours, lambda step: step.time
        )

    @property
    def waited(self) -> int:
        """Nanoseconds of all steps that the host waits for the device."""
        return sum(step.waited for step in self.ours)

    @property
    def first_to_second(self) -> float:
        """Of what a step takes, less what eager's first step takes more than its second."""
        more = self.eager[0].time - self.eager[1].time
        return (self.ours[0].time - more) / self.ours[1].time

    @property
    def believed(self) -> float:
        """The costs that the runtime knows in a steady step, to the true ones."""
        return self.steady(self.ours, lambda step: step.believed) / self.steady(
            self.ours, lambda step: step.worked
        )


def budget_of(make: Callable[[], Job], ratio: float) -> int:
    """Bytes: gradients, optimizer state, and a share of what activations take at most."""
    eager = train(make, Plan(steps=2), dtr_alloc.measure)
    fixed = eager.gradient_bytes + eager.optimizer_bytes
    return fixed + int(ratio * (eager.stats[-1].peak_bytes - fixed))


def steps_of(
    cuda: FakeCuda,
    library: str,
    speed: Speed,
    make: Callable[[], Job],
    scope: Callable[[], AbstractContextManager[Any]],
) -> list[Step]:
    """Trains for `STEPS` steps inside `scope()`, which gives a session or None."""
    torch.manual_seed(0)
    job = make()
    optimizer = job.optimizer(job.model.parameters())
    generator = torch.Generator().manual_seed(0)
    steps = []
    with scope() as session, operator_work.operators_work(cuda, library, speed) as work:

        def now() -> Step:
            stats = session.stats() if session else None
            return Step(
                cuda.time("host"),
                cuda.time("driver"),
                cuda.time("waited"),
                work.count("worked"),
                stats.kernel_ns + stats.remat_ns if stats else 0,
                work.count("replayed"),
                cuda.calls("cuMemMap"),
            )

        for _ in range(STEPS):
            before = now()
            optimizer.zero_grad()
            loss = job.loss(job.model, job.batch(generator))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            after = now()
            cuda.call("cuStreamSynchronize", 0)  # As loss.item() does.
            taken = cuda.time("host") - before.time
            names = list(Step.__dataclass_fields__)[1:]
            steps.append(Step(taken, *(getattr(after, n) - getattr(before, n) for n in names)))
            loss.item()
    return steps


def training(
    cuda: FakeCuda, library: str, speed: Speed, make: Callable[[], Job], ratio: float
) -> Training:
    """What the fake driver's clocks say of a training; `library` is operator_work.cpp's."""
    budget = budget_of(make, ratio)
    cuda.timed()
    cuda.call("cuInit", 0)
    eager = steps_of(cuda, library, speed, make, nullcontext)
    with instrumented(on_cuda=True):
        ours = steps_of(cuda, library, speed, make, lambda: dtr_alloc.rematerialize(budget))
    return Training(eager, ours)


def pages_us(cuda: FakeCuda) -> dict[str, float]:
    """Driver's microseconds a page, in a pool of `PAGES`: made, moved, given back."""
    cuda.timed()
    cuda.bare()
    cuda.set_capacity(2 * PAGES * driver.PAGE)
    pool = Pool(PAGES * driver.PAGE, "cuda")
    found = {}

    def took(what: str, pages: int, since: int) -> None:
        found[what] = (cuda.time("driver") - since) / 1e3 / pages

    begin = cuda.time("driver")
    blocks = [pool.allocate(100 * driver.PAGE) for _ in range(PAGES // 100)]
    took("made", PAGES, begin)
    for address in blocks[::2]:
        pool.free(address)
    begin = cuda.time("driver")
    large = pool.allocate(PAGES // 4 * driver.PAGE)
    took("moved", PAGES // 4, begin)
    pool.check()
    for address in (large, *blocks[1::2]):
        pool.free(address)
    begin = cuda.time("driver")
    pool.trim()
    took("given back", PAGES, begin)
    return found


def figures(name: str, found: Training, promised: bool) -> list[Measurement]:
    """What is said of a training. `promised`: of the one whose first step has a limit."""

    def part(of: Callable[[Step], int], at: int) -> float:
        return of(found.ours[at]) / 1e3

    steady = found.steady(found.ours, lambda step: step.time)
    first = found.ours[0].time / found.ours[1].time
    limit = FIRST_LIMIT if promised else None
    of_eager = found.eager[0].time / found.eager[1].time
    return [
        Measurement(f"{name}: driver calls", 100 * found.driver_share, "%", DRIVER_LIMIT),
        Measurement(f"{name}: host waited", found.waited / 1e3, "us", 0),
        Measurement(f"{name}: first step, of it ours", found.first_to_second, "x", limit),
        Measurement(f"{name}: first step to the second", first, "x"),
        Measurement(f"{name}: the same in eager", of_eager, "x"),
        Measurement(f"{name}: driver calls in step 1", part(lambda step: step.driver, 0), "us"),
        Measurement(f"{name}: driver calls in step 2", part(lambda step: step.driver, 1), "us"),
        Measurement(f"{name}: step 2", part(lambda step: step.time, 1), "us"),
        Measurement(f"{name}: pages mapped in step 1", found.ours[0].pages, ""),
        Measurement(f"{name}: steady step", steady / 1e3, "us"),
        Measurement(
            f"{name}: steady step to eager's",
            steady / found.steady(found.eager, lambda step: step.time),
            "x",
        ),
        Measurement(
            f"{name}: recomputed in it", found.steady(found.ours, lambda step: step.replayed), "ops"
        ),
        Measurement(
            f"{name}: pages mapped in it", found.steady(found.ours, lambda step: step.pages), ""
        ),
        Measurement(f"{name}: costs as measured to true ones", found.believed, "x"),
    ]


def main() -> int:
    """Prints the figures; returns 1 where a limit is passed."""
    parser = argparse.ArgumentParser(description="Time of a step on the fake driver.")
    parser.add_argument("--quick", action="store_true", help="gpt at 0.5 alone")
    parser.add_argument("--out", type=Path, help="folder for device_time.json and .txt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = driver.build(Path(folder))
        library = operator_work.build(Path(folder))
        os.environ["DTR_ALLOC_LIBCUDA"] = path
        for model, ratio in CASES[:1] if options.quick else CASES:
            for regime, speed in SPEEDS.items():
                taken = training(driver.FakeCuda(path), library, speed, MODELS[model], ratio)
                promised = (model, ratio) == CASES[0]
                found += figures(f"{model} at {ratio}, {regime}", taken, promised)
        for what, us in pages_us(driver.FakeCuda(path)).items():
            found.append(Measurement(f"{PAGES:,} pages {what}, each", us, "us"))
        code = report(found, options.out / "device_time.json" if options.out else None)
    if options.out:
        lines = [origin(), ""]
        lines += [f"{m.name:<50} {m.value:12,.3f} {m.unit}".rstrip() for m in found]
        (options.out / "device_time.txt").write_text("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
