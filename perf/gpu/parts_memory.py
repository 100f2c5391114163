"""Memory below any model: the driver's calls, the pool's moves, allocators, and scores."""

from __future__ import annotations

import importlib.util
import runpy
import tempfile
from pathlib import Path

from work import Work

ROOT = Path(__file__).parents[2]


def probe(work: Work) -> None:
    """Without a GPU the driver is the fake one of the tests, unless another is named."""
    with tempfile.TemporaryDirectory() as folder:
        driver = {}
        if not work.cuda and "DTR_ALLOC_LIBCUDA" not in work.env:
            driver = {"DTR_ALLOC_LIBCUDA": fake_driver(Path(folder))}
        found = work.script("driver calls", "driver_calls.py", limit=60, settings=driver)
    found["driver"] = "fake" if driver else work.env.get("DTR_ALLOC_LIBCUDA", "the system's")
    work.add("driver calls", found, f"{len(found.get('microseconds', {}))} groups of figures")
    for group, calls in found.get("microseconds", {}).items():
        shown = ", ".join(f"{name} {value:.2f}" for name, value in calls.items())
        print(f"  {group} (us): {shown}")


def fake_driver(folder: Path) -> str:
    made: str = runpy.run_path(str(ROOT / "tests/fake_cuda/driver.py"))["build"](folder)
    return made


def remap(work: Work) -> None:
    """Prices of moving pages, and that content stays."""
    arena = "cuda" if work.cuda else "host"
    small = [] if work.cuda else ["--small"]
    found = work.script("remap", "allocators.py", "remap", "--arena", arena, *small, limit=60)
    states = {k: v for k, v in found.items() if isinstance(v, dict) and "microseconds_a_page" in v}
    shown = [f"{v['microseconds_a_page']:.2f} us {state}" for state, v in states.items()]
    if "new_page" in found:
        shown.append(f"{found['new_page']:.2f} us made anew")
    work.add("remap", found, "a page of 2 MiB: " + ", ".join(shown) if shown else "")


def allocators(work: Work) -> None:
    names = ["stock", "expandable", "async", "pool", "dtr_alloc", "cupy", "cupy-dtr_alloc"]
    fragmented = ["stock", "expandable", "pool"]
    extra: list[object] = ["--device", work.device]
    if not work.cuda:  # The others are CUDA's.
        names, fragmented = ["stock", "pool", "dtr_alloc"], ["stock", "pool"]
        extra.append("--small")
    for question, chosen in (("throughput", names), ("fragmentation", fragmented)):
        for allocator in chosen:
            name = f"{question} {allocator}"
            if "cupy" in allocator and not importlib.util.find_spec("cupy"):
                work.add(name, {}, "skipped: CuPy is not installed")
                continue
            arguments = [question, "--allocator", allocator, *extra]
            found = work.script(name, "allocators.py", *arguments, limit=40, allocator=allocator)
            line = ""
            if "nanoseconds" in found:
                line = f"{found['nanoseconds']:9.0f} ns to allocate and free"
            elif "ratio" in found:
                line = f"{found['ratio']:9.3f} held over live"
            work.add(name, found, line)


def scoring(work: Work) -> None:
    """What a score costs, and from how many candidates on the GPU pays."""
    quick = ["--rounds", 2] if work.cuda else ["--rounds", 1, "--quick"]
    found = work.script("scoring", "../choice/scoring.py", *quick, limit=90)
    measured = found.get("measurements", [])
    if measured and "unfinished" not in found:
        found.pop("failed", None)  # It ends with 1 where a limit of another machine's was passed.
    work.add("scoring", found, f"{len(measured)} figures")
    for one in measured:
        print(f"  {one['name']:<48} {one['value']:12.3f} {one['unit']}")
