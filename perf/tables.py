"""Writes the tables of the documents from the committed results: `make tables`.

A table stands between two comments, `<!-- table: NAME -->` and `<!-- end -->`. Nobody edits it by
hand: this script writes it from perf/results, with a line below it that names the result, its
commit and its machine. It takes a second, needs neither torch nor a build, and runs nothing.
tests/documents/test_figures.py fails where a document has another table than this script writes.

    python perf/tables.py
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

from cpu_tables import CPU_TABLES
from gpu_tables import GPU_TABLES
from markdown_tables import Table
from result_files import ROOT
from study_tables import STUDY_TABLES

TABLES = {**GPU_TABLES, **CPU_TABLES, **STUDY_TABLES}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "perf/README.md"])
MARKED = re.compile(r"^<!-- table: (\w+) -->\n(.*?)^<!-- end -->$", re.M | re.S)
FIRST_LINE = re.compile(
    r"\$ .*? +# (?P<commit>\w+\+?), code \w+, torch (?P<torch>[^ ,]+), (?P<machine>.*), load [\d.]+"
)
# The architecture, where the name of a processor follows it.
PROCESSOR = re.compile(r"(?<=, )x86_64, (?!\d)")


def origin(path: str) -> tuple[str, str]:
    """The commit of a result, and its torch and machine, as far as it tells them."""
    text = (ROOT / path).read_text()
    if path.endswith(".txt"):
        found = FIRST_LINE.match(text)
        about = found.groupdict() if found else {}
    else:
        about = json.loads(text)
    commit = f" of commit {about['commit']}" if "commit" in about else ""
    kinds = {"torch": ", torch ", "machine": ", "}
    where = "".join(f"{kind}{about[name]}" for name, kind in kinds.items() if name in about)
    return commit, PROCESSOR.sub("", where)


def written(table: Table, folder: Path) -> str:
    """The table in Markdown, for a document in `folder`, and where its figures come from."""
    head, *rows = (f"|{'|'.join(line)}|" for line in (table.head, *table.rows))
    drawn = "\n".join([head, f"|{'---|' * len(table.head)}", *rows])
    sources: dict[str, list[str]] = {}  # Of each place where some were measured.
    for path in table.sources:
        commit, where = (table.about, "") if table.about else origin(path)
        link = f"[{Path(path).name}]({os.path.relpath(ROOT / path, folder)})"
        sources.setdefault(where, []).append(f"{link}{commit}")
    told = "; ".join(f"{', '.join(links)}{where}" for where, links in sources.items())
    return f"{drawn}\n\nFrom {told}.\n"


def renewed(document: Path) -> str:
    """The text of a document with each of its tables as the results are today."""

    def table(found: re.Match[str]) -> str:
        drawn = written(TABLES[found[1]](), document.parent)
        return f"<!-- table: {found[1]} -->\n{drawn}<!-- end -->"

    return MARKED.sub(table, document.read_text())


if __name__ == "__main__":
    for document in DOCUMENTS:
        text = renewed(document)
        if text != document.read_text():
            document.write_text(text)
            print(document.relative_to(ROOT))
