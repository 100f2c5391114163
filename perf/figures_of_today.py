"""Are the figures that the documents show of today's C++? A proof of `make prove`.

A result has a checksum of the C++ that it measured (`code`, support/measurement.py). Code may move
without any figure changing, so this is asked before a release and not of every commit. It prints
the command of each result that is of other C++, and exits with 1 if there is one. OLDER and GPU are
not asked: the one has reasons, and for the other a GPU is seldom at hand.

    python perf/figures_of_today.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

from measurement import code

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "perf/results"
PAPER = ROOT / "perf/paper/results"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "perf/README.md"])
PROVENANCE = {"command", "commit", "code", "torch", "python", "machine", "load"}
FIRST_LINE = re.compile(
    r"\$ (?P<command>.*?) +# (?P<commit>\w+\+?), code (?P<code>\w+), "
    r"torch (?P<torch>[^ ,]+), (?P<machine>.*), load (?P<load>\d+\.\d)"
)

# Results of an earlier build, and why they stay.
OLDER = {
    "hugging_face": "made before results told their code",
    "memory_map": "a picture alone, which tells inside of it where it comes from",
    "plan": "long",
    "releases": "four builds and their tests: hours",
    "tune": "long, needs the published logs; made before results told their code",
    "paper/overhead_profile": "has times: for a quiet machine",
    "paper/theorem_linear": "has times: for a quiet machine",
}
# Results of a GPU, and what tells where each comes from.
GPU = {
    "gpu/gpu": "the record of each call, in gpu.json",
    "gpu/full_card": "lines of one of these calls, as they came",
    "gpu/tests": "lines of one of these calls, as they came",
    "gpu/refused_workspace": "its own fields",
}


def file(name: str) -> Path:
    """Where a result lies, without a suffix."""
    return PAPER / name.removeprefix("paper/") if name.startswith("paper/") else RESULTS / name


def tells(name: str) -> list[Path]:
    """The JSON and the text of a result, as far as there are."""
    both = [file(name).with_name(f"{file(name).name}.{suffix}") for suffix in ("json", "txt")]
    return [path for path in both if path.exists()]


def told(path: Path) -> dict[str, str]:
    """What a JSON or a text tells of where it comes from; nothing where it does not."""
    if path.suffix == ".json":
        document = json.loads(path.read_text())
        return {key: document[key] for key in PROVENANCE & document.keys()}
    found = FIRST_LINE.match(path.read_text())
    return found.groupdict() if found else {}


def shown() -> set[str]:
    """The names of all results that a document links, without suffixes."""
    text = "".join(document.read_text() for document in DOCUMENTS)
    found = re.findall(r"(paper/)?results/([\w/-]+)\.(?:json|txt|csv|png)", text)
    return {f"{paper}{name}" for paper, name in found}


def main() -> int:
    asked = sorted(shown() - OLDER.keys() - GPU.keys())
    older = {name: about for name in asked if (about := told(tells(name)[0]))["code"] != code()}
    for name, about in older.items():
        print(
            f"{name} is of commit {about['commit']}, and C++ has changed since: {about['command']}"
        )
    print(f"{len(asked) - len(older)} of {len(asked)} results are of today's C++")
    return 1 if older else 0


if __name__ == "__main__":
    sys.exit(main())
