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

from tests.support.fences import ROOT

Table = Mapping[str, tuple[str, ...]]

POOL = "dtr_alloc/pool/csrc"
GRAPH, POLICY, ENGINE = "runtime/csrc/graph", "runtime/csrc/policy", "runtime/csrc/engine"
BELOW_LIVE = (POOL, GRAPH, POLICY, ENGINE)
LIVE_ROOMS = tuple(
    f"runtime/csrc/live/{room}"
    for room in ("machine", "operators", "recipes", "trace", "storages", "session", "intercept")
)
STORAGES, SESSION = LIVE_ROOMS[4:6]
SIMULATOR = "runtime/csrc/simulator"

# Of each folder: what it may include besides its own files, a folder or a single file.
CPP: Table = {
    POOL: (),
    f"{POOL}/cuda": (POOL,),
    GRAPH: (f"{POOL}/units.h", f"{POOL}/pool.h"),
    POLICY: (
        f"{POOL}/units.h",
        f"{POOL}/insist.h",
        f"{POOL}/pool.h",  # A window is a run of the pool's blocks.
        f"{POOL}/pool_walk.h",
        f"{POOL}/cuda/kernel.h",  # The device's scorer is one.
        GRAPH,
    ),
    ENGINE: (POOL, GRAPH, POLICY),
    # Each room of the live runtime knows those before it.
    **{room: (*BELOW_LIVE, *LIVE_ROOMS[:i]) for i, room in enumerate(LIVE_ROOMS)},
    "runtime/csrc/live_cuda": (*BELOW_LIVE, f"{POOL}/cuda", *LIVE_ROOMS),
    SIMULATOR: BELOW_LIVE,
    f"{SIMULATOR}/paper": (*BELOW_LIVE, SIMULATOR),
    "runtime/csrc/bindings": (
        *(*BELOW_LIVE, f"{POOL}/cuda", *LIVE_ROOMS, "runtime/csrc/live_cuda"),
        *(SIMULATOR, f"{SIMULATOR}/paper"),
    ),
}

# Rooms that are built and tested without torch; <torch/headeronly> has macros and no library.
WITHOUT_TORCH = (POOL, f"{POOL}/cuda", GRAPH, POLICY, ENGINE, SIMULATOR, f"{SIMULATOR}/paper")

OURS, CORE, MEMORY = "dtr_alloc", "dtr_alloc._core", "dtr_alloc.pool"
HEURISTIC, TRACE, SIMULATE, ADAPTERS = (
    f"dtr_alloc.runtime.{name}" for name in ("heuristic", "trace", "simulate", "adapters")
)
SCOPE, PLANNING, TUNING, BOUNDING = (
    f"dtr_alloc.runtime.{name}" for name in ("scope", "planning", "tuning", "bounding")
)

# Of each package or module: what it may import besides its own modules. A module is in the room
# with the longest name that its own begins with.
PYTHON: Table = {
    CORE: (),
    MEMORY: (CORE,),
    "dtr_alloc.kernels": (),
    HEURISTIC: (CORE,),
    "dtr_alloc.runtime": (),
    TRACE: (CORE,),  # The numbers that C++ gives to kinds.
    SIMULATE: (CORE, MEMORY, HEURISTIC, TRACE),
    ADAPTERS: (CORE, MEMORY),
    SCOPE: (CORE, MEMORY, "dtr_alloc.kernels", HEURISTIC, TRACE, SIMULATE, ADAPTERS),
    PLANNING: (MEMORY, HEURISTIC, TRACE, SIMULATE, ADAPTERS, SCOPE),
    TUNING: (HEURISTIC, SIMULATE),
    BOUNDING: (MEMORY, HEURISTIC, TRACE, SIMULATE),
    # Its public names.
    OURS: (CORE, MEMORY, HEURISTIC, TRACE, SIMULATE, SCOPE, PLANNING, TUNING, BOUNDING),
    "dtr_alloc.demo": (OURS,),  # It is written as a user's program is.
    "dtr_alloc.integrations": (MEMORY, OURS),
    "dtr_alloc.info": (CORE, MEMORY, OURS),
    "dtr_alloc.commands": (
        *(MEMORY, HEURISTIC, SIMULATE, SCOPE, PLANNING, TUNING, BOUNDING, OURS),
        *("dtr_alloc.demo", "dtr_alloc.info"),
    ),
    "dtr_alloc.__main__": (OURS, "dtr_alloc.commands", "dtr_alloc.info"),
}

