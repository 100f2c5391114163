"""Pool and engine under threads are clean under each sanitizer (run.py)."""

import importlib.util
import subprocess
from pathlib import Path

import pytest


def test_the_stress_program_follows_the_sources() -> None:
    sources = sorted(map(str, Path(__file__).parent.glob("*.cpp")))
    root = str(Path(__file__).parents[2])
    subprocess.run(["g++", "-std=c++20", "-fsyntax-only", f"-I{root}", *sources], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_threads_in_pool_and_engine_are_clean(
    sanitizers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("stress_run", Path(__file__).with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    monkeypatch.setattr("sys.argv", ["run.py", sanitizers])
    assert run.main() == 0
    assert capsys.readouterr().out.count("clean") == len(run.PARTS) == 3
