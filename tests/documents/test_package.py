"""The package: its names, what an import under another torch says, and what is built of it.

An sdist must hold what any machine may have to compile, and a wheel what any program may import.
Both are built from a copy of the sources, so that nothing of an earlier build gets in.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import dtr_alloc
from dtr_alloc import _core
from dtr_alloc.__main__ import main
from tests.support.fences import ROOT, fences
from tests.support.own_process import own_process

SOURCES = ("dtr_alloc", "kernels", "runtime", "docs", "tests")
FILES = (
    "install/backend.py",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
)


HERE = f"torch {torch.__version__.split('+')[0]} {'CUDA' if torch.version.cuda else 'CPU'}"


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ("torch.__version__ = '2.0.1'", f"torch 2.0.1 {HERE.split()[-1]}"),
        ("torch.version.cuda = None if torch.version.cuda else '13.0'", "torch "),
    ],
)
def test_an_import_under_another_torch_than_built_with_says_so(
    change: str, other: str, tmp_path: Path
) -> None:
    done = own_process(f"import torch; {change}; import dtr_alloc", cwd=tmp_path)
    assert done.returncode == 1
    assert f"dtr_alloc is built for {HERE}, and {other}" in done.stderr
    assert "pip install --no-build-isolation --no-deps" in done.stderr


def test_a_refused_import_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """Another library may take the key, and the right torch may be found later."""
    program = """
import torch
right = torch.__version__
torch.__version__ = "2.0.1"
try:
    import dtr_alloc
except ImportError as error:
    print("refused")
library = torch.library.Library("_", "IMPL")
library.fallback(lambda op, *args, **kwargs: op(*args, **kwargs), "Fake")
torch.__version__ = right
import dtr_alloc
with dtr_alloc.rematerialize("1MiB"):
    print(float((torch.ones(64, 64) @ torch.ones(64, 64)).sum()))
