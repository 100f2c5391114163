"""Figures in the documents come from results.

Each sentence of quotes.py is made of a result's own figures, and its document must have these
very words. So where a result is measured anew, the test tells which sentences to write anew. A
figure that is in none of the sentences fails too, unless NO_RESULT says where it comes from. What
counts as one: a number with a unit, a per cent, a decimal, "3 of 60", "2 times".

Code, heads of tables and budgets ("at 50 %", "within 0.7") are settings and none of these.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.documents.quotes import QUOTES
from tests.support.fences import DOCUMENTS, ROOT

UNITS = "ns|us|ms|s|seconds|minutes|x|times|%|MiB|GiB|[MGT]B|[MGT]B/s"
# A version of torch or Python is none, nor a number of three parts.
FIGURE = re.compile(
    rf"\d[\d,.]* ?(?:(?:{UNITS})(?!\w)|(?:of (?:the )?|against )\d)"
    r"|(?<![\d.,])(?!2\.1[1-5]\b|3\.1\d\b)\d+\.\d+\b(?!\.\d)"
)
SETTING = re.compile(
    r"\b(?:at|budgets? of|budgets up to|within) (?:(?:\d0, )*(?:\d0 and )?\d0 %"
    rf"|0\.\d(?:(?:,| and| to) 0\.\d)*(?!\d| ?(?:{UNITS})\b))"
    r"|\b(?:section|theorem|Apache|CUDA|Linux) \d+\.\d|(?<![\d.,])2 MiB"
)

NO_RESULT = {
    "a score reckoned at 6 ns": "a constant of the code",
    "a lineage of k values counts k x k x 2 us more": "a constant of the code",
    "and k x k x 2 us more for k of them": "a constant of the code",
    "of 50 us then counts 52 us, and a chain of twenty counts 1,800 us instead": "an example",
    "an estimate is used (5 us, and 2 TB/s)": "a constant of the code",
    "1 ns is added to c + n and to the staleness": "a definition",
    "1 ns is added to cost and staleness": "a definition",
    "times add up to more than 2^60 ns": "a limit of the code",
    "replays the published logs at 20, 80 and 200 us a page": "prices that were assumed",
    "An overhead of 1.25 means": "an example",
    "at budgets within 1 %. The peak": "a constant of the code",
    "by the live runtime's rules, and adds 3 %": "a constant of the code",
    "at least 2.5 times as large": "a constant of the code",
    "(c + n) x 1.0001^r": "MegEngine's constant",
    "where it has 512 MiB of addresses": "a constant of the code",
    "With budgets of 224 MiB and more": "a constant of the code",
    "more than 1 MiB is charged with 1 MiB more": "a constant of torch",
    "of up to 32 MiB, has been freed once": "a constant of malloc",
    "the backward pass's included: 32 MiB with": "a constant of cuBLAS",
    "set to 64 MiB while 48 MiB are lent: it becomes 112 MiB": "an example",
    "an assumed bus of 25 GB/s each way": "an assumption",
    "Each call ends by itself after 540 seconds": "a constant of the code",
    "The largest batch in 40 GiB": "a constant of the code",
    "240 of 240 runs are equal": "tests/simulate/test_reference_parity.py asserts it",
}


def prose(document: Path) -> str:
    """The text without blocks of code and heads of tables, in one line."""
    text = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.M | re.S)
    return " ".join(re.sub(r"^\|.*\n(?=\|[-|]+$)", "", text, flags=re.M).split())


@pytest.mark.parametrize(
    ("document", "quotes"),
    [(document, quotes) for document, all_ in QUOTES.items() for quotes in all_],
)
def test_a_document_quotes_a_result_as_it_is(
    document: str, quotes: Callable[[], Iterator[str]]
) -> None:
    text = prose(ROOT / document)
    assert [sentence for sentence in quotes() if sentence not in text] == []


@pytest.mark.parametrize(
    "document",
    sorted({str(path.relative_to(ROOT)) for path in DOCUMENTS} | {*QUOTES}),
)
def test_every_figure_of_a_document_is_a_results(document: str) -> None:
    text = prose(ROOT / document)
    sentences = [sentence for quotes in QUOTES.get(document, ()) for sentence in quotes()]
    for sentence in (*sentences, *NO_RESULT):
        text = text.replace(sentence, "")
    text = SETTING.sub("", re.sub(r"`[^`]*`", "", text))
    found = FIGURE.finditer(text)
    assert [text[max(0, figure.start() - 40) : figure.end() + 20] for figure in found] == []


def test_what_needs_no_result_is_still_said() -> None:
    text = " ".join(map(prose, [*DOCUMENTS, ROOT / "perf/README.md"]))
    assert [phrase for phrase in NO_RESULT if phrase not in text] == []


def test_the_tests_that_a_page_calls_passed_on_a_gpu_passed_there() -> None:
    page = (ROOT / "docs/allocator.md").read_text()
    passed = (ROOT / "perf/results/gpu/tests.txt").read_text()
    named = re.findall(r"\bG `(\w+)`", page)
    assert len(named) >= 5
    assert [name for name in named if not re.search(rf"PASSED \S+::{name}\b", passed)] == []
