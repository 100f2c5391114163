"""Builds `dtr_alloc._core`, the one compiled module, against the torch that is installed.

PyTorch's C++ ABI holds for one release only, so the build writes the torch it saw into the
package's requirements and beside the module, where the import compares it. Where that torch
has CUDA, and the headers of CUDA's runtime are found, the allocator for
torch.cuda.memory.change_current_allocator is compiled in (runtime/csrc/live_cuda); no GPU and no
nvcc is needed for it. Metadata lives in pyproject.toml.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

from setuptools import setup

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


def listed(pattern: str, with_cuda: bool) -> list[str]:
    files = (f for folder in SOURCES for f in (ROOT / folder).rglob(pattern))
    return sorted(str(f.relative_to(ROOT)) for f in files if with_cuda or f.parent != CUDA_SOURCES)


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

    def run(self) -> None:
        compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
        if shutil.which(compiler[0]) is None:
            raise SystemExit(
                f"dtr_alloc is compiled, and there is no {compiler[0]}: install a C++20 compiler "
                "(Debian, Ubuntu: apt install g++), or name one in the variable CXX"
            )
        module = Path(self.get_ext_fullpath("dtr_alloc._core"))
        built_for, here = module.with_suffix(".built_for"), f"{RELEASE} {KIND}\n"
        # Without ninja, what is newer than its sources is not compiled again.
        self.force = not built_for.exists() or built_for.read_text() != here
        super().run()
        built_for.write_text(here)


headers = cuda_headers() if torch.version.cuda else None
if torch.version.cuda and headers is None:
    print(
        f"torch {torch.__version__} has CUDA, but cuda_runtime_api.h was not found: "
        "building without dtr_alloc.allocator(); set CUDA_HOME to a toolkit for it"
    )
with_cuda = headers is not None
# Contracted, a product is not rounded, and two processors could choose two victims.
flags = ["-std=c++20", "-O3", "-g0", "-Wall", "-fvisibility=hidden", "-ffp-contract=off"]

# `make asan-torch`: the same module under a sanitizer of the compiler's.
sanitizer = [f"-fsanitize={name}" for name in os.environ.get("DTR_SANITIZE", "").split(",") if name]
if sanitizer:
    flags += [*sanitizer, "-fno-omit-frame-pointer", "-g1"]

setup(
    install_requires=[f"torch=={RELEASE}", "numpy", "click", "rich"],
    ext_modules=[
        CppExtension(
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
    ],
    cmdclass={"build_ext": Build},
)
