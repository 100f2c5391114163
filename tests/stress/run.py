"""Builds the stress program with a sanitizer and runs it; prints one line a part.

`make asan`, `make tsan`. Needs g++ with its sanitizers, and neither torch nor a GPU. Sources that
include torch, Python or pybind11, however indirectly, are left out. What is built stays in
build/<sanitizers>.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("pool", "streams", "engine")
FOREIGN = re.compile(r"#include <(torch|ATen|c10|pybind11|Python|cuda)")
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


@cache
def headers(file: Path) -> frozenset[Path]:
    """The file, and all of ours that it includes."""
    found = {file}
    for name in re.findall(r'#include "([^"]+)"', file.read_text()):
        if (ROOT / name).exists():
            found |= headers(ROOT / name)
    return frozenset(found)


def plain(file: Path) -> bool:
    return not any(FOREIGN.search(header.read_text()) for header in headers(file))


def compile_to(result: Path, sources: list[Path], flags: list[str]) -> None:
    newest = max(header.stat().st_mtime for source in sources for header in headers(source))
    if result.exists() and result.stat().st_mtime > newest:
        return
    command = ["g++", "-std=c++20", "-O1", "-g", "-fno-omit-frame-pointer", f"-I{ROOT}", *flags]
    subprocess.run([*command, *map(str, sources), "-o", str(result)], check=True)


def build(sanitizers: str) -> Path:
    folder = ROOT / "build" / sanitizers.replace(",", "-")
    folder.mkdir(parents=True, exist_ok=True)
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    objects = []
    folders = ("dtr_alloc/pool/csrc", "runtime/csrc", "tests/engine_harness", "tests/stress")
    found = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.cpp")))
    for source in filter(plain, found):
        objects.append(folder / f"{'_'.join(source.relative_to(ROOT).with_suffix('').parts)}.o")
        compile_to(objects[-1], [source], [*flags, "-c"])
    fake = ROOT / "tests/fake_cuda/fake_cuda.cpp"
    compile_to(folder / "libfakecuda.so", [fake], [*flags, "-shared", "-fPIC"])
    program = folder / "stress"
    command = ["g++", *flags, *map(str, objects), "-o", str(program), "-ldl", "-pthread"]
    subprocess.run(command, check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sanitizers", choices=("address,undefined", "thread"))
    sanitizers = parser.parse_args().sanitizers
    program = build(sanitizers)
    driver = str(program.with_name("libfakecuda.so"))
    environment = {**os.environ, **OPTIONS, "DTR_ALLOC_LIBCUDA": driver}
    failures = 0
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
    print(compiler.stdout.splitlines()[0], flush=True)
    for part in PARTS:
        begin = time.perf_counter()
        done = subprocess.run([str(program), part], env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        clean = done.returncode == 0 and not done.stderr
        failures += not clean
        print(f"-fsanitize={sanitizers} {part}: {'clean' if clean else 'FAILED'}, {seconds:.1f} s")
        if not clean:
            print(done.stdout + done.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
