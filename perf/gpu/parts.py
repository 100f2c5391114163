"""All parts, in the order of their worth: what is lost last is what would be missed most."""

from __future__ import annotations

import parts_exact
import parts_memory
import parts_speed
from parts_tests import tests
from work import Part

PARTS = (
    Part("probe", parts_memory.probe, 60, "What does each call of the driver cost?"),
    Part("tests", tests, 300, "Do the tests that need a GPU pass?"),
    Part("gpt", parts_speed.gpt, 240, "Is a GPT of 1.0 billion parameters exact, and how fast?"),
    Part("anchors", parts_speed.anchors, 420, "What does twice the batch cost, by each way?"),
    Part("batches", parts_speed.batches, 420, "How large a batch fits, by each way?"),
    Part("guest", parts_speed.guest, 240, "What does guest mode cost, and does 1.5x the card run?"),
    Part("swap", parts_speed.swap, 300, "What does a swap to the host gain in little memory?"),
    Part("demo", parts_exact.demo, 180, "Are five small models exact at three budgets?"),
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
