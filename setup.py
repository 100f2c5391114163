"""Builds `dtr_alloc._core`, the one compiled module, against the torch that is installed.

PyTorch's C++ ABI holds for one release only, so the build writes the torch it saw into the
package's requirements and beside the module, where the import compares it. Where that torch
has CUDA, and the headers of CUDA's runtime are found, the allocator for
torch.cuda.memory.change_current_allocator is compiled in (runtime/csrc/live_cuda); no GPU and no
nvcc is needed for it. Metadata lives in pyproject.toml.

Nearly all time goes into reading torch's headers, once for each file. So what is compiled are units
of some eight files, written into the build's folder: half the time, and ninja compiles again the
units that a change is in.

`make wheel` (install/make_wheel.py) names releases in DTR_TORCHES, whose headers are below
build/torches: then one `_core` is built for each of them and each kind, and none for the torch that
is installed.
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from sysconfig import get_platform

from setuptools import Extension, setup

try:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension
except ModuleNotFoundError as error:
    raise SystemExit(
        "dtr_alloc is compiled against the torch that is installed, and the build does not see one "
        f"({error}): install torch, and say pip install --no-build-isolation"
    ) from None

ROOT = Path(__file__).parent
RELEASE = torch.__version__.split("+")[0]
KIND = "CUDA" if torch.version.cuda else "CPU"
SOURCES = ["dtr_alloc/pool/csrc", "runtime/csrc"]
CUDA_SOURCES = ROOT / "runtime/csrc/live_cuda"
TORCHES = [name for name in os.environ.get("DTR_TORCHES", "").split(",") if name]
UNIT = 8  # Files.
BUILT_FOR: dict[str, str] = {}  # By module.


def listed(pattern: str, with_cuda: bool) -> list[str]:
    files = (f for folder in SOURCES for f in (ROOT / folder).rglob(pattern))
    return sorted(str(f.relative_to(ROOT)) for f in files if with_cuda or f.parent != CUDA_SOURCES)


def units(sources: list[str], folder: Path) -> list[str]:
    """Writes files that include the sources, those of a part together. What is as it was is not
    written, because ninja goes by times."""
    parts: dict[str, list[str]] = {}
    for source in sources:
        parts.setdefault(Path(source).parts[2], []).append(source)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for part, files in parts.items():
        count = -(-len(files) // UNIT)
        for number in range(count):
            unit = folder / f"{part}_{number}.cpp"
            text = "".join(f'#include "{file}"\n' for file in files[number::count])
            if not unit.exists() or unit.read_text() != text:
                unit.write_text(text)
            made.append(str(unit))
    return made


def cuda_headers() -> str | None:
    """The folder that holds cuda_runtime_api.h and all that it includes, or None. The headers that
    come with torch go before a toolkit's, and those of another major release are refused."""
    packages = Path(torch.__file__).parents[1]
    folders = sorted(packages.glob("nvidia/cu*/include"), reverse=True)
    folders.append(packages / "nvidia/cuda_runtime/include")
    homes = (CUDA_HOME, os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    folders += [Path(home) / "include" for home in homes if home]
    folders.append(packages / "triton/backends/nvidia/include")
    others = {}
    for folder in folders:
        header = folder / "cuda_runtime_api.h"
        if not header.exists() or not (folder / "crt/host_defines.h").exists():
            continue
        version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text())
        major = int(version[1]) // 1000 if version else 0
        if torch.version.cuda and major == int(torch.version.cuda.split(".")[0]):
            return str(folder)
        if "triton" not in folder.parts:
            others[folder] = major or "unknown version"
    if others:
        found = ", ".join(f"{folder} of CUDA {major}" for folder, major in others.items())
        raise SystemExit(
            f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, and the headers "
            f"here are {found}: set CUDA_HOME to a toolkit of torch's CUDA"
        )
    return None


