"""All parts, in the order of their worth: what is lost last is what would be missed most."""

from __future__ import annotations

import parts_exact
import parts_memory
import parts_speed
from parts_tests import full_card, tests
from work import Part

PARTS = (
    Part("tests", tests, 240, "Do the tests that need a GPU pass?", timed=False),
    Part("exact", parts_exact.exact, 240, "Is a GPT of 1.0 billion exact?", timed=False),
    Part("demo", parts_exact.demo, 240, "Are five small models exact?", timed=False),
    Part("full-card", full_card, 60, "And where another process fills the card?"),
    Part("gpt", parts_speed.gpt, 150, "How fast is that GPT at 70, 50 and 30 %?"),
    Part("probe", parts_memory.probe, 60, "What does each call of the driver cost?"),
    Part("anchors", parts_speed.anchors, 420, "What does twice the batch cost, by each way?"),
    Part("batches", parts_speed.batches, 420, "How large a batch fits, by each way?"),
    Part("guest", parts_speed.guest, 240, "What does guest mode cost, and does 1.5x the card run?"),
    Part("swap", parts_speed.swap, 240, "What does a swap to the host gain in little memory?"),
    Part("remap", parts_memory.remap, 60, "What does it cost to move a page?"),
    Part("allocators", parts_memory.allocators, 180, "How fast and how tight is each allocator?"),
    Part("scoring", parts_memory.scoring, 90, "What does it cost to choose a victim?"),
)


def chosen(only: str | None) -> list[Part]:
    """The parts that are named, in our order.

    Raises:
        ValueError: A name that no part has.
    """
    if only is None:
        return list(PARTS)
    names = [name for name in only.split(",") if name]
    known = [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no part is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [part for part in PARTS if part.name in names]
