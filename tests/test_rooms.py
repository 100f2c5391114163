"""Which room of the sources may know which: one table for C++, one for Python.

A room is a folder, or a few modules. Knowledge points one way, so that a reader of one room needs
only those below it, and a change is felt only by those above. The tests read the sources: includes
by a regular expression, imports by Python's own parser, also those inside functions. What is
declared in one room and defined in another, without an include, they cannot see.
"""

import ast
import os
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.fences import ROOT

Table = Mapping[str, tuple[str, ...]]

# Of each folder: what it may include besides its own files, a folder or a single file.
CPP: Table = {
    "dtr_alloc/csrc": (),
    "dtr_alloc/csrc/cuda": ("dtr_alloc/csrc",),
    "runtime/csrc/graph": ("dtr_alloc/csrc/units.h", "dtr_alloc/csrc/pool.h"),
    "runtime/csrc/policy": (
        "dtr_alloc/csrc/units.h",
        "dtr_alloc/csrc/pool.h",  # A window is a run of the pool's blocks.
        "dtr_alloc/csrc/pool_walk.h",
        "dtr_alloc/csrc/cuda/kernel.h",  # The device's scorer is one.
        "runtime/csrc/graph",
    ),
    "runtime/csrc/engine": ("dtr_alloc/csrc", "runtime/csrc/graph", "runtime/csrc/policy"),
    "runtime/csrc/live": (
        "dtr_alloc/csrc",
        "runtime/csrc/graph",
        "runtime/csrc/policy",
        "runtime/csrc/engine",
    ),
    "runtime/csrc/live_cuda": (
        "dtr_alloc/csrc",
        "dtr_alloc/csrc/cuda",
        "runtime/csrc/graph",
        "runtime/csrc/policy",
        "runtime/csrc/engine",
        "runtime/csrc/live",
    ),
    "runtime/csrc/simulator": (
        "dtr_alloc/csrc",
        "runtime/csrc/graph",
        "runtime/csrc/policy",
        "runtime/csrc/engine",
    ),
    "runtime/csrc/bindings": (
        "dtr_alloc/csrc",
        "dtr_alloc/csrc/cuda",
        "runtime/csrc/graph",
        "runtime/csrc/policy",
        "runtime/csrc/engine",
        "runtime/csrc/live",
        "runtime/csrc/live_cuda",
        "runtime/csrc/simulator",
    ),
}

# Rooms that are built and tested without torch; <torch/headeronly> has macros and no library.
WITHOUT_TORCH = (
    "dtr_alloc/csrc",
    "dtr_alloc/csrc/cuda",
    "runtime/csrc/graph",
    "runtime/csrc/policy",
    "runtime/csrc/engine",
    "runtime/csrc/simulator",
)

# Of each Python room its modules: all below a name that ends in a dot.
PYTHON_ROOMS: Table = {
    "native": ("dtr_alloc._core",),
    "size": ("dtr_alloc.size",),
    "pool": ("dtr_alloc.pool", "dtr_alloc.cupy"),
    "heuristic": ("dtr_alloc.runtime.heuristic", "dtr_alloc.runtime"),
    "kernels": ("dtr_alloc.kernels", "dtr_alloc.kernels."),
    "trace": ("dtr_alloc.runtime.trace", "dtr_alloc.runtime.trace."),
    "simulate": (
        "dtr_alloc.runtime.simulate",
        "dtr_alloc.runtime.link",
        "dtr_alloc.runtime.simulation_result",
        "dtr_alloc.runtime.simulation_rules",
        "dtr_alloc.runtime.simulation_report",
        "dtr_alloc.runtime.sweep",
        "dtr_alloc.runtime.plot",
    ),
    "scope": (
        "dtr_alloc.runtime.scope",
        "dtr_alloc.runtime.session",
        "dtr_alloc.runtime.current",
        "dtr_alloc.runtime.used_once",
        "dtr_alloc.runtime.opening",
        "dtr_alloc.runtime.undo",
        "dtr_alloc.runtime.serving",
        "dtr_alloc.runtime.replacing",
        "dtr_alloc.runtime.on_import",
        "dtr_alloc.runtime.advice",
        "dtr_alloc.runtime.auto",
        "dtr_alloc.runtime.candidates",
        "dtr_alloc.runtime.trial",
        "dtr_alloc.runtime.steps",
        "dtr_alloc.runtime.step_ends",
        "dtr_alloc.runtime.raw_access",
        "dtr_alloc.runtime.sharded_parameters",
        "dtr_alloc.runtime.swapping",
        "dtr_alloc.runtime.compiled_code",
        "dtr_alloc.runtime.compile_backend",
        "dtr_alloc.runtime.higher_order",
        "dtr_alloc.runtime.hooks",
        "dtr_alloc.runtime.libraries",
        "dtr_alloc.runtime.chrome_trace",
        "dtr_alloc.runtime._testing",
    ),
    "record": ("dtr_alloc.runtime.trace.record", "dtr_alloc.runtime.trace.run_script"),
    "planning": ("dtr_alloc.runtime.planning", "dtr_alloc.runtime.planning."),
    "tuning": ("dtr_alloc.runtime.tuning", "dtr_alloc.runtime.tuning."),
    "bounding": ("dtr_alloc.runtime.bounding", "dtr_alloc.runtime.bounding."),
    "cuda": ("dtr_alloc.cuda",),
    "face": ("dtr_alloc",),
    "demo": ("dtr_alloc.demo", "dtr_alloc.demo."),
    "command": (
        *("dtr_alloc.__main__", "dtr_alloc.info", "dtr_alloc.commands", "dtr_alloc.commands."),
    ),
}

