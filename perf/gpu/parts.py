"""All parts in the order of their worth, and which of them a call has time for.

A GPU may be there for minutes only. So what no GPU has shown yet comes first, and what was measured
before comes last. A part runs if there is left a fifth more than it took when it was last whole, or
its limit where it never was; if not, a smaller one further down may run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import parts_exact
import parts_memory
import parts_speed
from parts_tests import all_tests, full_card, tests
from work import LEAST_SECONDS, Part

PARTS = (
    Part("tests", tests, 90, "Do the tests pass that never passed on a GPU?", timed=False),
    Part("over-torch", parts_exact.over_torch, 90, "Is memory='torch' exact?", timed=False),
    Part("unet", parts_exact.unet, 60, "Is the U-Net at 30 % exact, or refused?", timed=False),
    Part("anchors", parts_speed.anchors, 210, "What does twice the batch cost, by each way?"),
    Part("batches", parts_speed.batches, 150, "How large a batch fits, by each way?"),
    Part("allocators", parts_memory.allocators, 75, "How fast and how tight is each allocator?"),
    Part("scoring", parts_memory.scoring, 35, "What does it cost to choose a victim?"),
    Part("floor", parts_speed.floor, 40, "Does a swap train below the floor?"),
    Part("segments", parts_speed.segments, 60, "And guest mode with expandable segments?"),
    Part("guest", parts_speed.guest, 60, "What does guest mode cost, and does 1.5x the card run?"),
    Part("all-tests", all_tests, 120, "Do all tests pass that need a GPU?", timed=False),
    Part("exact", parts_exact.exact, 240, "Is a GPT of 1.0 billion exact?", timed=False),
    Part("demo", parts_exact.demo, 240, "Are five small models exact?", timed=False),
    Part("full-card", full_card, 60, "And where another process fills the card?", needs_gpu=True),
    Part("gpt", parts_speed.gpt, 150, "How fast is that GPT at 70, 50 and 30 %?"),
    Part("swap", parts_speed.swap, 100, "What does a swap to the host gain in little memory?"),
    Part("probe", parts_memory.probe, 60, "What does each call of the driver cost?"),
    Part("remap", parts_memory.remap, 60, "What does it cost to move a page?"),
)


def chosen(only: str | None, before: Any = None, missing: bool = False) -> list[Part]:
    """The parts that are named, in our order. Of what is missing, parts come last that earlier
    calls (`before`, the report's `parts`) gave all of their time: they may hang.

    Raises:
        ValueError: A name that no part has.
    """
    known = [part.name for part in PARTS]
    names = known if only is None else [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no part is named {', '.join(unknown)}; there are {', '.join(known)}")
    spent = {name: old.get("seconds", 0) * missing for name, old in (before or {}).items()}
    found = [part for part in PARTS if part.name in names]
    return sorted(found, key=lambda part: spent.get(part.name, 0) > 0.9 * part.limit)


def turns(parts: list[Part]) -> Iterator[list[Part]]:
    """What runs at once: a part whose figures are of time alone, others side by side."""
    for timed, together in groupby(parts, lambda part: part.timed):
        members = list(together)
        yield from [[part] for part in members] if timed else [members]


def seconds(part: Part, before: Any, missing: bool) -> float:
    """What it will take, by what earlier calls say of it."""
    old = before.get(part.name, {})
    spent: float = old.get("seconds", 0)
    needs = 1.2 * spent if old.get("state") == "done" else part.limit - spent * missing
    return max(needs, 2 * LEAST_SECONDS)


def why_not(part: Part, before: Any, missing: bool, device: str, left: float) -> str:
    """Why a call that has so many seconds left skips it; empty if it runs."""
    if part.needs_gpu and device == "cpu":
        return "it needs a GPU"
    if missing and before.get(part.name, {}).get("state") == "done":
        return "already measured"
    if (needs := seconds(part, before, missing)) > left:
        return f"no time: it takes {needs:.0f} s, and {max(left, 0):.0f} are left"
    return ""


def planned(
    parts: list[Part], before: Any, missing: bool, device: str, left: float
) -> Iterator[tuple[Part, float, str]]:
    """Each with its seconds and why it is skipped, if each takes just so long."""
    for together in turns(parts):
        whys = [why_not(part, before, missing, device, left) for part in together]
        needs = [seconds(part, before, missing) for part in together]
        yield from zip(together, needs, whys, strict=True)
        left -= max((n for n, why in zip(needs, whys, strict=True) if not why), default=0)
