"""Is training under a budget bit for bit what it is without, on the device?

Eager runs twice. Where an operator adds in any order eager differs from itself; what differs then
is named and not compared. Everything else must be equal without a limit and at each budget: losses,
gradients, parameters. Times mean nothing here, since several processes share the device.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from work import Work

MODELS = ("resnet", "gpt", "lstm", "treelstm", "unet")
RATIOS = (0.7, 0.5, 0.3)
BUDGETS = (("dtr_alloc", None), *(("dtr_alloc", ratio) for ratio in RATIOS))
SWAP_BUDGETS = (("swap", 0.3), ("swap", 0.2))


def budget_of(eager: dict[str, Any], ratio: float) -> int:
    """Persistent bytes, and a share of what eager has beside them at its peak."""
    persistent = int(eager["persistent_bytes"])
    peak = int(eager.get("allocated_peak_bytes", eager["held_peak_bytes"]))
    return persistent + int(ratio * max(peak - persistent, 0)) + (2 << 20)


def compare(
    work: Work, model: str, extra: list[object], budgets: tuple[tuple[str, float | None], ...]
) -> None:
    """Adds a result for eager, for eager again, and one for each way and share in `budgets`; two
    run at a time. Of an earlier call's results eager's checksums are not kept, so it runs again."""

    def named(budget: tuple[str, float | None]) -> str:
        way, ratio = budget
        return f"{model} {way} {'no limit' if ratio is None else f'{ratio:.1f}'}"

    lacking = [one for one in budgets if not work.report.whole(work.part, named(one))]
    if not lacking:
        return
    work = replace(work, missing=False)
    base = ["--model", model, "--device", work.device, *extra]

    def trained(name: str, *way: object) -> dict[str, Any]:
        return work.script(name, "train.py", *base, *way, limit=120)

    first, second_run = f"{model} eager", f"{model} eager again"
    with ThreadPoolExecutor(2) as pool:
        eager, again = pool.map(trained, (first, second_run))
        if (reference := eager.pop("checksums", None)) is None:
            work.add(first, eager, "")
            work.add(second_run, again, "")
            return
        work.add(first, eager, f"{len(reference)} tensors and losses")
        line = ""
        if (second := again.pop("checksums", None)) is not None:
            again["differing"] = [k for k, v in reference.items() if second.get(k) != v]
            reference = {k: v for k, v in reference.items() if second.get(k) == v}
            line = f"differs from itself in {len(again['differing'])}, which are not compared"
        work.add(second_run, again, line if again.get("differing") else "the same")

        def at(budget: tuple[str, float | None]) -> None:
            way, ratio = budget
            memory = [] if ratio is None else ["--memory", budget_of(eager, ratio)]
            name = named(budget)
            found = trained(name, "--way", way, *memory)
            if (sums := found.pop("checksums", None)) is None:
                work.add(name, found, "")
                return
            found["differing"] = [key for key, value in reference.items() if sums.get(key) != value]
            work.add(name, found, verdict(found, len(reference)))

        list(pool.map(at, lacking))


def verdict(found: dict[str, Any], compared: int) -> str:
    differing = len(found["differing"])
    said = f"DIFFERS in {differing} of {compared}" if differing else f"bit for bit, {compared}"
    counts = found.get("counts", {})
    evictions = counts.get("session.evictions", 0)
    moved = counts.get("session.swapped_out_bytes", 0) / (1 << 30)
    said += f", {evictions} evictions, {counts.get('pool.remaps', 0)} remaps"
    if moved:
        said += f", {moved:.2f} GiB swapped out"
    for name, refused in found.get("caught", {}).items():
        said += f"; {name} went on without {refused / (1 << 20):.0f} MiB"
    return said


def demo(work: Work) -> None:
    budgets = BUDGETS if work.cuda else BUDGETS[2:3]
    with ThreadPoolExecutor(len(MODELS) if work.cuda else 1) as pool:
        list(pool.map(lambda model: compare(work, model, [], budgets), MODELS))


def unet(work: Work) -> None:
    """Its convolutions were once refused their workspace there; strict, that is an error."""
    compare(work, "unet", [], (("dtr_alloc", 0.3), ("strict", 0.3)))


def exact(work: Work) -> None:
    one_gpt(work, (*BUDGETS, *SWAP_BUDGETS) if work.cuda else (BUDGETS[2], SWAP_BUDGETS[0]))


def over_torch(work: Work) -> None:
    one_gpt(work, (("torch", 0.7), ("torch", 0.5)))


def one_gpt(work: Work, budgets: tuple[tuple[str, float | None], ...]) -> None:
    model, batch, steps = ("gpt1b", 4, 4) if work.cuda else ("gpt-tiny", 8, 2)
    compare(work, model, ["--batch", batch, "--steps", steps], budgets)