# Of each Python room: the rooms that it may import.
PYTHON: Table = {
    "native": (),
    "size": (),
    "pool": ("native", "size"),
    "heuristic": ("native",),
    "kernels": ("heuristic",),
    "trace": (),
    "simulate": ("native", "size", "heuristic", "trace"),
    "scope": ("native", "size", "heuristic", "trace", "simulate"),
    "record": ("trace", "scope"),
    "planning": ("size", "heuristic", "trace", "simulate", "scope", "record"),
    "tuning": ("heuristic", "simulate"),
    "bounding": ("size", "heuristic", "trace", "simulate"),
    "cuda": ("native", "size", "heuristic", "scope", "kernels"),
    "face": (
        *("native", "pool", "heuristic", "trace", "simulate", "scope", "record"),
        *("planning", "tuning", "bounding", "cuda"),
    ),
    "demo": ("face",),  # It is written as a user's program is.
    "command": (
        *("native", "size", "heuristic", "simulate", "record", "planning", "tuning"),
        *("bounding", "face", "demo"),
    ),
}

PYTHON_EXCEPTIONS = {
    # It puts other functions in place of the public names, for a script that opens a scope.
    ("dtr_alloc.runtime.trace.run_script", "dtr_alloc"),
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<((?:torch|ATen|c10)/[^>]+)>)', re.M)


# ---- C++


def includes(root: Path) -> Iterator[tuple[str, int, str]]:
    """Of each source its path, the line of an include, and what that names: a file of ours, or one
    of torch's."""
    for folder in ("dtr_alloc/csrc", "runtime/csrc"):
        for file in sorted([*root.glob(f"{folder}/**/*.h"), *root.glob(f"{folder}/**/*.cpp")]):
            text = file.read_text()
            for found in INCLUDE.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield file.relative_to(root).as_posix(), line, found[1] or found[2]


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def wrong_includes(root: Path) -> dict[tuple[str, str], str]:
    """What each include that breaks a rule is to be told."""
    wrong = {}
    for file, line, included in includes(root):
        room = folder_of(file)
        place = f"{file}:{line} includes {included}"
        if room not in CPP:
            wrong[file, included] = f"{place}: {room} is no room: give it a row in this table"
        elif included.startswith(("torch/", "ATen/", "c10/")):
            if room in WITHOUT_TORCH and not included.startswith("torch/headeronly/"):
                wrong[file, included] = f"{place}: {room} is built without torch"
        elif folder_of(included) != room and not {included, folder_of(included)} & {*CPP[room]}:
            may = ", ".join(CPP[room]) or "no other room"
            wrong[file, included] = f"{place}: {room} may know {may}"
    return wrong


def test_no_source_includes_what_its_room_may_not_know() -> None:
    wrong = wrong_includes(ROOT)
    assert list(wrong.values()) == []


def test_every_room_of_the_table_has_sources() -> None:
    assert {folder_of(file) for file, _, _ in includes(ROOT)} == set(CPP)


