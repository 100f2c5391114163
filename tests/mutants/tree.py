"""A copy of the repository with all faults of a run compiled in, none of which holds by itself.

The variable DTR_MUTANT holds the number of the one that does. A fault's line asks `holds(number)`,
which also notes that the program came by; with DTR_MUTANTS_REACHED, a folder, each process writes
there at its end which numbers it met. So one build serves hundreds of faults, and a fault is tried
only on tests that reach it.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.mutants.faults import Fault, planted

ROOT = Path(__file__).parents[2]
TREE = ROOT / "build/mutants/tree"
MOST = 4096  # Faults of a build.
HEADER = """#pragma once
#include <unistd.h>
#include <cstdlib>
#include <fstream>
#include <string>
namespace dtr_mutants {
constexpr int kMost = MOST;
inline int chosen() {
  static const int number = [] {
    const char* text = std::getenv("DTR_MUTANT");
    return text ? std::atoi(text) : -1;
  }();
  return number;
}
struct Reached {
  const int pid = getpid();
  unsigned char numbers[kMost] = {};
  static void note(int number) {
    const char* folder = std::getenv("DTR_MUTANTS_REACHED");
    if (!folder) return;
    std::ofstream file(std::string(folder) + "/" + std::to_string(getpid()), std::ios::app);
    file << number << "\\n";
  }
  void meet(int number) {
    numbers[number] = 1;
    if (getpid() != pid) note(number);  // A forked child may end without destructors.
  }
  ~Reached() {
    for (int number = 0; number < kMost; ++number) {
      if (numbers[number]) note(number);
    }
  }
};
inline Reached reached;
inline bool holds(int number) {
  if (!reached.numbers[number]) reached.meet(number);
  return number == chosen();
}
}  // namespace dtr_mutants
"""
ERROR = re.compile(r"^(?:\.\./)*(\S+?):(\d+):\d+: error:", re.M)


def build(faults: dict[int, Fault]) -> dict[int, Fault]:
    """Plants in `TREE` what compiles of `faults`, each with its number, and returns that."""
    while True:
        write(faults)
        done = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=TREE, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return faults
        text = (done.stdout + done.stderr).replace(f"{TREE}/", "")
        wrong = {(path, int(line)) for path, line in ERROR.findall(text)}
        kept = {n: fault for n, fault in faults.items() if (fault.path, fault.line) not in wrong}
        if len(kept) == len(faults):
            raise SystemExit(text[-5000:])
        faults = kept


def write(faults: dict[int, Fault]) -> None:
    """Copies what git knows. Files that are as they were keep their times, so that little is
    compiled again."""
    by_file: dict[str, dict[int, tuple[int, Fault]]] = {}
    for number, fault in faults.items():
        by_file.setdefault(fault.path, {})[fault.line] = (number, fault)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = set(filter(None, listed.split("\0")))
    for copy in [*TREE.rglob("*.py"), *TREE.rglob("*.cpp"), *TREE.rglob("*.h")]:
        gone = copy.relative_to(TREE).as_posix()
        if gone not in names and not gone.startswith("build/") and copy.name != "mutants.h":
            copy.unlink()
    for name in sorted(names):
        source, copy = ROOT / name, TREE / name
        if not source.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.unlink(missing_ok=True)
            copy.symlink_to(source.readlink())
            continue
        content = source.read_bytes()
        if name in by_file:
            content = planted(content.decode(), by_file[name]).encode()
        put(copy, content)
        copy.chmod(source.stat().st_mode)
    put(TREE / "dtr_alloc/pool/csrc/mutants.h", HEADER.replace("MOST;", f"{MOST};").encode())


def put(copy: Path, content: bytes) -> None:
    if not copy.exists() or copy.read_bytes() != content:
        copy.write_bytes(content)
