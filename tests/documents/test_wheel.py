"""A wheel for several torch releases: what it is built of, and which part an import takes.

Nothing is compiled here: `make wheel` does that, and tests/documents/test_package.py builds the
wheel for one torch.
"""

import importlib.util
import os
import runpy
import shutil
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools
import torch

from dtr_alloc import _core
from tests.support.fences import ROOT
from tests.support.own_process import own_process

MINOR = ".".join(torch.__version__.split(".")[:2])
KIND = "CUDA" if torch.version.cuda else "CPU"
NOTE = f"_core{sysconfig.get_config_var('EXT_SUFFIX').removesuffix('.so')}.built_for"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py defines, and what it asks setuptools for."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", asked.update)
    monkeypatch.chdir(ROOT)
    return runpy.run_path("setup.py") | asked


@pytest.fixture
def built_for_two(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("DTR_TORCHES", "2.11,2.15")
    asked: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", asked.update)
    return runpy.run_path(str(ROOT / "setup.py")) | asked


def test_every_source_is_compiled_in_one_unit(built: dict[str, Any], tmp_path: Path) -> None:
    (module,) = built["ext_modules"]
    units = built["units"](module.sources, tmp_path)
    included = [line for unit in units for line in Path(unit).read_text().splitlines()]
    assert sorted(included) == [f'#include "{source}"' for source in module.sources]
    assert len(units) < len(module.sources) / 4


def test_a_unit_that_did_not_change_is_not_compiled_again(
    built: dict[str, Any], tmp_path: Path
) -> None:
    """The compiler is asked where a file is newer than its object."""
    sources = built["ext_modules"][0].sources
    units = built["units"](sources, tmp_path)
    for unit in units:
        os.utime(unit, ns=(0, 0))
    assert built["units"](sources[:-1], tmp_path) == units
    assert [unit for unit in units if Path(unit).stat().st_mtime_ns] == [units[-1]]


def test_a_build_from_source_is_for_the_torch_that_is_installed(built: dict[str, Any]) -> None:
    assert built["install_requires"][0] == f"torch=={_core.torch_version}"
    assert built["BUILT_FOR"] == {"dtr_alloc._core": f"{_core.torch_version} {KIND}"}


def test_a_wheel_has_a_part_for_each_release_and_kind(built_for_two: dict[str, Any]) -> None:
    assert built_for_two["install_requires"][0] == "torch>=2.11,<2.16"
    assert built_for_two["BUILT_FOR"] == {
        f"dtr_alloc.native.torch2_{minor}_{kind.lower()}._core": f"2.{minor} {kind}"
        for minor in (11, 15)
        for kind in ("CPU", "CUDA")
    }
    for module in built_for_two["ext_modules"]:
        cuda = module.name.endswith("_cuda._core")
        assert any("live_cuda" in source for source in module.sources) == cuda
        flag, *libraries = module.extra_link_args  # What follows the flag is linked, though empty.
        assert (flag, "-lc10_cuda" in libraries) == ("-Wl,--no-as-needed", cuda)
        assert {*libraries} - {"-lc10_cuda"} == {"-lc10", "-ltorch_cpu", "-ltorch_python"}
        assert not module.libraries
        folders = [*module.include_dirs, *module.library_dirs]
        assert all(Path(folder).is_relative_to(ROOT) for folder in folders)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package as a wheel for several releases installs it: only one part can be loaded."""
    package = tmp_path / "dtr_alloc"
    ignored = shutil.ignore_patterns("csrc", "*.so", "*.built_for", "__pycache__")
    shutil.copytree(ROOT / "dtr_alloc", package, ignore=ignored)
    for served in (f"{MINOR} {KIND}", "2.0 CPU", "2.0 CUDA"):
        folder = package / "native" / f"torch{served.replace('.', '_').replace(' ', '_').lower()}"
        folder.mkdir(parents=True)
        (folder / NOTE).write_text(f"{served}\n")
        (folder / NOTE).with_suffix(".so").write_text("no library at all")
    part = package / "native" / f"torch{MINOR.replace('.', '_')}_{KIND.lower()}"
    (part / NOTE).with_suffix(".so").unlink()
    (part / NOTE).with_suffix(".so").symlink_to(str(_core.__file__))
    return part


@pytest.mark.parametrize("patch", ["", f"torch.__version__ = '{MINOR}.99+cpu'"])
def test_an_import_takes_the_part_for_the_minor_release_that_is_here(
    installed: Path, tmp_path: Path, patch: str
) -> None:
    program = f"""
import torch
{patch}
import dtr_alloc
with dtr_alloc.rematerialize("1MiB", device="cpu"):
    print(float((torch.ones(64, 64) @ torch.ones(64, 64)).sum()), dtr_alloc._core.__file__)
"""
    done = own_process(program, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout.split() == ["262144.0", str((installed / NOTE).with_suffix(".so"))], (
        done.stderr
    )


def test_an_import_under_a_release_that_the_wheel_lacks_is_one_sentence(
    installed: Path, tmp_path: Path
) -> None:
    program = "import torch; torch.__version__ = '9.9.1'; import dtr_alloc"
    done = own_process(program, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    has = f"torch 2.0 CPU, 2.0 CUDA, {MINOR} {KIND}"
    said = f"dtr_alloc is built for {has}, and torch 9.9.1 {KIND} is installed: install what it"
    assert said in done.stderr.splitlines()[-1]


def test_headers_and_empty_libraries_stand_in_for_a_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = runpy.run_path(str(ROOT / "install/make_wheel.py"))
    run, asked = wheel["subprocess"].run, []

    def download(words: list[str], **more: Any) -> None:
        if "download" not in words:
            run(words, **more)
            return
        asked.append(words[-1])
        with zipfile.ZipFile(Path(words[words.index("-d") + 1]) / "some.whl", "w") as archive:
            for name in ("torch/include/c10/cuda/impl/a.h", "torch/b.h", "nvidia/cu13/include/c.h"):
                archive.writestr(name, "text")

    monkeypatch.setattr(wheel["subprocess"], "run", download)
    wheel["lay_out"](tmp_path, ["2.11"])
    assert asked == ["torch==2.11.*", *wheel["CUDA"]]
    files = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()}
    libraries = {f"lib/lib{name}.so" for name in wheel["LIBRARIES"]}
    headers = {f"2.11/include/c10/cuda/impl/{name}.h" for name in ("a", "cuda_cmake_macros")}
    assert files == {*headers, "cuda/include/c.h", *libraries}
    assert b"libc10_cuda.so" in (tmp_path / "lib/libc10_cuda.so").read_bytes()
    wheel["lay_out"](tmp_path, ["2.11"])
    assert len(asked) == 3  # What is there is not downloaded again.


def test_nothing_in_the_folder_of_the_backend_has_the_name_of_a_package() -> None:
    """It is put on sys.path first: a wheel.py there would hide the package that setuptools uses."""
    names = {path.stem for path in (ROOT / "install").glob("*.py")}
    assert {"backend", "make_wheel"} <= names
    assert [name for name in names if importlib.util.find_spec(name)] == []
