"""How fast is training in less memory than it wants, beside what else a user could do?

The questions: `gpt`: the same batch in 70, 50 and 30 % of the activations' memory. `anchors`:
one, two and three times the batch in the memory that stock needs for one, by each way (ways.py).
`batches`: the largest batch in a fixed memory. `guest`, and `segments` with expandable segments:
what guest mode costs where memory is plenty, and a step that needs one and a half times the memory.
`swap`: what a second tier on the host gains in little memory; `floor`: whether it trains where
gradients and the optimizer's state do not fit. All in the mode in which people train.
"""

from __future__ import annotations

from typing import Any

import parts_exact
from work import Work, trouble_of

GIB = 1 << 30
SWAP_RATIOS = (0.3, 0.2)
PERSISTENT = 16  # Bytes a parameter: itself, its gradient, two moments, in fp32.
ANCHORS = {"cuda": ("bert-large", "gpt1b", "resnet50"), "cpu": ("gpt-tiny", "resnet-tiny")}
FLOOR_ROOM = {"cuda": 64 << 20, "cpu": 2 << 20}  # For what an operator needs at once.
FIXED = {"cuda": 40 * GIB, "cpu": 24 << 20}  # Memory for the largest batch.
FIRST = {"cuda": 16, "cpu": 4}  # A batch that fits there by each way.
BATCH_MODEL = {"cuda": "gpt1b", "cpu": "gpt-tiny"}
WAYS = ("dtr_alloc", "stock", "checkpoint", "selective", "expandable")  # First what matters.


def rate(run: dict[str, Any]) -> str:
    if "per_second" not in run:
        return trouble_of({k.replace(" ", "_"): v for k, v in run.items()}) or "thrash"
    held = run["held_peak_bytes"] / GIB
    line = f"{run['per_second']:.0f} {run['unit']}/s, {held:.2f} GiB held"
    changed = run["during_timed_steps"]
    for key, unit in (("session.evictions", "evictions"), ("pool.remaps", "remaps")):
        if count := changed.get(key):
            line += f", {count / len(run['step_seconds']):.0f} {unit} a step"
    if "device_bytes" in run:
        line += f", {run['device_bytes'] / GIB:.2f} GiB of the device"
    return line


def speed(
    work: Work, name: str, model: str, way: str, *extra: object, limit: float, allocator: str = ""
) -> Any:
    """Runs speed.py, adds a result for each of its batches, and returns them by `1x`, `2x`, ...
    `allocator`: by which of torch's settings, if it is not the way's own."""
    quick = [] if work.cuda else ["--warm", 1, "--steps", 2]
    found = work.script(
        name,
        "speed.py",
        *["--model", model, "--way", way, "--device", work.device, *quick, *extra],
        limit=limit,
        allocator=allocator or way,
    )
    runs = found.get("runs", {})
    lines = [f"{times}: {rate(run)}" for times, run in runs.items()]
    work.add(name, found, " | ".join(lines))
    return runs


def anchors(work: Work) -> None:
    times = ["--times", 1, 2, 3]
    memory: dict[str, int] = {}
    for model in ANCHORS[work.device]:
        runs = speed(work, f"{model} stock", model, "stock", *times, limit=60)
        if held := runs.get("1x", {}).get("held_peak_bytes"):
            memory[model] = held
    for way in WAYS:
        for model, held in memory.items() if way != "stock" else ():
            speed(work, f"{model} {way}", model, way, "--memory", held, *times, limit=60)


def gpt(work: Work) -> None:
    model = BATCH_MODEL[work.device]
    found = speed(work, f"{model} speed stock", model, "stock", limit=60)
    eager = found.get("1x", {})
    if "held_peak_bytes" not in eager:
        return
    fixed = {"persistent_bytes": PERSISTENT * eager["parameters"]}
    for ratio in (1.3, *parts_exact.RATIOS) if work.cuda else (0.5,):
        budget = parts_exact.budget_of(eager | fixed, ratio)
        name = f"{model} speed budget {ratio:.1f}"
        speed(work, name, model, "dtr_alloc", "--memory", budget, limit=60)


def swap(work: Work) -> None:
    """With and without it."""
    model = BATCH_MODEL[work.device]
    stock = speed(work, f"{model} speed stock", model, "stock", limit=40).get("1x", {})
    if "held_peak_bytes" not in stock:
        return
    fixed = {"persistent_bytes": PERSISTENT * stock["parameters"]}
    for ratio in SWAP_RATIOS if work.cuda else SWAP_RATIOS[:1]:
        memory = ["--memory", parts_exact.budget_of(stock | fixed, ratio)]
        speed(work, f"{model} dtr_alloc {ratio}", model, "dtr_alloc", *memory, limit=40)
        swapped(work, model, str(ratio), memory)


