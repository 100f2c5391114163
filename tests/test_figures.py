"""Committed figures: each tells what made it, and what a document quotes is of today's C++.

A result's `code` stands for the C++ that was measured, comments left out (perf/measurement.py). A
text has it in its first line, a picture or a table of numbers belongs to the text or JSON of its
name. `make figures` makes anew what the README and the documents quote.
"""

import json
import re
from pathlib import Path

import pytest
from measurement import code, processor, provenance

from tests.fences import DOCUMENTS, ROOT

RESULTS = ROOT / "perf/results"
PROVENANCE = {"command", "commit", "code", "torch", "python", "machine", "load"}

# Results of other code than today's, and why they stay.
OLDER = {
    "auto_models": "long",
    "budget_floor": "long; made before results told their code",
    "conformance": "long, in 30 parts; made before results told their code",
    "fragmentation": "needs the published logs",
    "hugging_face": "made before results told their code",
    "link": "needs the published logs",
    "memory_map": "a picture alone, which tells inside of it where it comes from",
    "mutants": "long",
    "page_prices": "needs the published logs",
    "plan": "long",
    "planted_faults": "long",
    "sanitizers": "says what was clean; made before results told their code",
    "swap": "long",
    "tune": "long, needs the published logs; made before results told their code",
}


# States of the C++ whose figures stand, and what has changed since.
ALIKE = {
    "419fecb99ad8": "how fast the cap of a CUDA guest rises, which a CPU build has not",
}


def stems() -> list[str]:
    return sorted({path.stem for path in RESULTS.glob("*.*")})


def origin(stem: str) -> dict[str, str]:
    """What a result tells of where it comes from; nothing where it does not."""
    document, text = RESULTS / f"{stem}.json", RESULTS / f"{stem}.txt"
    if document.exists():
        told = json.loads(document.read_text())
        return {key: told[key] for key in PROVENANCE & told.keys()}
    if text.exists():
        found = re.match(r"\$ (?P<command>.*?) +# (?P<commit>\w+\+?), code (?P<code>\w+), ",
                         text.read_text())  # fmt: skip
        return found.groupdict() if found else {}
    return {}


@pytest.mark.parametrize("stem", stems())
def test_a_result_tells_the_command_the_commit_and_the_code_that_made_it(stem: str) -> None:
    told = origin(stem)
    if stem in OLDER:
        assert "code" not in told or told["code"] != code(), f"{stem} is of today: not in OLDER"
    else:
        assert {"command", "commit", "code"} <= told.keys()


def quoted(document: Path) -> set[str]:
    """Results that a document links."""
    return set(re.findall(r"results/(\w+)\.(?:json|txt|csv|png)", document.read_text()))


QUOTING = (*DOCUMENTS, ROOT / "perf/README.md")


@pytest.mark.parametrize("stem", sorted(set().union(*map(quoted, QUOTING)) - {*OLDER, "gpu"}))
def test_what_a_document_quotes_was_measured_on_todays_code(stem: str) -> None:
    told = origin(stem)
    assert told["code"] in {code(), *ALIKE}, (
        f"{stem} is of commit {told['commit']}, and C++ has changed since: {told['command']}"
    )


def test_every_result_that_a_document_quotes_exists() -> None:
    for document in QUOTING:
        assert quoted(document) <= {*stems(), "gpu"}, document


def test_comments_and_spaces_leave_the_code_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("measurement.__file__", str(tmp_path / "perf/measurement.py"))
    source = tmp_path / "runtime/csrc/one.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("int one() { return 1; }  // One.\n")
    first = code()
    source.write_text("/* Still\n   one. */\nint one() {\n  return 1;\n}\n")
    assert code() == first
    source.write_text("int one() { return 2; }\n")
    assert code() != first


def test_a_result_names_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    if listed is None:
        pytest.skip("this kernel names no model")
    assert listed[1].split() == processor().split()
    assert f", {processor()}, " in provenance()["machine"]
    monkeypatch.setattr("measurement.processor", lambda: "")
    assert ", , " not in provenance()["machine"]
