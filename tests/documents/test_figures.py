"""Committed figures: each tells what made it, and what a document quotes is of today's C++.

A result's `code` stands for the C++ that was measured, comments left out (measurement.py). A
text has it in its first line, a picture or a table of numbers belongs to the text or JSON of its
name, or of the name that its own begins with. `make figures` makes anew what the README and the
documents quote. What it leaves out is listed here, with the reason.
"""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from measurement import code, processor, provenance
from prove import PROOFS

from tests.support.fences import DOCUMENTS, ROOT

RESULTS = ROOT / "perf/results"
PAPER = ROOT / "perf/paper/results"
PROVENANCE = {"command", "commit", "code", "torch", "python", "machine", "load"}
FIRST_LINE = re.compile(
    r"\$ (?P<command>.*?) +# (?P<commit>\w+\+?), code (?P<code>\w+), "
    r"torch (?P<torch>[^ ,]+), (?P<machine>.*), load (?P<load>\d+\.\d)"
)

# Results of other code than today's, and why they stay.
OLDER = {
    "hugging_face": "made before results told their code",
    "memory_map": "a picture alone, which tells inside of it where it comes from",
    "mutants": "two hours",
    "plan": "long",
    "tune": "long, needs the published logs; made before results told their code",
}

# Of today's C++, but made alone: too long for the forty minutes of `make figures`, or from the
# published logs, which are not ours to give.
ALONE = {
    "beside",
    "compiled",
    "fragmentation",
    "guest",
    "link",
    "odd_batches",
    "page_prices",
    "paper/fine_budgets_own",
    "paper/orphans_dtr-logs",
    "swap",
    "unavoidable_real_size",
}

# Those of perf/paper that are older than what tells where they come from, and why they stay. A
# picture or a table of numbers that has no text of its own waits for one here.
TIMES = "has times: for a quiet machine"
PAPER_OLDER = {
    "paper/overhead_profile": TIMES,
    "paper/theorem_linear": TIMES,
}

# What `make prove` writes.
PROVED = {"proofs", *(Path(proof.result).stem for proof in PROOFS.values() if proof.result)}

# Results of a GPU, and what tells where each comes from. They need not be of today's C++: a GPU is
# seldom at hand. perf/README.md says what has changed since.
GPU = {
    "gpu/gpu": "the record of each call, in gpu.json",
    "gpu/full_card": "lines of one of these calls, as they came",
    "gpu/tests": "lines of one of these calls, as they came",
    "gpu/refused_workspace": "its own fields",
}

# States of the C++ whose figures stand, and what has changed since.
ALIKE = {
    "94dffbfc7797": "that results of max_unpool stay in memory",
    "6fb98c872778": "in which file a class is",
    "a9b6ec0ce9d1": "texts of errors, and where tensors have a place that come back after the end",
    "ad74b9f2c96d": "what a copy out of a device's swap waits for; on the host nothing differs",
    "a40bf0babd6e": "which tape is followed after a step of another kind that began alike, that an "
    "operator of any kind meets its stream on a device, which results of cuDNN's stay, and how a "
    "swap ends and fails; what one thread does on the host in steps that repeat is the same",
    "a227625f8a22": "in which order equal orphans go, what a late watch knows, and guests on a "
    "device; what stands is what proofs found",
    "2fa1defc4dee": "how the live runtime chooses, moves pages and serves guests; what stands is "
    "of the simulator's paper mode",
}


def file(name: str) -> Path:
    """Where a result lies, without a suffix."""
    return PAPER / name.removeprefix("paper/") if name.startswith("paper/") else RESULTS / name


def results() -> list[str]:
    """The names of all results, without suffixes; those in a folder with the folder's."""
    paths = [path.relative_to(RESULTS) for path in RESULTS.rglob("[!.]*.*")]
    paths += ["paper" / path.relative_to(PAPER) for path in PAPER.glob("[!.]*.*")]
    names = {str(path.with_suffix("")) for path in paths}
    whole = [name for name in names if tells(name) or name in OLDER.keys() | PAPER_OLDER.keys()]
    return sorted(n for n in names if n in whole or not any(n.startswith(f"{w}_") for w in whole))


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


def origin(name: str) -> dict[str, str]:
    """What a result tells of where it comes from."""
    paths = tells(name)
    return told(paths[0]) if paths else {}


@pytest.mark.parametrize("name", sorted({*results()} - GPU.keys()))
def test_a_result_tells_what_made_it_of_which_code_and_where(name: str) -> None:
    if name in OLDER or name in PAPER_OLDER:
        codes = {told(path).get("code") for path in tells(name)}
        assert codes != {code()}, f"{name} is of today: it is no older result"
        return
    assert tells(name), "a picture or a table of numbers, and nothing that tells"
    for path in tells(name):
        expected = PROVENANCE if path.suffix == ".json" else FIRST_LINE.groupindex.keys()
        assert told(path).keys() == expected, path


