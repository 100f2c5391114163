"""Every error and warning that a user can meet is in docs/troubleshooting.md, but for those about
an argument (ValueError, TypeError, wrong options, lines of a log), which say what is allowed.

Texts are taken from the sources: of each `raise`, warning, TORCH_CHECK and throw the longest piece
between its variable parts. Faults of ours (std::logic_error, internal assertions, check()) are one
entry there together.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.fences import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
PYTHON = sorted(
    file for folder in ("dtr_alloc", "runtime", "kernels") for file in (ROOT / folder).rglob("*.py")
)
CPP = sorted([*ROOT.glob("dtr_alloc/pool/csrc/**/*.cpp"), *ROOT.glob("runtime/csrc/**/*.cpp")])
# What makes an error of a text, besides classes that are called so.
MAKERS = {"warn", "_warn", "ClickException"}
OF_ARGUMENTS = {"ValueError", "TypeError", "TraceError", "UsageError"}
# Ours by the instruments of tests, which no user has.
INSTRUMENTS = {
    "runtime/csrc/simulator/paper/paper_simulation.cpp",
    "runtime/csrc/simulator/schedule.cpp",
}
THROWN = re.compile(
    r"(?:TORCH_CHECK(?:_WITH)?\(|DTR_OUT_OF_MEMORY\(|constexpr char \w+\[\] ="
    r"|throw std::(?:runtime_error|system_error)\()(.*?);\n",
    re.S,
)
RAW = re.compile(r'R"\((.*?)\)"', re.S)
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def plain(text: str) -> str:
    return " ".join(text.replace('\\"', '"').replace("\\|", "|").split())


def longest(pieces: list[str]) -> str:
    lines = [line for piece in pieces for line in piece.split("\\n")]
    return plain(max(lines, key=len, default=""))


def pieces_of(node: ast.expr, names: dict[str, ast.expr]) -> list[str]:
    """The literal parts of a text, sums and names of texts included."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in pieces_of(value, names)]
    if isinstance(node, ast.Name) and node.id in names:
        return pieces_of(names[node.id], names)
    return []


def python_texts(file: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(file.read_text())
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        maker = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        maker = node.func.id if isinstance(node.func, ast.Name) else maker
        raises = maker.endswith(("Error", "Exit")) and maker not in OF_ARGUMENTS
        if maker not in MAKERS and not raises:
            continue
        text = longest([part for given in node.args for part in pieces_of(given, names)])
        yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def cpp_texts(file: Path) -> Iterator[tuple[str, str]]:
    source = re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.M)
    source = RAW.sub(lambda raw: '"' + raw[1].replace('"', '\\"') + '"', source)
    for thrown in THROWN.finditer(source):
        line = source[: thrown.start()].count("\n") + 1
        joined = re.sub(r'"\s*\n\s*"', "", thrown[1])
        text = longest(LITERAL.findall(joined))
        yield f"{file.relative_to(ROOT)}:{line}", text


def test_every_error_is_explained() -> None:
    page = plain(PAGE.read_text())
    found = [one for file in PYTHON for one in python_texts(file)]
    for file in CPP:
        if file.relative_to(ROOT).as_posix() not in INSTRUMENTS:
            found += cpp_texts(file)
    assert len(found) > 60  # The collection works.
    missing = [f"{place}: {text}" for place, text in found if text and text not in page]
    remedy = "put these texts into docs/troubleshooting.md, and what to do:\n"
    assert not missing, remedy + "\n".join(missing)
