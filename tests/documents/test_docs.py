"""What our documents say can be done: their code runs, in order, in one namespace a document.

Python runs, sessions with `>>>` are compared with what they print, lines of `dtr-alloc` are called
in a folder that has the script and the logs they name, and of `make` and `pip` the targets and the
extras must exist. Searches are cut short: what a document tries hundreds of times is tried
twelve times here. Examples in docstrings run too.
"""

import ast
import doctest
import glob
import importlib
import os
import pkgutil
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import dtr_alloc
from dtr_alloc.__main__ import main
from dtr_alloc.runtime.heuristic import ABLATIONS, PRESETS, USER_PARAMETERS
from dtr_alloc.runtime.planning import plan as planning
from tests.support.fences import DOCUMENTS, ROOT, Fence, fences

LANGUAGES = {"python", "pycon", "sh", "text"}
TRAIN = """
import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(16, 16) if n % 2 else torch.nn.Tanh() for n in range(24)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train_one_step():
    optimizer.zero_grad()
    model(torch.randn(512, 16)).square().mean().backward()
    optimizer.step()

def train():
    for _ in range(4):
        train_one_step()

if __name__ == "__main__":
    train()
"""


def shown(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader's commands run: a script, two logs of it, nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "rematerialization_ns", lambda: 0.0)  # Seconds to measure.
    # One core, so that a sweep stays in this process; test_sweep has the others.
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    Path("train.py").write_text(TRAIN)
    for log in ("step.log.gz", "other.log.gz"):
        with dtr_alloc.record_trace(log):
            exec(TRAIN, {"__name__": "__main__"})
    return tmp_path


def run_python(fence: Fence, document: Path, names: dict[str, Any]) -> None:
    text = re.sub(r"\btrials=\d+", "trials=12", fence.text)
    code = compile("\n" * (fence.line - 1) + text, str(document), "exec")
    if fence.runs:
        exec(code, names)
    else:
        look_up(ast.parse(text))


def look_up(tree: ast.Module) -> None:
    """Every dotted name of ours and torch's exists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := ast.unparse(node)).split(".")[0] in (
            "dtr_alloc",
            "torch",
        ):
            found: Any = importlib.import_module(path.split(".")[0])
            for name in path.split(".")[1:]:
                if not name.isidentifier():  # What a call returns is not known.
                    break
                found = getattr(found, name)


def run_session(fence: Fence, document: Path, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(
        fence.text, names, shown(document), str(document), fence.line - 1
    )
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, "".join(said)


def run_command(line: str) -> None:
    line = re.sub(r"--trials \d+", "--trials 12", line.removesuffix("&"))
    words = shlex.split(line)
    if words[0] == "dtr-alloc":
        words = [name for word in words[1:] for name in (sorted(glob.glob(word)) or [word])]
        done = CliRunner().invoke(main, words)
        # What a run under half of the memory comes to depends on the times in the log.
        ends = (0, 3) if "simulate" in words else (0,)
        assert done.exit_code in ends, f"{line}: {done.output}{done.exception!r}"
    elif words[0] == "make":
        made = [word for word in words[1:] if "=" not in word]
        known = (ROOT / "Makefile").read_text()
        assert [name for name in made if not re.search(rf"^{name}\b.*:", known, re.M)] == []
    elif words[0] == "pip":
        extras = re.findall(r"(?:\.|dtr-alloc)\[(.*?)\]", line)
        known = (ROOT / "pyproject.toml").read_text()
        asked = [name for extra in extras for name in extra.split(",")]
        assert [name for name in asked if f"optional-dependencies.{name} " not in known] == []
    else:
        scripts = [word for word in words if word.endswith(".py")]
        assert scripts, f"nothing checks this command: {line}"
        assert [name for name in scripts if not (ROOT / name).exists()] == []


# Of twelve trials none may have been better than another.
@pytest.mark.filterwarnings("ignore:Target and region quantiles:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # Its own, as it compiles.
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # Torch 2.11 says so once.
@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_the_code_of_a_document_runs(document: Path, folder: Path) -> None:
    del folder  # The working directory.
    names: dict[str, Any] = {"__name__": "train"}
    exec(TRAIN, names)
    names["__name__"] = "__main__"
    for fence in fences(document):
        if fence.language == "python":
            run_python(fence, document, names)
        elif fence.language == "pycon":
            run_session(fence, document, names)
        elif fence.language == "sh":
            for line in fence.commands():
                run_command(line)


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_every_block_says_its_language(document: Path) -> None:
    strange = [f.line for f in fences(document) if f.language not in LANGUAGES]
    assert strange == [], f"lines that begin blocks of none of {sorted(LANGUAGES)}"


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "perf/README.md"], ids=shown)
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def anchors(document: Path) -> set[str]:
    """What a link may name in a document: its headings, as GitHub spells them."""
    prose = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "perf/README.md"], ids=shown)
def test_links_lead_to_headings(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", document.read_text())
    targets = [(document.parent / link if link else document, name) for link, name in links]
    assert [name for target, name in targets if name not in anchors(target)] == []


def modules() -> list[str]:
    """All of ours, the command line and what Triton compiles left out."""
    listed = pkgutil.walk_packages(dtr_alloc.__path__, "dtr_alloc.")
    return [one.name for one in listed if one.name.split(".")[-1] not in ("__main__", "_kernels")]


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_run(name: str) -> None:
    module: ModuleType = pytest.importorskip(name, exc_type=ModuleNotFoundError)
    assert doctest.testmod(module).failed == 0


def rows(document: Path, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without the table's own."""
    text = f"\n{document.read_text()}".split(f"\n{heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


def test_every_target_of_make_is_told() -> None:
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M))
    told = (ROOT / "CONTRIBUTING.md").read_text()
    names = {name for line in targets for name in line.split()}
    assert len(names) > 10
    assert {name for name in names if not re.search(rf"^make .*\b{name}\b", told, re.M)} == set()


