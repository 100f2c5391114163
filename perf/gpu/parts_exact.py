"""Is training under a budget bit for bit what it is without, on the device?

Eager runs twice. Where an operator adds in any order eager differs from itself; what differs then
is named and not compared. Everything else must be equal without a limit and at each budget: losses,
gradients, parameters.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from work import Work

MODELS = ("resnet", "gpt", "lstm", "treelstm", "unet")
RATIOS = (0.7, 0.5, 0.3)


def budget_of(eager: dict[str, Any], ratio: float) -> int:
    """Persistent bytes, and a share of what eager has beside them at its peak."""
    persistent = int(eager["persistent_bytes"])
    peak = int(eager.get("allocated_peak_bytes", eager["held_peak_bytes"]))
    return persistent + int(ratio * max(peak - persistent, 0)) + (2 << 20)


def compare(
    work: Work,
    model: str,
    extra: list[object],
    label: str,
    limit: float,
    way: str = "dtr_alloc",
    ratios: tuple[float | None, ...] = (None, *RATIOS),
) -> Any:
    """Adds a result for eager and one for each budget; returns eager's."""
    base = ["--model", model, "--device", work.device, *extra]
    eager = work.script(f"{label} eager", "train.py", *base, limit=limit)
    if "checksums" not in eager:
        work.add(f"{label} eager", eager, "")
        return eager
    reference = eager.pop("checksums")
    seconds = min(eager["step_seconds"])
    work.add(f"{label} eager", eager, f"{seconds * 1e3:9.1f} ms a step, deterministic")
    again = work.script(f"{label} eager again", "train.py", *base, limit=limit)
    second = again.pop("checksums", None)
    if second is not None:  # Else nothing is left out, and what follows may differ for that.
        again["differing"] = [k for k, v in reference.items() if second.get(k) != v]
        reference = {k: v for k, v in reference.items() if second.get(k) == v}
    differing = len(again.get("differing", []))
    line = f"differs from itself in {differing}, not compared" if differing else "the same again"
    work.add(f"{label} eager again", again, line if second is not None else "")
    for ratio in ratios if work.cuda else ratios[-2:-1]:
        budget = [] if ratio is None else ["--memory", budget_of(eager, ratio)]
        name = f"{label} {'no limit' if ratio is None else f'budget {ratio:.1f}'}"
        found = work.script(name, "train.py", *base, "--way", way, *budget, limit=limit)
        sums = found.pop("checksums", None)
        if sums is None:
            work.add(name, found, "")
            continue
        found["differing"] = [key for key, value in reference.items() if sums.get(key) != value]
        found["slowdown"] = min(found["step_seconds"]) / seconds
        work.add(name, found, f"x{found['slowdown']:6.2f}  {verdict(found, len(reference))}")
    return eager


def verdict(found: dict[str, Any], compared: int) -> str:
    differing = len(found["differing"])
    said = f"DIFFERS in {differing} of {compared}" if differing else f"bit for bit, {compared}"
    counts = found.get("counts", {})
    evictions = counts.get("session.evictions", 0)
    return f"{said}, {evictions} evictions, {counts.get('pool.remaps', 0)} remaps"


def demo(work: Work) -> None:
    """Small models side by side: their times mean nothing."""
    with ThreadPoolExecutor(5 if work.cuda else 2) as pool:
        futures = [pool.submit(compare, work, m, [], f"{m} (shared)", 60) for m in MODELS]
    for future in futures:
        future.result()


def gpt(work: Work) -> None:
    model, extra = "gpt1b", ["--batch", 8, "--steps", 4]
    if not work.cuda:
        model, extra = "gpt-tiny", ["--batch", 8, "--steps", 2]
    compare(work, model, list(extra), model, 60)