class Build(BuildExtension):
    """Says so once where there is no compiler, instead of once a file, and notes the torch that it
    builds for."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.editable_mode:  # Not in a folder that goes: later builds need the objects.
            self.build_temp = f"build/temp.{get_platform()}-{sys.implementation.cache_tag}"

    def run(self) -> None:
        compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
        if shutil.which(compiler[0]) is None:
            raise SystemExit(
                f"dtr_alloc is compiled, and there is no {compiler[0]}: install a C++20 compiler "
                "(Debian, Ubuntu: apt install g++), or name one in the variable CXX"
            )
        notes = {
            Path(self.get_ext_fullpath(name)).with_suffix(".built_for"): f"{built}\n"
            for name, built in BUILT_FOR.items()
        }
        # Without ninja, what is newer than its sources is not compiled again.
        self.force = any(not one.exists() or one.read_text() != here for one, here in notes.items())
        super().run()
        for note, here in notes.items():
            note.write_text(here)

    def build_extension(self, extension: Extension) -> None:
        sources = extension.sources
        extension.depends += sources
        extension.sources = units(sources, Path(self.build_temp, extension.name))
        super().build_extension(extension)
        extension.sources = sources  # What an sdist holds.


headers = cuda_headers() if torch.version.cuda and not TORCHES else None
if torch.version.cuda and headers is None and not TORCHES:
    print(
        f"torch {torch.__version__} has CUDA, but cuda_runtime_api.h was not found: "
        "building without dtr_alloc.allocator(); set CUDA_HOME to a toolkit for it"
    )
with_cuda = headers is not None
# Without a procedure linkage table, a small operator costs 1 % less.
flags = ["-std=c++20", "-O3", "-g0", "-Wall", "-fvisibility=hidden", "-fno-plt"]
# Contracted, a product is not rounded, and two processors could choose two victims.
flags += ["-ffp-contract=off"]

# `make asan-torch`: the same module under a sanitizer of the compiler's.
sanitizer = [f"-fsanitize={name}" for name in os.environ.get("DTR_SANITIZE", "").split(",") if name]
if sanitizer:
    flags += [*sanitizer, "-fno-omit-frame-pointer", "-g1"]


def for_torch_here() -> Extension:
    BUILT_FOR["dtr_alloc._core"] = f"{RELEASE} {KIND}"
    return CppExtension(
        "dtr_alloc._core",
        listed("*.cpp", with_cuda),
        depends=listed("*.h", with_cuda),
        include_dirs=[str(ROOT), *([headers] if headers else [])],
        # The second is read by nobody: with another torch all is compiled again.
        define_macros=[
            *([("DTR_TORCH_CUDA", None)] if with_cuda else []),
            (f"DTR_BUILT_FOR_{RELEASE.replace('.', '_')}_{KIND}", None),
        ],
        libraries=["c10_cuda", "torch_cuda"] if with_cuda else [],
        extra_compile_args=flags,
        extra_link_args=sanitizer,
    )


def for_release(release: str, kind: str) -> Extension:
    """Nothing of the torch that is installed gets in: neither headers nor libraries."""
    name = f"dtr_alloc.native.torch{release.replace('.', '_')}_{kind.lower()}._core"
    BUILT_FOR[name] = f"{release} {kind}"
    torches, cuda = ROOT / "build/torches", kind == "CUDA"
    include = torches / release / "include"
    folders = [ROOT, include, include / "torch/csrc/api/include", torches / "cuda/include"]
    libraries = [*(["c10_cuda"] if cuda else []), "c10", "torch_cpu", "torch_python"]
    return Extension(
        name,
        listed("*.cpp", cuda),
        depends=listed("*.h", cuda),
        include_dirs=[str(folder) for folder in folders],
        define_macros=[("DTR_TORCH_CUDA", None)] if cuda else [],
        library_dirs=[str(torches / "lib")],
        extra_compile_args=flags,
        # These libraries are empty, and a linker drops what it finds nothing in.
        extra_link_args=["-Wl,--no-as-needed", *(f"-l{name}" for name in libraries)],
        language="c++",
    )


if TORCHES:
    newest = TORCHES[-1].split(".")
    requirement = f"torch>={TORCHES[0]},<{newest[0]}.{int(newest[1]) + 1}"
    modules = [for_release(release, kind) for release in TORCHES for kind in ("CPU", "CUDA")]
else:
    requirement, modules = f"torch=={RELEASE}", [for_torch_here()]

setup(
    install_requires=[requirement, "numpy", "click", "rich"],
    ext_modules=modules,
    cmdclass={"build_ext": Build},
)
