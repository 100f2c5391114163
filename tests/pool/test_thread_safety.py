"""The pool touches what a lock guards only while it holds that lock: clang says so.

Its analysis reads the annotations of thread_safety.h. g++ has none, so these are skipped where
there is no clang. `pip install ziglang` brings one.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POOL = ROOT / "dtr_alloc/pool/csrc"


def clang() -> list[str]:
    if found := shutil.which("clang++"):
        return [found]
    if (package := find_spec("ziglang")) and package.origin:
        headers = Path(package.origin).parent / "lib"
        return [sys.executable, "-m", "ziglang", "clang", "-resource-dir", str(headers)]
    pytest.skip("there is no clang++: pip install ziglang")


def complaints(sources: Sequence[Path]) -> str:
    flags = ["-x", "c++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror", f"-I{ROOT}"]
    done = subprocess.run([*clang(), *flags, *sources], capture_output=True, text=True)
    return done.stderr


def test_the_pool_holds_each_lock_where_it_must() -> None:
    sources = [*POOL.glob("*.cpp"), *POOL.glob("cuda/*.cpp")]
    assert complaints([f for f in sources if f.name != "bind_pool.cpp"]) == ""


def test_an_access_without_the_lock_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "count.cpp"
    source.write_text("""
#include "dtr_alloc/pool/csrc/thread_safety.h"

class Count {
 public:
  int right() {
    const dtr::MutexLock lock(mutex_);
    return count_;
  }
  int wrong() { return count_; }

 private:
  dtr::Mutex mutex_;
  int count_ DTR_GUARDED_BY(mutex_) = 0;
};
""")
    told = complaints([source])
    assert told.count("error:") == 1
    assert "reading variable 'count_' requires holding mutex 'mutex_'" in told