def named(document: Path) -> set[str]:
    """Results that a document links."""
    text = document.read_text()
    found = re.findall(r"(paper/)?results/([\w/-]+)\.(?:json|txt|csv|png)", text)
    return {f"{paper}{name}" for paper, name in found}


QUOTING = (*DOCUMENTS, ROOT / "perf/README.md")
QUOTED = sorted(set().union(*map(named, QUOTING)))
NEED_NOT = {*OLDER, *PAPER_OLDER, *GPU}
OF_TODAY = [name for name in QUOTED if name not in NEED_NOT]


@pytest.mark.parametrize("name", OF_TODAY)
def test_what_a_document_quotes_was_measured_on_todays_code(name: str) -> None:
    of = origin(name)
    assert of["code"] in {code(), *ALIKE}, (
        f"{name} is of commit {of['commit']}, and C++ has changed since: {of['command']}"
    )


def measured_by_make_figures() -> set[str]:
    """The commands of the target `figures`, as a result tells them."""
    target = re.search(r"^figures:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert target
    return {
        shlex.join(["python", *shlex.split(line)[1:]])
        for line in target[1].replace("$(PYTHON)", "python").splitlines()
    }


@pytest.mark.parametrize("name", OF_TODAY)
def test_what_a_document_quotes_of_today_is_made_by_make(name: str) -> None:
    made = origin(name)["command"] in measured_by_make_figures()
    assert made or name in PROVED | ALONE, "neither `make figures` nor `make prove` makes it"


@pytest.mark.parametrize("document", QUOTING, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_says_where_it_quotes_an_earlier_build(document: Path) -> None:
    older = named(document) & (OLDER.keys() | PAPER_OLDER.keys())
    said = "earlier build" in " ".join(document.read_text().split())
    assert said or not older - {"memory_map"}, f"{document.name} quotes {', '.join(sorted(older))}"


def test_every_result_that_a_document_quotes_exists() -> None:
    assert {*QUOTED} <= {*results()}


def test_lists_name_what_exists_once() -> None:
    lists = (OLDER, PAPER_OLDER, GPU, ALONE)
    assert set().union(*lists) <= {*results()}
    assert len(set().union(*lists)) == sum(map(len, lists))
    assert {name for name in results() if name.startswith("gpu/")} == GPU.keys()


def commits_of_the_gpu() -> list[tuple[str, str]]:
    """Each call on a GPU, and what else has a record of its own, with the commit it names."""
    calls = json.loads((RESULTS / "gpu/gpu.json").read_text())["calls"]
    alone = json.loads((RESULTS / "gpu/refused_workspace.json").read_text())
    return [
        *((f"call {number}", call.get("commit", "")) for number, call in calls.items()),
        ("refused_workspace", alone.get("commit", "")),
    ]


@pytest.mark.parametrize(("record", "commit"), commits_of_the_gpu())
def test_a_record_of_a_gpu_names_a_commit_of_this_repository(record: str, commit: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{40}", commit), record
    git = ["git", "-C", str(ROOT)]
    try:
        shallow = subprocess.run(
            [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True
        )
    except OSError:
        pytest.skip("no git")
    if shallow.returncode or shallow.stdout.strip() != "false":
        pytest.skip("no history")
    found = subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
    assert found.returncode == 0, f"{record}: the history has no {commit}"


def test_the_text_of_a_gpu_names_commits_of_its_calls() -> None:
    commits = [commit for _, commit in commits_of_the_gpu()]
    short = re.findall(r", commit (\w+)", (RESULTS / "gpu/gpu.txt").read_text())
    assert short
    assert all(any(commit.startswith(one) for commit in commits) for one in short)


def test_comments_and_spaces_leave_the_code_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("measurement.__file__", str(tmp_path / "perf/support/measurement.py"))
    source = tmp_path / "runtime/csrc/one.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("int one() { return 1; }  // One.\n")
    first = code()
    source.write_text("/* Still\n   one. */\nint one() {\n  return 1;\n}\n")
    assert code() == first
    source.write_text("int one() { return 2; }\n")
    assert code() != first


def test_a_result_names_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    about = Path("/proc/cpuinfo")
    if not about.exists() or not processor():
        pytest.skip("this kernel names no model")
    assert processor() in " ".join(about.read_text().split())
    assert f", {processor()}, " in provenance()["machine"]
    monkeypatch.setattr("measurement.processor", lambda: "")
    assert ", , " not in provenance()["machine"]