@pytest.mark.parametrize(
    ("file", "included", "told"),
    [
        ("runtime/csrc/policy/a.h", "runtime/csrc/engine/engine.h", "policy may know dtr_alloc"),
        ("runtime/csrc/live/a.cpp", "runtime/csrc/live_cuda/b.h", "live may know dtr_alloc/csrc"),
        ("runtime/csrc/live/a.cpp", "runtime/csrc/simulator/b.h", "live may know dtr_alloc/csrc"),
        ("runtime/csrc/simulator/a.h", "runtime/csrc/live/b.h", "simulator may know dtr_alloc"),
        ("runtime/csrc/engine/a.h", "runtime/csrc/bindings/b.h", "engine may know dtr_alloc/csrc"),
        ("dtr_alloc/csrc/a.h", "runtime/csrc/graph/graph.h", "csrc may know no other room"),
        ("dtr_alloc/csrc/a.h", "neighbour.h", "csrc may know no other room"),
        ("runtime/csrc/policy/a.h", "dtr_alloc/csrc/arena.h", "may know dtr_alloc/csrc/units.h"),
        ("runtime/csrc/attic/a.h", "dtr_alloc/csrc/arena.h", "runtime/csrc/attic is no room"),
    ],
)
def test_a_wrong_include_is_noticed(tmp_path: Path, file: str, included: str, told: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(f'#pragma once\n\n#  include "{included}"\n')
    (text,) = wrong_includes(tmp_path).values()
    assert text.startswith(f"{file}:3 includes {included}: ")
    assert told in text


def test_a_header_of_torch_is_noticed_where_there_is_none(tmp_path: Path) -> None:
    for room in ("engine", "live"):
        (tmp_path / "runtime/csrc" / room).mkdir(parents=True)
        (tmp_path / "runtime/csrc" / room / "a.h").write_text("#include <c10/core/Storage.h>\n")
    (text,) = wrong_includes(tmp_path).values()
    assert text.startswith("runtime/csrc/engine/a.h:1 includes c10/core/Storage.h: ")


def test_a_right_include_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "runtime/csrc/engine/a.cpp"
    file.parent.mkdir(parents=True)
    file.write_text('#include <vector>\n#include "runtime/csrc/policy/score.h"\n')
    assert wrong_includes(tmp_path) == {}


# ---- Python


def module_of(file: Path, root: Path) -> str:
    """The name that a file is imported by: our folders at the root are links within the package."""
    parts = file.relative_to(root).with_suffix("").parts
    name = ".".join(parts if parts[0] == "dtr_alloc" else ("dtr_alloc", *parts))
    return name.removesuffix(".__init__")


def modules(root: Path) -> dict[str, Path]:
    files = (file for folder in ("dtr_alloc", "runtime", "kernels") for file in walk(root / folder))
    return {module_of(file, root): file for file in files}


def walk(folder: Path) -> Iterator[Path]:
    for inside, folders, names in os.walk(folder):  # Does not follow links.
        folders.sort()
        yield from (Path(inside, name) for name in sorted(names) if name.endswith(".py"))


def imports(file: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """The line of each import of ours, and the module that it names."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inside]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "dtr_alloc":
                yield node.lineno, name


def room_of(module: str) -> str:
    """By its own name, or by the longest beginning that a room has."""
    best, length = "", -1
    for room, names in PYTHON_ROOMS.items():
        for name in names:
            fits = module == name or (name.endswith(".") and module.startswith(name))
            if fits and len(name) + (module == name) > length:
                best, length = room, len(name) + (module == name)
    return best


def wrong_imports(root: Path) -> dict[tuple[str, str], str]:
    """What each import that breaks a rule is to be told."""
    wrong = {}
    files = modules(root)
    known = {*files, "dtr_alloc._core"}
    for module, file in files.items():
        room = room_of(module)
        for line, imported in imports(file, known):
            place = f"{file.relative_to(root)}:{line} imports {imported}"
            if not room:
                wrong[module, imported] = f"{place}: {module} is in no room: name it in this table"
            elif room_of(imported) not in (room, *PYTHON[room]):
                may = ", ".join(PYTHON[room]) or "no other room"
                wrong[module, imported] = f"{place}: the room {room!r} may know {may}"
    return wrong


def test_no_module_imports_what_its_room_may_not_know() -> None:
    wrong = wrong_imports(ROOT)
    assert [told for tie, told in wrong.items() if tie not in PYTHON_EXCEPTIONS] == []
    assert set(wrong) >= PYTHON_EXCEPTIONS


def test_every_module_is_in_a_room_and_every_room_has_modules() -> None:
    found = {module: room_of(module) for module in (*modules(ROOT), "dtr_alloc._core")}
    assert [module for module, room in found.items() if not room] == []
    assert set(found.values()) == set(PYTHON_ROOMS) == set(PYTHON)


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("runtime/trace/parse.py", "import dtr_alloc.runtime.simulate", "may know no other room"),
        ("runtime/simulate.py", "from dtr_alloc.runtime import scope", "may know native, size"),
        ("runtime/session.py", "from dtr_alloc.runtime.trace.record import x", "'scope' may know"),
        ("runtime/advice.py", "def f():\n    from dtr_alloc import tune", "'scope' may know"),
        ("dtr_alloc/size.py", "from dtr_alloc import _core", "'size' may know no other room"),
        ("runtime/new.py", "import dtr_alloc.size", "runtime.new is in no room"),
    ],
)
def test_a_wrong_import_is_noticed(tmp_path: Path, file: str, line: str, told: str) -> None:
    for name in ("runtime/scope.py", "runtime/trace/record.py", file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / file).write_text(line + "\n")
    (text,) = wrong_imports(tmp_path).values()
    assert text.startswith(f"{file}:{1 + line.count(chr(10))} imports dtr_alloc")
    assert told in text


def test_a_right_import_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime/sweep.py").write_text(
        "import numpy\nfrom dtr_alloc import _core\nfrom dtr_alloc.runtime.trace import Trace\n"
    )
    assert wrong_imports(tmp_path) == {}


# ---- The tables


@pytest.mark.parametrize("table", [CPP, PYTHON], ids=["C++", "Python"])
def test_the_table_has_no_circle_and_names_only_rooms(table: Table) -> None:
    rooms = {
        room: {name if name in table else folder_of(name) for name in known}
        for room, known in table.items()
    }
    assert set().union(*rooms.values()) <= set(table)
    list(TopologicalSorter(rooms).static_order())
