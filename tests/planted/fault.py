"""A fault to plant, and the test that must notice it: it breaks one rule of DESIGN.md, by changing
the text of a source.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    source: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    name: str
    edits: tuple[Edit, ...]
    test: str
    tries: int = 1  # Runs of the test, one of which must fail: of a race, not each does.


def fault(name: str, source: str, old: str, new: str, test: str, tries: int = 1) -> Fault:
    """One that a single edit makes."""
    return Fault(name, (Edit(source, old, new),), test, tries)
