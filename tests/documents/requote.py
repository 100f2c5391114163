"""Writes the figures of results anew into the documents that quote them, after `make figures`.

A sentence of quotes.py is found by its words, whatever its figures are, and each figure takes
its place. A row of a table that has no figures to replace is found by its first cells. What is
found nowhere is told: there the words have changed, and they are yours to write.

    python -m tests.documents.requote
"""

from __future__ import annotations

import re
import sys

from tests.documents.quotes import QUOTES
from tests.documents.test_quoted_figures import prose
from tests.support.fences import ROOT

NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(rf"{NUMBER}(?: to {NUMBER})?")


def pattern(sentence: str) -> re.Pattern[str]:
    """Of the sentence, with a group for each figure; words may be on several lines."""
    words = [r"\s+".join(map(re.escape, part.split(" "))) for part in FIGURE.split(sentence)]
    return re.compile(rf"({NUMBER}(?:\s+to\s+{NUMBER})?)".join(words))


def replaced(text: str, sentence: str, begin: int) -> tuple[str, int] | None:
    """The text with the sentence at its first place from `begin` on, and where that ends."""
    found = pattern(sentence).search(text, begin)
    if found is None:
        return None
    before = len(text)
    figures = FIGURE.findall(sentence)
    for at in range(len(figures), 0, -1):
        start, end = found.span(at)
        to = re.search(r"\s+to\s+", found[at])
        figure = figures[at - 1].replace(" to ", to[0] if to else " to ")
        text = text[:start] + figure + text[end:]
    return text, found.end() + len(text) - before


def replaced_row(text: str, row: str) -> str | None:
    """The text with the row in place of the only one that begins with the same cells."""
    cells = row.split(" | ")
    for count in range(len(cells) - 1, 0, -1):
        head = re.escape(" | ".join(cells[:count]) + " |")
        found = re.findall(rf"^{head}.*$", text, re.M)
        if len(found) == 1:
            return text.replace(found[0], row)
    return None


def main() -> int:
    lost = 0
    for document, all_quotes in QUOTES.items():
        path = ROOT / document
        text = path.read_text()
        ends: dict[str, int] = {}  # Rows that look alike follow each other.
        for quotes in all_quotes:
            for sentence in quotes():
                alike = pattern(sentence).pattern
                if done := replaced(text, sentence, ends.get(alike, 0)):
                    text, ends[alike] = done
                elif sentence.startswith("|") and (row := replaced_row(text, sentence)):
                    text = row
                else:
                    lost += 1
                    print(f"{document}: {sentence}")
        path.write_text(text)
        lost += sum(sentence not in prose(path) for quotes in all_quotes for sentence in quotes())
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
