"""Each table of a document is the one that perf/tables.py writes from the committed results."""

import re
from collections import Counter
from pathlib import Path

import pytest
from result_files import limited
from tables import DOCUMENTS, MARKED, TABLES, renewed

from tests.support.fences import ROOT


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
