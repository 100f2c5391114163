"""Builds the engine harness of this folder, where its sources have changed, and loads it.

The harness is a second compiled module beside `dtr_alloc._core`: the sources of the pool, the
policy and the engine once more, with bindings that only tests and measurements need. So it is
compiled as setup.py compiles those, by the same compiler. Objects lie in build/engine_harness.
DTR_ALLOC_ENGINE_HARNESS names a module that was built before, perhaps on another machine.
"""

import fcntl
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/engine_harness"
NAME = "_engine_harness"
COMPILER = shlex.split(os.environ.get("CXX", "")) or ["c++"]
FLAGS = ["-std=c++20", "-O2", "-g0", "-Wall", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
INCLUDES = [str(ROOT), *include_paths(), sysconfig.get_path("include")]


def sources() -> list[Path]:
    folders = ("dtr_alloc/pool/csrc", "runtime/csrc/policy", "runtime/csrc/engine")
    found = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.cpp"))]
    product = [file for file in found if not file.name.startswith("bind")]
    return product + sorted(Path(__file__).parent.glob("*.cpp"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr}")


def _is_current(target: Path, command: list[str]) -> bool:
    """Whether `target` was made by this command after the last change of what it was made from."""
    note, made_from = target.with_suffix(".command"), target.with_suffix(".d")
    if not (target.exists() and note.exists() and note.read_text() == shlex.join(command)):
        return False
    files = [Path(word) for word in made_from.read_text().replace("\\\n", " ").split()[1:]]
    made = target.stat().st_mtime
    return all(file.exists() and file.stat().st_mtime < made for file in files)


def _compiling(source: Path) -> list[str]:
    return [*COMPILER, *FLAGS, *(f"-I{folder}" for folder in INCLUDES), "-c", str(source)]


def _compile(source: Path) -> Path:
    target = FOLDER / f"{'_'.join(source.relative_to(ROOT).with_suffix('').parts)}.o"
    note_includes = ["-MMD", "-MF", str(target.with_suffix(".d"))]
    command = [*_compiling(source), *note_includes, "-o", str(target)]
    if not _is_current(target, command):
        note = target.with_suffix(".command")
        note.unlink(missing_ok=True)  # Until it is whole again.
        _run(command)
        note.write_text(shlex.join(command))
    return target


def _objects(of: Iterable[Path]) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_compile, of))


def _link(objects: list[Path], target: Path, *flags: str) -> None:
    _run([*COMPILER, *flags, *map(str, objects), "-ldl", "-pthread", "-o", str(target)])


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time builds; another that comes meanwhile waits."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> Path:
    """The path of the module."""
    if named := os.environ.get("DTR_ALLOC_ENGINE_HARNESS"):
        return Path(named)
    library = FOLDER / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with _alone():
        objects = _objects(sources())
        newest = max(file.stat().st_mtime for file in objects)
        if not library.exists() or library.stat().st_mtime <= newest:
            linked = library.with_suffix(".new")  # Another process may have the old one loaded.
            _link(objects, linked, "-shared")
            linked.replace(library)
    return library


def build_with(instead: Mapping[Path, Path], library: Path) -> None:
    """The module as `library`, made of `instead[source]` in place of a source."""
    with _alone():
        objects = _objects(source for source in sources() if source not in instead)
    for file in instead.values():
        objects.append(file.with_suffix(".harness.o"))
        _run([*_compiling(file), "-o", str(objects[-1])])
    _link(objects, library, "-shared")


def build_program(source: Path, program: Path) -> None:
    """A program in C++ that uses the harness: `source`, and all that needs no Python."""
    with _alone():
        plain = (file for file in sources() if "pybind11" not in file.read_text())
        _link(_objects([source, *plain]), program)


def load() -> ModuleType:
    """The compiled module; the same one each time, since its types can be registered once."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, build())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[NAME] = module
    return sys.modules[NAME]
