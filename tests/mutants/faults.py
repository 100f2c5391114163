"""Faults that a person could have written, made by rule: single lines of C++ with one thing wrong.

Tests that only pass say little. So faults are planted in the sources of both csrc trees, and the
tests have to notice each. Planted by hand, faults are those that the author thought of; made by
rule and drawn by lot, they are not. Source: mutation analysis (DeMillo, Lipton, Sayward 1978).

All faults of a run are in one build. Each is chosen by a number when the program starts (tree.py),
so a line with a fault holds both texts: `if (fault(7) ? (a <= b) : (a < b))`. Rules work on lines
that are a whole statement or hold a whole condition, and a line gets one fault at most. What does
not compile is left out.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("dtr_alloc/pool/csrc", "runtime/csrc")
LEFT_OUT = {
    "live_cuda": "built with CUDA alone",
    "graph_memory": "the same",
    "bindings": "names and documents, no decisions",
    "bind": "the same",
    "_check.cpp": "checks, which faults elsewhere are noticed by",
    "insist.h": "the same",
}
HOLDS = "::dtr_mutants::holds(NUMBER)"

FLIPPED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
}
OPERATOR = re.compile(r" (<|<=|>|>=|==|!=|&&|\|\|) ")
ONE_MORE_OR_LESS = re.compile(r" [-+] 1\b")
CONDITION = re.compile(r"^(\s*(?:\} else )?(?:if|while) )\(")
VALUE = re.compile(r"^(\s+(?:return|(?:const )?[\w:]+ \w+ =) )([^;{}]+)(;)$")
CALL = re.compile(r"^\s+(?!insist|static_assert|assert)[\w.>\[\]:*-]+\(.*\);$")
CHANGES_NOTHING = re.compile(r"\b(reserve|check|swap)\(")  # Dropped, or with its arguments swapped.
ASSIGNMENT = re.compile(
    r"^\s+(?:(?:\+\+|--)[\w.>\[\]-]+|[\w.>\[\]*()-]+ (?:[-+*|&]|<<)?= (?!default|delete)[^;]+);$"
)
TWO_ARGUMENTS = re.compile(r"^(\s+[\w.>:-]+)\(([\w.>-]+), ([\w.>-]+)\);$")
CHECK = re.compile(r"\S.*::check(?:_\w+)?\(.*\{$")
PLACE = re.compile(r"([^ ]+)(?: \((\d+)\))?")
BEGINS_A_STATEMENT = re.compile(r"([{};:)]|else|^)\s*(//.*)?$")


@dataclass(frozen=True)
class Fault:
    """One fault. `old` is the line without it and `new` the line with it, both without spaces at
    the ends; `planted` is the line that has both, with the number left open."""

    path: str
    line: int
    rule: str
    old: str
    new: str
    planted: str
    nth: int  # Of the lines of this file with this text.

    @property
    def key(self) -> str:
        """Names the fault also when lines above it have moved."""
        place = f"{self.path} ({self.nth})" if self.nth > 1 else self.path
        return f"{place}: {self.old} -> {self.new}"


def faults(root: Path, count: int, seed: int) -> list[Fault]:
    """`count` of them, by lot, in the order of their files and lines. A line's lot is its
    file's and its text's: where other lines change, the same faults are drawn, and their verdicts
    stay of use."""

    def lot(text: str) -> bytes:
        return hashlib.sha256(f"{seed} {text}".encode()).digest()

    by_line: dict[tuple[str, int], list[Fault]] = {}
    for fault in every(root):
        by_line.setdefault((fault.path, fault.line), []).append(fault)
    each = [min(of_line, key=lambda fault: lot(fault.key)) for of_line in by_line.values()]
    each.sort(key=lambda fault: lot(f"{fault.path} {fault.nth} {fault.old}"))
    return sorted(each[:count], key=lambda fault: (fault.path, fault.line))


def once_missed(root: Path) -> list[Fault]:
    """Those that an audit planted by hand and no test of its day noticed, each with the line below
    that says what it breaks."""
    found = []
    for entry in Path(__file__).with_name("once_missed.txt").read_text().splitlines()[::2]:
        place, texts = entry.split(": ", 1)
        path, nth = PLACE.fullmatch(place).groups(default="1")  # type: ignore[union-attr]
        old, new = texts.split(" -> ")
        lines = (root / path).read_text().splitlines()
        at = [n for n, line in enumerate(lines) if old in line][int(nth) - 1]
        both = f"({HOLDS} ? ({new}) : ({old}))"
        if old.endswith(";"):
            both = f"if ({HOLDS}) {{ {new} }} else {{ {old} }}"
        planted = lines[at].replace(old, both)
        found.append(Fault(path, at + 1, "once missed", old, new, planted, int(nth)))
    return found


def every(root: Path) -> Iterator[Fault]:
    """All faults that the rules make."""
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix in {".cpp", ".h"} and not any(part in path for part in LEFT_OUT):
                yield from of_file(path, file.read_text())


def of_file(path: str, text: str) -> Iterator[Fault]:
    before = ""
    checks = False  # As LEFT_OUT has it of whole files.
    seen: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.split("//")[0].rstrip()
        checks = line != "}" and (checks or CHECK.match(line) is not None)
        if checks:
            continue
        if '"' not in code and "'" not in code and balanced(code) and "constexpr" not in code:
            old = code.strip()
            seen[old] += 1
            for rule, new, planted in of_line(code, before):
                yield Fault(path, number, rule, old, new.strip(), planted, seen[old])
        before = line


def of_line(code: str, before: str) -> Iterator[tuple[str, str, str]]:
    """Rule, the line with the fault, and the line with both."""
    for begin, expression, end in expressions(code):
        for rule, wrong in of_expression(expression):
            both = f"({HOLDS} ? ({wrong}) : ({expression}))"
            yield rule, f"{begin}{wrong}{end}", f"{begin}{both}{end}"
    if not BEGINS_A_STATEMENT.search(before):
        return
    statement = code.strip()
    if CHANGES_NOTHING.search(code):
        return
    if CALL.match(code) or ASSIGNMENT.match(code):
        yield "drop a statement", ";", f"if ({HOLDS}) {{}} else {statement}"
    if found := TWO_ARGUMENTS.match(code):
        name, first, second = found.groups()
        swapped = f"{name.strip()}({second}, {first});"
        if first != second:
            yield "swap arguments", swapped, f"if ({HOLDS}) {swapped} else {statement}"


def expressions(code: str) -> Iterator[tuple[str, str, str]]:
    """Conditions and values of a line, with what is before and behind each."""
    if found := CONDITION.match(code):
        begin, depth = found.end(), 1
        for at in range(begin, len(code)):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            if depth == 0:
                if ";" not in code[begin:at]:
                    yield code[:begin], code[begin:at], code[at:]
                return
    elif found := VALUE.match(code):
        yield found[1], found[2], found[3]


def of_expression(expression: str) -> Iterator[tuple[str, str]]:
    for found in OPERATOR.finditer(expression):
        other = FLIPPED[found[1]]
        wrong = f"{expression[: found.start()]} {other} {expression[found.end() :]}"
        yield "swap and and or" if found[1] in {"&&", "||"} else "flip a comparison", wrong
    for found in ONE_MORE_OR_LESS.finditer(expression):
        yield "off by one", expression[: found.start()] + expression[found.end() :]


def balanced(code: str) -> bool:
    return code.count("(") == code.count(")")


def planted(text: str, numbered: dict[int, tuple[int, Fault]]) -> str:
    """A source with faults in it; `numbered` has each fault and its number, by its line."""
    lines = text.splitlines()
    for line, (number, fault) in numbered.items():
        lines[line - 1] = fault.planted.replace("NUMBER", str(number))
    head = '#include "dtr_alloc/pool/csrc/mutants.h"\n#line 1\n' if numbered else ""
    return head + "\n".join(lines) + "\n"
