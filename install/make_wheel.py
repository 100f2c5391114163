"""`make wheel`: one wheel for this Python, and for every torch release that is served.

torch's C++ interface holds for one minor release, so the wheel has a `_core` for each release and
kind (CPU, CUDA), of which an import loads the one for the torch that is there. The releases are not
installed for it. Their headers are unpacked from their wheels, which pip downloads from the index
that it is configured for: any build of a release will do, because the headers of CPU builds lack
one file only, which is written here. Their libraries are stood in for by empty ones of the same
names, so nothing of CUDA is linked but torch's own libc10_cuda. At last auditwheel finds the oldest
Linux that the wheel works on, and names it after that: manylinux_2_28 in pypa's image of this name,
where install/manylinux.sh runs this for every Python.

    python install/make_wheel.py [--releases 2.11,2.13] [--out dist]

Needs what a build needs, auditwheel and patchelf. Costs: five downloads of 0.2 GB (an index of CPU
builds) to 0.9 GB, kept as 9 MB each in build/torches, and some 25 minutes of processor. The number
of compilers at a time is MAX_JOBS.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASES = ("2.11", "2.12", "2.13", "2.14", "2.15")
TORCHES = ROOT / "build/torches"
LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_python")
CUDA = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*")
"""Whose headers are compiled with. Of the runtime they give types and enumerators, no calls."""
MACROS = "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n"


def unpack(requirement: str, within: str, into: Path) -> None:
    """The files below `within` of a wheel that is not installed."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as folder:
        subprocess.run([*pip, "-d", folder, requirement], check=True)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(within) and not name.endswith("/"):
                    file = into / name.removeprefix(within)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(archive.read(name))


def lay_out(torches: Path, releases: list[str]) -> None:
    """What setup.py reads: RELEASE/include, cuda/include, and lib. What is there stays."""
    for release in releases:
        include = torches / release / "include"
        if not include.exists():
            unpack(f"torch=={release}.*", "torch/include/", torches / release / "new")
            (torches / release / "new").rename(include)  # So a broken download is none.
        macros = include / "c10/cuda/impl/cuda_cmake_macros.h"
        if not macros.exists():
            macros.write_text(MACROS)
    for requirement in CUDA if not (torches / "cuda/include").exists() else ():
        unpack(requirement, "nvidia/cu13/include/", torches / "cuda/new")
    if (torches / "cuda/new").exists():
        (torches / "cuda/new").rename(torches / "cuda/include")
    (torches / "lib").mkdir(exist_ok=True)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    for name in LIBRARIES:
        empty = [*compiler, "-shared", f"-Wl,-soname,lib{name}.so", "-x", "c", "/dev/null"]
        subprocess.run([*empty, "-o", str(torches / f"lib/lib{name}.so")], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--releases", default=",".join(RELEASES), help="Minor releases of torch.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="Folder for the wheel.")
    options = parser.parse_args()
    releases = options.releases.split(",")
    lay_out(TORCHES, releases)
    for earlier in (ROOT / "build/wheel").glob("lib.*"):  # Of other releases, perhaps.
        shutil.rmtree(earlier)
    with tempfile.TemporaryDirectory() as folder:
        base = ["egg_info", "--egg-base", folder, "build", "--build-base", "build/wheel"]
        subprocess.run(
            [sys.executable, "setup.py", "-q", *base, "bdist_wheel", "-d", folder],
            env={**os.environ, "DTR_TORCHES": ",".join(releases)},
            cwd=ROOT,
            check=True,
        )
        (wheel,) = Path(folder).glob("*.whl")
        torchs = [f"--exclude=lib{name}.so" for name in LIBRARIES]
        repair = ["-m", "auditwheel", "repair", *torchs, "-w", str(options.out), str(wheel)]
        subprocess.run([sys.executable, *repair], check=True)


if __name__ == "__main__":
    main()