"""
    done = own_process(program, cwd=tmp_path)
    assert done.stdout.split() == ["refused", "262144.0"], done.stderr


def test_a_compiled_part_that_does_not_load_is_quoted(tmp_path: Path) -> None:
    package = Path(dtr_alloc.__file__).parent
    copied = tmp_path / "dtr_alloc"
    copied.mkdir()
    for path in (package / "__init__.py", *package.glob("_core*.built_for")):
        shutil.copy(path, copied)
    (copied / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}").write_text("no library at all")
    done = own_process("import dtr_alloc", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "file too short): build it again" in done.stderr


def test_nothing_named_kernels_or_runtime_is_installed_at_top_level(tmp_path: Path) -> None:
    done = own_process(
        "import dtr_alloc.kernels, dtr_alloc.runtime, importlib.util as u; "
        "print(u.find_spec('kernels'), u.find_spec('runtime'))",
        cwd=tmp_path,
    )
    assert done.stdout.split() == ["None", "None"], done.stderr


def test_a_build_that_sees_no_torch_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    done = own_process(f"import runpy; runpy.run_path({str(ROOT / 'setup.py')!r})", cwd=tmp_path)
    assert done.returncode == 1
    assert "install torch, and say pip install --no-build-isolation" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_that_sees_no_compiler_says_what_to_install(tmp_path: Path) -> None:
    build = [sys.executable, str(ROOT / "setup.py"), "-q", "build_ext", "--build-lib", "lib"]
    build += ["--build-temp", "temp"]
    for cxx, named in (("", "c++"), ("no-such-c++ -m64", "no-such-c++")):
        env = {"PATH": str(tmp_path), "CXX": cxx}
        done = subprocess.run(build, env=env, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        said = done.stderr.splitlines()[-1]  # Torch warns of ninja, which is not there either.
        assert said.startswith(f"dtr_alloc is compiled, and there is no {named}: install a C++20 ")
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []


BACKEND = "import sys; sys.path.insert(0, 'install'); import backend"


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        ("sys.modules['setuptools'] = None", "none"),
        ("import importlib.metadata; importlib.metadata.version = lambda name: '65.5.0'", "65.5.0"),
    ],
)
def test_a_build_without_its_setuptools_says_what_to_install(before: str, seen: str) -> None:
    done = own_process(f"import sys; {before}; {BACKEND}", cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr == (
        f"dtr_alloc is built by setuptools 77 or later, and this environment has {seen}: "
        "pip install 'setuptools>=77' ninja\n"
    )
    assert 'requires = ["setuptools>=77"]' in (ROOT / "pyproject.toml").read_text()


def shown_by_info() -> dict[str, str]:
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0
    lines = [re.split(r"  +", line, maxsplit=1) for line in result.output.splitlines()]
    return {name: value for name, value in lines}


def test_info_tells_what_a_bug_report_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", "/no/such/library.so")
    monkeypatch.setenv("MY_TOKEN", "secret")
    info = shown_by_info()
    assert info["dtr_alloc"] == dtr_alloc.__version__
    assert info["torch"] == torch.__version__
    assert info["built against"] == f"torch {_core.torch_version}, with {_core.compiler}"
    assert info["python"].endswith(sys.executable)
    assert info["page size"].startswith(f"{os.sysconf('SC_PAGE_SIZE') >> 10} KiB, huge pages: ")
    assert info["arena"].startswith("host, pages of ")
    assert info["cuda allocator"] == (
        "compiled in" if hasattr(_core, "CudaAllocator") else "not compiled in"
    )
    assert info["cuda driver"].startswith("none: /no/such/library.so: cannot open")
    assert info["DTR_ALLOC_LIBCUDA"] == "/no/such/library.so"
    assert "secret" not in str(info)


def test_info_asks_the_driver_for_its_version(
    fake_driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", fake_driver)
    assert shown_by_info()["cuda driver"] == f"{fake_driver}, CUDA 13.0"


def test_the_version_is_written_in_one_place() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.output == f"dtr-alloc, version {dtr_alloc.__version__}\n"
    written = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {dtr_alloc.__version__}" in written
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"^version = (.*)$", project, re.M) == [
        '{ attr = "dtr_alloc.__version__" } # Read, not imported.'
    ]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by what `python -m build` calls."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "source"
    for name in SOURCES:
        ignored = shutil.ignore_patterns("*.so", "*.built_for", "__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in (*FILES, "DESIGN.md"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    program = f"{BACKEND}; backend.build_sdist('..')"
    done = own_process(program, cwd=copy)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.tar.gz")
    assert built.name == f"dtr_alloc-{dtr_alloc.__version__}.tar.gz"
    return built


def sources(pattern: str) -> set[str]:
    found = (file for name in ("dtr_alloc", "runtime") for file in (ROOT / name).rglob(pattern))
    return {file.relative_to(ROOT).as_posix() for file in found}


def test_an_sdist_has_all_that_any_machine_may_compile(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    native = {name for kind in ("*.cpp", "*.h") for name in sources(kind)}
    assert any("live_cuda" in name for name in native)  # Also what this torch did not have built.
    assert native <= names
    assert {"dtr_alloc/py.typed", "dtr_alloc/_core.pyi", *FILES} <= names
    assert not {name for name in names if name.startswith("tests") or name.endswith(".so")}


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Compiled from the sdist alone: minutes."""
    folder = sdist.parent / "wheels"
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "-w", str(folder), str(sdist)], check=True, cwd=sdist.parent)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    python = {f"dtr_alloc/{f.relative_to(ROOT / 'dtr_alloc')}" for f in installed()}
    info = f"dtr_alloc-{dtr_alloc.__version__}.dist-info/"
    others = {name for name in names - python if not name.startswith(info)}
    assert python <= names
    module = Path(f"dtr_alloc/_core{sysconfig.get_config_var('EXT_SUFFIX')}")
    assert others == {str(module), str(module.with_suffix(".built_for"))}
    assert info + "licenses/LICENSE" in names


def installed() -> list[Path]:
    """The files of the package, through its links."""
    return [
        file
        for folder, _, _ in os.walk(ROOT / "dtr_alloc", followlinks=True)
        for kind in ("*.py", "*.pyi", "*.ptx", "py.typed")
        for file in Path(folder).glob(kind)
    ]


@pytest.mark.slow
def test_a_fresh_environment_takes_the_wheel_and_runs_the_two_lines(
    wheel: Path, tmp_path: Path
) -> None:
    """Torch and the other requirements are this environment's, by its path: pip finds them
    installed, and nothing is downloaded."""
    venv.create(tmp_path / "fresh")
    bin_, python = tmp_path / "fresh/bin", str(tmp_path / "fresh/bin/python")
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", query], text=True).strip())
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, cwd=tmp_path)

    readme = [fence.text for fence in fences(ROOT / "README.md") if fence.language == "python"]
    two_lines = next(text for text in readme if "dtr_alloc.rematerialize" in text)
    program = (
        "import torch\n"
        "def train():\n"
        "    w = torch.ones(100, 100, requires_grad=True)\n"
        "    w.exp().sin().sum().backward()\n"
        f"{two_lines}\n"
        "print(dtr_alloc.__file__, session.stats().recorded > 0)\n"
    )
    said = subprocess.check_output([python, "-c", program], text=True, cwd=tmp_path)
    assert said.split()[-2:] == [str(site / "dtr_alloc/__init__.py"), "True"]
    info = subprocess.check_output([str(bin_ / "dtr-alloc"), "info"], text=True, cwd=tmp_path)
    assert info.split()[:2] == ["dtr_alloc", dtr_alloc.__version__]
