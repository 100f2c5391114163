r"""Faults to plant, and the test that must notice each: a fault breaks a rule of DESIGN.md, by
changing the text of a source. In faults.txt it is a line with its name, below it one for each edit,
`source: old -> new` in which \n ends a line, and one with the test."""

import re
from dataclasses import dataclass
from pathlib import Path

EDIT = re.compile(r" +(\S+): (.*) ->(?: (.*))?")
TEST = re.compile(r" +(\S+)(?: \((\d+) tries\))?")


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
    tries: int  # Runs of the test, one of which must fail: of a race, not each does.


def faults() -> list[Fault]:
    text = Path(__file__).with_name("faults.txt").read_text()
    found: list[Fault] = []
    for entry in re.findall(r"^[^#\s].*\n(?: +.*\n)+", text, re.M):
        name, *edits, last = entry.splitlines()
        matches = [EDIT.fullmatch(edit) for edit in edits]
        parts = [match.groups("") for match in matches if match]
        assert len(parts) == len(edits) > 0, name
        changes = tuple(Edit(*(part.replace("\\n", "\n") for part in edit)) for edit in parts)
        test, tries = TEST.fullmatch(last).groups("1")  # type: ignore[union-attr]
        found.append(Fault(name, changes, test, int(tries)))
    return found