PYTHON_EXCEPTIONS = {
    # It puts other functions in place of the public names, for a script that opens a scope.
    ("dtr_alloc.runtime.scope.run_script", "dtr_alloc")
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<((?:torch|ATen|c10)/[^>]+)>)', re.M)


# ---- C++


def includes(root: Path) -> Iterator[tuple[str, int, str]]:
    """Of each source its path, the line of an include, and what that names: a file of ours, or one
    of torch's."""
    for folder in ("dtr_alloc/pool/csrc", "runtime/csrc"):
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
        (f"{POLICY}/a.h", f"{ENGINE}/engine.h", "policy may know dtr_alloc"),
        (f"{SESSION}/a.cpp", "runtime/csrc/live_cuda/b.h", "session may know dtr_alloc/pool/csrc"),
        (f"{SESSION}/a.cpp", f"{SIMULATOR}/b.h", "session may know dtr_alloc/pool/csrc"),
        (f"{STORAGES}/a.cpp", f"{SESSION}/b.h", "storages may know dtr_alloc/pool/csrc"),
        (f"{SIMULATOR}/a.h", f"{SESSION}/b.h", "simulator may know dtr_alloc"),
        (f"{ENGINE}/a.h", "runtime/csrc/bindings/b.h", "engine may know dtr_alloc/pool/csrc"),
        (f"{POOL}/a.h", f"{GRAPH}/graph.h", "csrc may know no other room"),
        (f"{POOL}/a.h", "neighbour.h", "csrc may know no other room"),
        (f"{POLICY}/a.h", f"{POOL}/arena.h", "may know dtr_alloc/pool/csrc/units.h"),
        ("runtime/csrc/attic/a.h", f"{POOL}/arena.h", "runtime/csrc/attic is no room"),
        (f"{ENGINE}/a.h", "c10/core/Storage.h", "engine is built without torch"),
    ],
)
def test_a_wrong_include_is_noticed(tmp_path: Path, file: str, included: str, told: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    quoted = f"<{included}>" if included.startswith("c10/") else f'"{included}"'
    (tmp_path / file).write_text(f"#pragma once\n\n#  include {quoted}\n")
    (text,) = wrong_includes(tmp_path).values()
    assert text.startswith(f"{file}:3 includes {included}: ")
    assert told in text


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
    """The longest of the rooms' names that the module's begins with."""
    best = max((room for room in PYTHON if f"{module}.".startswith(f"{room}.")), key=len)
    return best if module == best or best not in ("dtr_alloc", "dtr_alloc.runtime") else ""


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
    assert set(found.values()) == set(PYTHON)


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("runtime/trace/parse.py", "import dtr_alloc.runtime.simulate", "may know dtr_"),
        ("runtime/simulate/rules.py", "from dtr_alloc.runtime import scope", "may know dtr_alloc"),
        ("runtime/adapters/a.py", "from dtr_alloc.runtime.scope.record import x", "may know dtr_"),
        ("runtime/scope/advice.py", "def f():\n    from dtr_alloc import tune", "may know dtr_"),
        ("dtr_alloc/pool/size.py", "from dtr_alloc import demo", "may know dtr_alloc._core"),
        ("runtime/new.py", "import dtr_alloc.pool", "runtime.new is in no room"),
    ],
)
def test_a_wrong_import_is_noticed(tmp_path: Path, file: str, line: str, told: str) -> None:
    for name in ("runtime/scope/record.py", "dtr_alloc/demo/__init__.py", file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / file).write_text(line + "\n")
    (text,) = wrong_imports(tmp_path).values()
    assert text.startswith(f"{file}:{1 + line.count(chr(10))} imports dtr_alloc")
    assert told in text


# ---- The tables


@pytest.mark.parametrize("table", [CPP, PYTHON], ids=["C++", "Python"])
def test_the_table_has_no_circle_and_names_only_rooms(table: Table) -> None:
    rooms = {
        room: {name if name in table else folder_of(name) for name in known}
        for room, known in table.items()
    }
    assert set().union(*rooms.values()) <= set(table)
    list(TopologicalSorter(rooms).static_order())
