"""The code in our documents: fenced blocks, found by the parser that rich brings along.

A block whose line before is the comment `<!-- needs a GPU -->` is compiled, and its names are
looked up; it does not run.
"""

from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@dataclass(frozen=True)
class Fence:
    """A block: its language, its text, the line of the document its text begins at, and whether it
    may run here."""

    language: str
    text: str
    line: int
    runs: bool

    def commands(self) -> list[str]:
        """The lines of a shell's block, without comments; what goes on in the next is one."""
        text = self.text.replace("\\\n", " ")
        lines = (line.partition(" #")[0].strip() for line in text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def fences(document: Path) -> list[Fence]:
    """The blocks of a document in order; code that is only indented is one without a language."""
    found = []
    runs = True
    for token in MarkdownIt("commonmark").parse(document.read_text()):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            line = token.map[0] + (1 if token.type == "code_block" else 2)
            found.append(Fence(token.info.strip(), token.content, line, runs))
        runs = "<!-- needs a GPU -->" not in token.content
    return found
