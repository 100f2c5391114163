"""Committed figures: each result tells the command, the commit and the machine that made it.

A text has them in its first line. A picture or a table of numbers belongs to the text or JSON of
its name, or of the name that its own begins with. Whether a result is of today's C++ is asked by
`make prove` (perf/figures_of_today.py).
"""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from figures_of_today import (
    FIRST_LINE,
    GPU,
    OLDER,
    PAPER,
    PROVENANCE,
    RESULTS,
    main,
    shown,
    tells,
    told,
)
from measurement import code, processor, provenance
from result_files import limited
from tables import DOCUMENTS, MARKED, TABLES, renewed

from tests.support.fences import ROOT


def results() -> list[str]:
    """The names of all results, without suffixes; those in a folder with the folder's."""
    paths = [path.relative_to(RESULTS) for path in RESULTS.rglob("[!.]*.*")]
    paths += ["paper" / path.relative_to(PAPER) for path in PAPER.glob("[!.]*.*")]
    names = {str(path.with_suffix("")) for path in paths}
    whole = [name for name in names if tells(name) or name in OLDER]
    return sorted(n for n in names if n in whole or not any(n.startswith(f"{w}_") for w in whole))


@pytest.mark.parametrize("name", sorted({*results()} - GPU.keys()))
def test_a_result_tells_what_made_it_of_which_code_and_where(name: str) -> None:
    if name in OLDER:
        codes = {told(path).get("code") for path in tells(name)}
        assert codes != {code()}, f"{name} is of today: it is no older result"
        return
    assert tells(name), "a picture or a table of numbers, and nothing that tells"
    for path in tells(name):
        expected = PROVENANCE if path.suffix == ".json" else FIRST_LINE.groupindex.keys()
        assert told(path).keys() == expected, path


def test_every_result_that_a_document_shows_exists() -> None:
    assert shown() <= {*results()}


def test_lists_name_what_exists() -> None:
    assert OLDER.keys() | GPU.keys() <= {*results()}
    assert {name for name in results() if name.startswith("gpu/")} == GPU.keys()


def test_a_result_of_other_code_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of = told(RESULTS / "fidelity.json")
    monkeypatch.setattr("figures_of_today.shown", lambda: {"fidelity", "plan", "gpu/gpu"})
    for now, failed in ((of["code"], 0), ("another", 1)):
        monkeypatch.setattr("figures_of_today.code", lambda now=now: now)
        assert main() == failed
        said = capsys.readouterr().out
        assert said.endswith(f"{1 - failed} of 1 results are of today's C++\n")
        assert (of["command"] in said) == bool(failed)


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


# Tables of documents, which perf/tables.py writes from the results.


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tables_of_a_document_are_those_of_the_results(document: Path) -> None:
    remedy = f"a table of {document.name} is not what the results say: run `make tables`"
    assert document.read_text() == renewed(document), remedy


def test_every_table_stands_in_a_document_once_between_whole_markers() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    whole = Counter(found[1] for found in MARKED.finditer(text))
    assert whole == dict.fromkeys(TABLES, 1)
    assert len(re.findall(r"^<!-- (?:table: |end )", text, re.M)) == 2 * len(TABLES)


def test_a_result_says_of_each_limit_whether_it_is_kept() -> None:
    assert sum(one["limit"] is not None for _, one in limited()) > 40
    for name, one in limited():
        kept = one["limit"] is None or one["value"] <= one["limit"]
        assert one["kept"] == kept, f"{name}: {one['name']}"
