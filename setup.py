"""Builds `dtr_alloc._core`, the one compiled module, against the torch that is installed.

PyTorch's C++ ABI holds for one release only, so the build writes the torch it saw into the
package's requirements (and into `_core.torch_version`, which the import compares). Metadata lives
in pyproject.toml.
"""

from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
SOURCES = ["dtr_alloc/csrc", "runtime/csrc"]


def listed(pattern: str) -> list[str]:
    return sorted(str(f.relative_to(ROOT)) for d in SOURCES for f in (ROOT / d).glob(pattern))


setup(
    install_requires=[f"torch=={torch.__version__.split('+')[0]}", "numpy", "click", "rich"],
    ext_modules=[
        CppExtension(
            "dtr_alloc._core",
            listed("*.cpp"),
            depends=listed("*.h"),
            include_dirs=[str(ROOT)],
            extra_compile_args=["-std=c++20", "-O2", "-g0", "-Wall", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