def floor(work: Work) -> None:
    """Few steps: that it trains is new, not how fast. Nor does it wait for stock where the anchors
    have told how many parameters there are."""
    model = BATCH_MODEL[work.device]
    anchors = work.report.document["parts"].get("anchors", {}).get("results", {})
    stock = anchors.get(f"{model} stock", {}).get("runs", {}).get("1x", {})
    if "parameters" not in stock:
        stock = speed(work, f"{model} speed stock", model, "stock", limit=40).get("1x", {})
    if "parameters" in stock:
        memory = ["--memory", 8 * stock["parameters"] + FLOOR_ROOM[work.device]]
        few = ["--warm", 2, "--steps", 4]
        swapped(work, model, "half of what cannot be recomputed", [*memory, *few])


def swapped(work: Work, model: str, label: str, memory: list[object]) -> None:
    name = f"{model} swap {label}"
    run = speed(work, name, model, "swap", *memory, limit=40).get("1x", {})
    if changed := run.get("during_timed_steps"):
        work.add(f"{name}: bus", *bus(changed))


def bus(changed: dict[str, float]) -> tuple[dict[str, float], str]:
    """The bandwidth that was sustained, and for which part of the time operators waited that read
    what came in."""
    out, back, busy, waited = (
        changed.get(f"session.{name}", 0)
        for name in ("swapped_out_bytes", "swapped_in_bytes", "swap_ns", "swap_waited_ns")
    )
    found = {"out_bytes": out, "in_bytes": back}
    if busy <= 0:
        return found, "nothing was moved"
    found |= {"gigabytes_a_second": (out + back) / busy, "waited": waited / busy}
    line = f"{found['gigabytes_a_second']:.1f} GB/s, waited for {100 * found['waited']:.0f} % of it"
    return found, f"{out / GIB:.2f} GiB out, {back / GIB:.2f} GiB in, {line}"


def guest(work: Work) -> None:
    beside_stock(work, "fixed")


def segments(work: Work) -> None:
    beside_stock(work, "expandable")


def beside_stock(work: Work, segments: str) -> None:
    """Stock and guest in turn; then the same step where torch may hold two thirds of what stock
    held (its own fraction, which fails as a full card does)."""
    model = BATCH_MODEL[work.device]
    rates: dict[str, list[float]] = {"stock": [], "guest": []}
    held = 0
    for turn in (1, 2):
        for way in rates:
            name = f"{segments} {way} {turn}"
            run = speed(work, name, model, way, limit=40, allocator=segments).get("1x", {})
            rates[way] += [run["per_second"]] if "per_second" in run else []
            held = max(held, run.get("held_peak_bytes", 0) if way == "stock" else 0)
    if not rates["stock"] or not rates["guest"]:
        return
    ratio = max(rates["stock"]) / max(rates["guest"])
    work.add(f"{segments} overhead", {"ratio": ratio}, f"{ratio:.3f} x the time of stock")
    memory = ["--memory", held * 2 // 3]
    speed(work, f"{segments} at 1.5x", model, "guest", *memory, limit=40, allocator=segments)


def batches(work: Work) -> None:
    for way in WAYS:
        limit = min(60.0 if work.cuda else 40.0, work.left())
        name = f"largest batch {way}"
        found = work.script(
            name,
            "largest.py",
            *["--model", BATCH_MODEL[work.device], "--way", way, "--device", work.device],
            *["--memory", FIXED[work.device], "--first", FIRST[work.device]],
            *["--seconds", max(limit - 15, 5)],
            limit=limit,
            allocator=way,
        )
        work.add(name, found, largest(found))


def largest(found: dict[str, Any]) -> str:
    """Time that was up makes no largest batch."""
    attempts = found.get("attempts", [])
    rates = {row["batch"]: row["per_second"] for row in attempts if row["ended"] == "fits"}
    if not attempts:
        return "no attempt came to its end"
    at_least = found["at_least"]
    speed_there = f"{rates[at_least]:.0f} {attempts[0].get('unit', '')}/s" if at_least else "-"
    if found.get("largest") is None:
        return f"at least {at_least} ({found['ended']}), {speed_there}"
    refused = min((r["batch"], r["ended"]) for r in attempts if r["ended"] != "fits")
    return f"{found['largest']:6d}, {speed_there}; at {refused[0]}: {refused[1]}"
