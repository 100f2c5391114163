"""What must be there before a part can run: the compiled package, and a path that leads to it.

A machine with a GPU may be there for minutes only, and start empty each time. So all that is
compiled (the extension, and the harness of the tests) lies in one folder of a few MB that can be
kept and taken along. It is built anew where a source, the compiler's options, torch or Python has
changed. The repository itself stays as it is: a folder of links beside the compiled file is what is
imported, because the root would offer our folder `kernels` as a package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

from measurement import write_json

ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / "build/gpu"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
COMPILED = (f"_core{SUFFIX}", Path(f"_core{SUFFIX}").with_suffix(".built_for").name)
HARNESS = f"_engine_harness{SUFFIX}"


def sources() -> list[Path]:
    """All that the compiled files are made from."""
    folders = ("dtr_alloc/pool/csrc", "runtime/csrc", "tests/engine_harness")
    found = [
        f for folder in folders for kind in ("*.h", "*.cpp") for f in (ROOT / folder).rglob(kind)
    ]
    return [ROOT / "setup.py", *sorted(found)]


def key() -> dict[str, str]:
    """What compiled files must agree on with this tree and this Python."""
    digest = hashlib.sha256()
    for file in sources():
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return {"sources": digest.hexdigest()[:16], "torch": version("torch"), "suffix": SUFFIX}


def is_current(folder: Path) -> bool:
    try:
        written = json.loads((folder / "built.json").read_text())
    except (OSError, json.JSONDecodeError):
        return False
    whole = all((folder / name).exists() for name in (*COMPILED, HARNESS))
    return whole and written == key()


def build(folder: Path) -> None:
    """Compiles into `folder`.

    Raises:
        RuntimeError: With the end of what the compiler said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "built.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        into = ["--build-lib", place, "--build-temp", str(ROOT / "build/temp-gpu")]
        command = [sys.executable, "setup.py", "-q", "build_ext", *into]
        log = Path(place) / "said.txt"
        with (
            log.open("w") as said,
            subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said) as extension,
        ):
            harness = _build_harness()
        if extension.returncode != 0:
            raise RuntimeError(f"the extension does not build:\n{log.read_text()[-4000:]}")
        for name in COMPILED:
            shutil.copy(Path(place) / "dtr_alloc" / name, folder)
        shutil.copy(harness, folder / HARNESS)
    write_json(folder / "built.json", key())


def _build_harness() -> Path:
    path = ROOT / "tests/engine_harness/build.py"
    spec = importlib.util.spec_from_file_location("build_engine_harness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library: Path = module.build()
    return library


def link(folder: Path) -> Path:
    """A folder that offers the package with the compiled file of `folder`, and nothing else."""
    path = folder / "path"
    shutil.rmtree(path, ignore_errors=True)
    package = path / "dtr_alloc"
    package.mkdir(parents=True)
    for item in (ROOT / "dtr_alloc").iterdir():
        if item.suffix not in (".so", ".built_for") and item.name != "__pycache__":
            (package / item.name).symlink_to(item.resolve())
    for name in COMPILED:
        (package / name).symlink_to((folder / name).resolve())
    return path


def environment(folder: Path | None, device: str) -> dict[str, str]:
    """The variables under which scripts see the package, built first if need be. A rehearsal
    without a folder takes the dtr_alloc that this Python has."""
    shown = dict(os.environ)
    if folder is None and device == "cpu" and importlib.util.find_spec("dtr_alloc"):
        paths = [os.environ.get("PYTHONPATH", "")]
    else:
        folder = (folder or DEFAULT).resolve()  # Scripts run in other folders.
        if not is_current(folder):
            print(f"building into {folder}", flush=True)
            build(folder)
        paths = [str(link(folder)), os.environ.get("PYTHONPATH", "")]
        shown["DTR_ALLOC_ENGINE_HARNESS"] = str(folder / HARNESS)
    paths += [str(ROOT / "perf/gpu"), str(ROOT / "perf/support")]
    return shown | {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUNBUFFERED": "1"}