def test_the_page_of_heuristics_has_every_preset_as_it_is() -> None:
    told = {
        name.strip("`"): eval(parameters.strip("`"), {"Heuristic": dtr_alloc.Heuristic})
        for name, parameters, *_ in rows(ROOT / "docs/heuristics.md", "## The presets")
    }
    assert told == PRESETS


def test_the_page_of_heuristics_has_every_parameter_of_the_score() -> None:
    page = (ROOT / "docs/heuristics.md").read_text()
    formula = page.split("## The score\n")[1].split("```")[1]
    for one in USER_PARAMETERS:
        if one.role in ("exponent", "weight", "factor"):
            assert re.search(rf"\b{one.name}\b", formula), one.name
        for name in one.names:
            assert f'| `"{name}"' in page, name


def test_the_page_of_heuristics_has_every_ablation() -> None:
    cells = [row[1:] for row in rows(ROOT / "docs/heuristics.md", "## The ablations")]
    names = [re.findall(r"`(\w+)`", cell) for row in cells for cell in row]
    assert [first for first, *_ in names] == list(ABLATIONS)
    for first, *same in names:
        assert [PRESETS[name] for name in same] == [ABLATIONS[first]] * len(same)


def test_options_of_a_command_stand_before_its_script() -> None:
    product = [*ROOT.glob("runtime/**/*.py"), *ROOT.glob("dtr_alloc/**/*.py")]
    late = re.compile(r"dtr-alloc\s+\w+\s+SCRIPT\s+--")
    assert not [file for file in [*DOCUMENTS, *product] if late.search(file.read_text())]


def test_a_name_that_is_not_there_is_noticed_where_code_cannot_run() -> None:
    look_up(ast.parse("torch.cuda.memory.change_current_allocator(dtr_alloc.allocator('8GiB'))"))
    with pytest.raises(AttributeError, match="alocator"):
        look_up(ast.parse("dtr_alloc.alocator('8GiB')"))


@pytest.mark.parametrize(
    "line", ["make nothing", "pip install 'dtr-alloc[nothing]'", "dtr-alloc simulate absent", "ls"]
)
def test_a_command_that_cannot_work_is_noticed(line: str, folder: Path) -> None:
    del folder
    with pytest.raises(AssertionError):
        run_command(line)
