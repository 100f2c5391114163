"""Figures in the documents come from results.

Each sentence of tests/quotes.py is made of a result's own figures, and its document must have these
very words. So where a result is measured anew, the test tells which sentences to write anew. A time
or a ratio that is in none of the sentences fails too, unless NO_RESULT says where it comes from.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fences import DOCUMENTS, ROOT
from tests.quotes import QUOTES

# A time or a ratio; a version of torch or Python is neither.
FIGURE = re.compile(r"\d[\d,.]* (?:ns|us|ms|x)\b|(?<![\d.,])(?!2\.1[1-5]\b|3\.1\d\b)\d+\.\d\d\b")

NO_RESULT = {
    "a score reckoned at 25 ns": "a constant of the code",
    "an estimate is used (5 us, and 2 TB/s)": "a constant of the code",
    "1 ns is added to c + n and to the staleness": "a definition",
    "1 ns is added to cost and staleness": "a definition",
    "times add up to more than 2^60 ns": "a limit of the code",
    "replays the published logs at 20, 80 and 200 us a page": "prices that were assumed",
    "a call of `mremap` takes 9 us, and each": "a process measures it at its start; of one machine",
    "page of 4 KiB some 20 ns": "a process measures it at its start; of one machine",
    "faulted in anew takes 1.4 us. A huge page takes 0.7 us to move and 45 us anew": "by hand",
    "3 found 4.18 MiB where most found 4.02": "by hand",
    "the search took 44 us, in at most one of twenty": "by hand, processor time, busy machine",
    "it then saved 15 us": "by hand, processor time, busy machine",
    "An overhead of 1.25 means": "an example",
}


def prose(document: Path) -> str:
    """The text without blocks of code, in one line."""
    return " ".join(re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S).split())


@pytest.mark.parametrize(
    ("document", "quotes"),
    [(document, quotes) for document, all_ in QUOTES.items() for quotes in all_],
)
def test_a_document_quotes_a_result_as_it_is(
    document: str, quotes: Callable[[], Iterator[str]]
) -> None:
    text = prose(ROOT / document)
    assert [sentence for sentence in quotes() if sentence not in text] == []


# What changed was so when it changed: CHANGELOG.md is no document of today's figures.
@pytest.mark.parametrize(
    "document",
    sorted({str(path.relative_to(ROOT)) for path in DOCUMENTS} - {"CHANGELOG.md"} | {*QUOTES}),
)
def test_every_figure_of_a_document_is_a_results(document: str) -> None:
    text = prose(ROOT / document)
    sentences = [sentence for quotes in QUOTES.get(document, ()) for sentence in quotes()]
    for sentence in (*sentences, *NO_RESULT):
        text = text.replace(sentence, "")
    found = FIGURE.finditer(text)
    assert [text[max(0, figure.start() - 40) : figure.end() + 20] for figure in found] == []


def test_what_needs_no_result_is_still_said() -> None:
    text = " ".join(map(prose, [*DOCUMENTS, ROOT / "perf/README.md"]))
    assert [phrase for phrase in NO_RESULT if phrase not in text] == []
